"""Lines of a server's output: the same however they are cut, and never more of them held than is allowed."""

import errno
import os
import sys
from itertools import pairwise

import anyio
import pytest
from catenary_tool_dispatch.executors.mcp_stdio import Lines, Overlong, stdio
from hypothesis import given
from hypothesis import strategies as st

MOST = 300
ENDS = 128


def fed(data: bytes, cuts: list[int]) -> list[bytes | Overlong]:
    lines = Lines(MOST)
    found: list[bytes | Overlong] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(edges):
        found += lines.feed(data[begin:end])
        assert len(lines._kept) <= MOST
    return found


@given(st.lists(st.integers(0, 4 * MOST), max_size=8), st.lists(st.integers(0, 10**6), max_size=40))
def test_lines_are_the_same_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    texts = [bytes(33 + (at + size) % 90 for at in range(size)) for size in sizes]
    found = fed(b"".join(text + b"\n" for text in texts) + b"no line yet", cuts)
    assert found == [text if len(text) <= MOST else Overlong(text[:ENDS], text[-ENDS:]) for text in texts]


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"text":"%s"}}', 7),
        (b' { "id" : 7 , "jsonrpc" : "2.0", "result":{"text":"%s"}}', 7),
        (b'{"result":{"text":"%s"},"jsonrpc":"2.0","id":12}', 12),
        (b'{"result":{"text":"%s","id":9}}', None),
        (b'{"method":"notifications/message","params":{"id":3,"data":"%s"},"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","id":"seven","result":{"text":"%s"}}', None),
    ],
)
def test_a_dropped_answer_still_tells_whose_it_was(line: bytes, request_id: int | None) -> None:
    (dropped,) = Lines(MOST).feed(line % (b"x" * MOST) + b"\n")
    assert isinstance(dropped, Overlong)
    assert dropped.answers == request_id


async def test_a_server_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def as_uvloop_says_it(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(anyio, "open_process", as_uvloop_says_it)
    with pytest.raises(FileNotFoundError) as caught:
        await stdio(["/no/such/program", "--fast"], {}, sys.stderr, MOST).__aenter__()
    assert str(caught.value) == "[Errno 2] No such file or directory: '/no/such/program'"
