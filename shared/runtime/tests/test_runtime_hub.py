"""Models by hub id, against a stand-in for the hub on loopback; the client is a process, as it reads its environment once."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from catenary_runtime.hub import is_hub_id

REVISION = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "tokenizer.json": b'{"model": {}}',
    "qwen.tiktoken": b"IQ== 0\n",
    "config.json": b"{}",
    "model.safetensors": b"weights",
}
FETCH = """
import sys
from catenary_protocols.errors import CatenaryError
from catenary_runtime.hub import hub_directory
try:
    print(hub_directory(sys.argv[1], weights=sys.argv[2] == "weights"))
except CatenaryError as error:
    sys.exit(f"{error.field}: {error.message}")
"""


class _Hub(BaseHTTPRequestHandler):
    """What the client asks of the hub for one small public model and one that is gated."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if "org/gated" in path:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, body=body)
        elif "org/small" not in path:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)
        elif "/resolve/" in path and name in FILES:
            etag = hashlib.sha256(FILES[name]).hexdigest()
            self._send(200, FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION}, body=body)
        elif "/tree/" in path:
            tree = [{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in FILES.items()]
            self._send(200, json.dumps(tree).encode(), {}, body=body)
        else:
            siblings = [{"rfilename": name} for name in FILES]
            info = {"id": "org/small", "modelId": "org/small", "sha": REVISION, "siblings": siblings, "tags": []}
            self._send(200, json.dumps(info).encode(), {}, body=body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data)), "Content-Type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(model: str, home: Path, endpoint: str, what: str = "prompt", **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
        **more,
    }
    command = [sys.executable, "-c", FETCH, model, what]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_an_id_becomes_a_directory_of_what_a_prompt_needs_and_is_there_without_the_network(
    hub: str, tmp_path: Path
) -> None:
    done = fetch("org/small", tmp_path, hub)
    assert done.returncode == 0, done.stderr
    directory = Path(done.stdout.strip())
    assert {path.name for path in directory.iterdir()} == set(FILES) - {"model.safetensors"}
    again = fetch("org/small", tmp_path, "http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    assert again.stdout == done.stdout
    whole = fetch("org/small", tmp_path, hub, "weights")
    assert (Path(whole.stdout.strip()) / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    ("model", "more", "cure"),
    [
        ("org/none", {}, "no such model"),
        ("org/gated", {}, "accept its terms"),
        ("org/small", {"HF_HUB_OFFLINE": "1"}, "not in the cache"),
        ("org/small", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "not in the cache"),
    ],
)
def test_what_cannot_be_had_says_what_to_do(
    hub: str, tmp_path: Path, model: str, more: dict[str, str], cure: str
) -> None:
    done = fetch(model, tmp_path, hub, **more)
    assert done.returncode == 1
    assert done.stderr.startswith(f"model_path: model {model}: ")
    assert cure in done.stderr


def test_an_id_is_no_path_that_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("Qwen/Qwen3-0.6B")
    (tmp_path / "models" / "m").mkdir(parents=True)
    for other in ("models/m", "", "m", "/models/m", "a/b/c", "../m", "./m", "models/m.gguf"):
        assert not is_hub_id(other)
