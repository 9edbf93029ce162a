"""llama.cpp's own server: a child process on a loopback port to which only we have the key."""

import asyncio
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from catenary_protocols.errors import EngineError, RequestError

from catenary_worker.engines.llamacpp.settings import LlamaSettings


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and its key."""

    host: str
    port: int
    key: str


class _Answer(msgspec.Struct, frozen=True):
    address: str = ""
    error: str = ""


def check_installed() -> None:
    """Raises `RequestError` that says how to get it."""
    if find_spec("xllamacpp") is None:
        message = "llama.cpp is not installed: pip install 'catenary-worker[llamacpp]'"
        raise RequestError(message, code="unsupported", field="engine")


class LlamaServer:
    """The process."""

    def __init__(self, file: Path, settings: LlamaSettings, context: int) -> None:
        self._file = file
        self._settings = settings
        self._context = context
        self._process: Process | None = None

    async def start(self) -> Address:
        """Load the model. Raises `EngineError`."""
        settings, key = self._settings, secrets.token_urlsafe(24)
        given = {
            "file": str(self._file),
            "slots": settings.slots,
            "tokens": settings.slots * self._context,
            "batch": settings.batch,
            "gpu_layers": settings.gpu_layers,
            "threads": settings.all_threads,
            "key": key,
        }
        module = f"{__package__}.child"
        child = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, stdin=PIPE, stdout=PIPE
        )
        assert child.stdin is not None  # noqa: S101 - they are pipes
        assert child.stdout is not None  # noqa: S101
        child.stdin.write(msgspec.json.encode(given) + b"\n")
        line = await child.stdout.readline()
        answer = msgspec.json.decode(line, type=_Answer) if line else _Answer(error="it died")
        if answer.error:
            await self.stop()
            raise EngineError(f"llama.cpp cannot load {self._file.name}: {answer.error}")
        where = urlsplit(answer.address)
        return Address(str(where.hostname), int(where.port or 0), key)

    @property
    def pid(self) -> int:
        """Of the process, once it was started."""
        return self._process.pid if self._process is not None else 0

    async def died(self) -> int:
        """Returns the exit code when the process is gone."""
        return await self._process.wait() if self._process is not None else 0

    async def stop(self) -> None:
        """Give its memory back."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
