"""Two processes beside the loop, for what must not hold it up: long texts to encode, and templates without bounds."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from catenary_protocols.errors import CatenaryError, RequestError
from catenary_tokenizers import PromptError, Rendered, Segment, TemplateLimitError

from catenary_tokenizer_service.helpers import jobs
from catenary_tokenizer_service.helpers.process import HelperLateError, HelperLostError, HelperProcess

ENCODE_S = 60.0
"""A prompt of 8 MB takes the slowest vocabulary some ten seconds; the first one waits for the model to be loaded."""
RENDER_S = 5.0
SANDBOX_BYTES = 2 << 30


class Helpers:
    """See the module."""

    def __init__(self) -> None:
        self.encoder = HelperProcess("encoder")
        self.boundless = HelperProcess("sandbox", memory=SANDBOX_BYTES)

    async def warm(self, directory: Path) -> None:
        """Until the encoder has loaded this model, or could not: then whoever needs it is told."""
        await self.encoder.try_soon(partial(jobs.warm, directory), ENCODE_S)

    async def encode(self, directory: Path, segment: Segment) -> bytes:
        """Ids of a segment, from the encoder; raises `RequestError`, `CatenaryError`."""
        try:
            return await self.encoder.ask_soon(partial(jobs.encode, directory, segment), ENCODE_S)
        except HelperLateError as error:
            raise RequestError(f"encoding the prompt took longer than {ENCODE_S:g} s", field="messages") from error
        except HelperLostError as error:
            raise CatenaryError("the process that encodes long prompts died twice over this one") from error

    def sandbox(self, source: str) -> "SandboxedEngine":
        """jinja2's sandbox for a template; blocks, and so does the engine's `render`."""
        return SandboxedEngine(self.boundless, source)

    async def in_turn(self, render: Callable[[], Rendered]) -> Rendered:
        """Do what a `SandboxedEngine` takes part in, one after the other, beside the loop."""
        return await asyncio.get_running_loop().run_in_executor(self.boundless.thread, render)

    def rest(self) -> None:
        """No template needs the sandbox now; it starts again when one does."""
        self.boundless.stop()

    def observe(self) -> None:
        """Bring the metrics of both up to date."""
        self.encoder.observe()
        self.boundless.observe()

    def close(self) -> None:
        """End both."""
        self.encoder.close()
        self.boundless.close()


class SandboxedEngine:
    """A template's jinja2 engine, in a process that is killed when it takes too long. Blocks."""

    def __init__(self, process: HelperProcess, source: str) -> None:
        self._process = process
        self._source = source
        try:
            self._ask(partial(jobs.open_template, source))
        except PromptError as error:
            raise ValueError(str(error)) from error

    def render(self, context: jobs.Context, now: datetime | None) -> str:
        """As `catenary_tokenizers.template.Engine`."""
        return self._ask(partial(jobs.render, self._source, context, now)).decode("utf-8", "surrogatepass")

    def _ask(self, job: jobs.Job) -> bytes:
        try:
            return self._process.ask(job, RENDER_S)
        except HelperLateError as error:
            raise TemplateLimitError(f"the template takes longer than {RENDER_S:g} s") from error
        except HelperLostError as error:
            raise PromptError("the template ended the process that renders it") from error
        except RecursionError as error:
            raise PromptError("messages or tools are nested too deeply") from error
