"""Detokenising, on vocabularies of arbitrary bytes."""

from catenary_tokenizers import ControlToken, Detokenizer, pack
from catenary_tokenizers.detokenise import PieceTable
from hypothesis import given
from hypothesis import strategies as st

PIECES = st.lists(
    st.one_of(st.binary(min_size=1, max_size=5), st.text(min_size=1, max_size=4).map(str.encode)),
    min_size=1,
    max_size=12,
)


def run(table: PieceTable, steps: list[list[int]], prompt: list[int] | None = None) -> list[str | ControlToken]:
    stream = Detokenizer(table, pack(prompt or []))
    out = [part for step in steps for part in stream.push(pack(step))]
    return [*out, rest] if (rest := stream.flush()) else out


def text(parts: list[str | ControlToken]) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in parts)


@given(PIECES, st.data())
def test_any_cut_gives_what_the_whole_bytes_decode_to(pieces: list[bytes], data: st.DataObject) -> None:
    table = PieceTable(pieces, [])
    ids = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=20))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    steps = [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert text(run(table, steps)) == b"".join(pieces[i] for i in ids).decode("utf-8", "replace")


@given(st.text(max_size=20), st.data())
def test_no_replacement_character_while_a_character_may_still_become_whole(said: str, data: st.DataObject) -> None:
    raw = said.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=9)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    parts = run(PieceTable(pieces, []), [[index] for index in range(len(pieces))])
    assert text(parts) == said


@given(PIECES, st.data())
def test_control_tokens_keep_their_place(pieces: list[bytes], data: st.DataObject) -> None:
    control = ControlToken(len(pieces), "<|end|>", special=True)
    table = PieceTable(pieces, [control])
    ids = data.draw(st.lists(st.integers(0, len(pieces)), max_size=16))
    parts = run(table, [[index] for index in ids])
    assert parts.count(control) == ids.count(control.id)
    runs: list[bytes] = [b""]
    for index in ids:
        if index == control.id:
            runs.append(b"")
        else:
            runs[-1] += pieces[index]
    assert text(parts) == control.text.join(run.decode("utf-8", "replace") for run in runs)


@given(st.text(min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 3))
def test_a_prompt_that_ends_inside_a_character_is_not_sent_again(said: str, cut: int, spread: int) -> None:
    raw = ("tail" + said).encode()
    cut = min(cut, len(said[-1].encode()) - 1)
    if cut == 0:
        return
    pieces = [raw[: len(raw) - cut], raw[len(raw) - cut :], b" next"]
    assert text(run(PieceTable(pieces, []), [[1], [2]], prompt=[0])) == said[-1] + " next"


def test_ids_that_the_vocabulary_lacks_are_silent() -> None:
    assert text(run(PieceTable([b"a"], []), [[0, 7], [9], [0]])) == "aa"


def test_an_incomplete_end_is_one_replacement_character() -> None:
    assert run(PieceTable([b"ok ", b"\xf0\x9f"], []), [[0], [1]]) == ["ok ", "\ufffd"]


def test_an_incomplete_character_is_given_up_before_a_control_token() -> None:
    control = ControlToken(1, "<|end|>", special=True)
    assert run(PieceTable([b"\xf0\x9f"], [control]), [[0], [1]]) == ["\ufffd", control]
