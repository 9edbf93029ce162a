"""From a request to a prompt, as the loop gets to it; and where a session's prompt leaves its last one."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import structlog
from catenary_protocols.errors import CatenaryError, ErrorInfo, RequestError
from catenary_runtime import telemetry
from catenary_tokenizers.divergence import PromptWatch

from catenary_tokenizer_service.egress.stream import AnswerStream
from catenary_tokenizer_service.ingress.prompts import Prompt, prepare
from catenary_tokenizer_service.metrics import DIVERGED, ENCODE, RENDER
from catenary_tokenizer_service.models import ServedModel
from catenary_tokenizer_service.serving import Serving
from catenary_tokenizer_service.turn import Phase, Turn

log = structlog.get_logger()
Work = Callable[[], Coroutine[Any, Any, None]]


class Preparing:
    """Gives turns their prompts; none waits for another's helper process."""

    def __init__(
        self,
        serving: Serving,
        watch_bytes: int,
        prepared: Callable[[Turn], None],
        failed: Callable[[Turn, ErrorInfo], None],
    ) -> None:
        self._serving = serving
        self._tell = prepared
        self._failed = failed
        self._prompts = PromptWatch(watch_bytes)
        self._later: asyncio.Queue[Work] = asyncio.Queue()

    def take(self, turn: Turn) -> None:
        """Make its prompt when the loop gets to it and its model is loaded."""
        self.later(partial(self._prepare, turn))

    def later(self, work: Work) -> None:
        """Do this when the loop gets to it."""
        self._later.put_nowait(work)

    async def run(self) -> None:
        """Do what was put off, until cancelled: the loop breathes after each."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                work = await self._later.get()
                tasks.create_task(work())
                await asyncio.sleep(0)

    async def _prepare(self, turn: Turn) -> None:
        try:
            model = await self._serving.model(turn.request.model)
            if turn.phase is not Phase.PREPARING:
                return
            prompt = await prepare(model, turn.request, self._prompts.last(turn.request.session))
            if turn.phase is Phase.PREPARING:
                self._prepared(turn, model, prompt)
        except CatenaryError as error:
            self._failed(turn, error.info)
        except RecursionError:
            self._failed(turn, RequestError("a schema is nested too deeply", field="tools").info)

    def _prepared(self, turn: Turn, model: ServedModel, prompt: Prompt) -> None:
        request = turn.request
        turn.prompt, turn.card = prompt, model.card.card
        parent = telemetry.extract(turn.trace)
        telemetry.record("render", parent, prompt.began, prompt.rendered)
        telemetry.record("encode", parent, prompt.rendered, prompt.encoded)
        RENDER.observe(prompt.rendered - prompt.began)
        ENCODE.observe(prompt.encoded - prompt.rendered)
        self._watch(turn, prompt, model.card.block_size)
        conversation = request.conversation
        turn.stream = AnswerStream(
            model,
            turn.turn_id,
            turn.policy,
            tools=conversation.tools,
            prompt=prompt.ids,
            thinking=prompt.thinking,
            stop=request.sampling.stop,
            one_call=not conversation.parallel_calls,
            choice=request.choice,
            plain=conversation.plain,
            likely=request.sampling.logprobs is not None,
        )
        self._tell(turn)

    def _watch(self, turn: Turn, prompt: Prompt, block_size: int) -> None:
        """Tell where a session's prompt leaves its last one: its cached blocks end there."""
        left = self._prompts.observe(turn.request.session, prompt.seen, block_size)
        if left is not None:
            DIVERGED.labels(cause=left.cause).inc()
            log.info(
                "prompt.diverged",
                turn_id=turn.turn_id,
                session=turn.request.session,
                cause=left.cause,
                message=left.message,
                role=left.role,
                token=left.token,
                blocks_lost=left.blocks_lost,
            )
            if turn.request.explain:
                turn.diverged = msgspec.json.encode(left).decode()
