"""Speculative prefill: the next turn's prompt, as far as it is certain, computed while its session is away.

Only for a turn that asked (`speculative_prefill`), and only where the cache ends short of what is certain: the mesh ran
the turn's calls and has their results; or the answer comes back without the reasoning that stands in the cache. The
prefill is a run of one token at the turn's own worker, under the same salt, at the lowest priority. Nobody is told of
its tokens; its owner cancels it when the real turn is here. It carries no reply subject: where nobody listens, nothing
is lost.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
from catenary_protocols.bus.codec import encode
from catenary_protocols.bus.messages import CancelTurn, LiveTurn, Retention, RunTurn, TurnRequest, TurnTokens
from catenary_protocols.bus.tool_plane import ToolResult
from catenary_protocols.conversation import Hints, Message, Sampling, TextPart, ToolMessage, UserMessage
from catenary_protocols.errors import CatenaryError
from catenary_protocols.ids import TurnKey, new_turn_id, turn_of_call
from catenary_runtime.bus import LONGEST_MESSAGE, Bus
from catenary_runtime.presence import Presence

from catenary_tokenizer_service.core.echo import Echo, echoes_reasoning
from catenary_tokenizer_service.core.generated import TOKEN_BYTES
from catenary_tokenizer_service.ingress.prompts import Prompt, whole
from catenary_tokenizer_service.ingress.prompts import encode as encode_prompt
from catenary_tokenizer_service.metrics import SPECULATED, SPECULATED_TOKENS
from catenary_tokenizer_service.models import Models, ServedModel
from catenary_tokenizer_service.turn import Turn

Cause = Literal["results", "reasoning"]
LOWEST = Hints(priority=-(2**31), strict_priority=-(2**31))
WAIT_S = 60.0
"""So long a turn's results are waited for, and a prefill may take."""
PROBES = ("A", "?")
"""Two user messages that begin alike in nothing: what their prompts share does not depend on what the user says."""


@dataclass(frozen=True, slots=True)
class _End:
    """What a turn left behind.

    Attributes:
        computed: ids that its worker has computed: prompt and answer.
        at: loop time.
    """

    echo: Echo
    prompt: Prompt
    computed: bytes
    retention: Retention
    at: float


@dataclass(slots=True)
class _Watched:
    """A turn whose next one may be prepared; `results` of its calls by key."""

    turn: Turn
    results: dict[str, ToolResult] = field(default_factory=dict)
    end: _End | None = None


@dataclass(frozen=True, slots=True)
class _Prefill:
    """One that is under way."""

    key: TurnKey
    worker: str
    cause: Cause
    tokens: int
    began: float


class Speculation:
    """See the module. `later` runs work when the loop gets to it."""

    def __init__(
        self,
        bus: Bus,
        presence: Presence,
        models: Models,
        later: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
    ) -> None:
        self._bus = bus
        self._presence = presence
        self._models = models
        self._later = later
        self._watched: dict[str, _Watched] = {}
        self._sessions: dict[str, _Watched] = {}
        self._prefills: dict[str, _Prefill] = {}

    # --- what happens to turns ----------------------------------------------------------------------------------

    def begun(self, turn: Turn) -> None:
        """The real turn is here: what was prepared for it has come as far as it could."""
        session = turn.request.session
        if (before := self._sessions.pop(session, None)) is not None:
            self._watched.pop(before.turn.turn_id, None)
        if (prefill := self._prefills.pop(session, None)) is not None:
            self._cancel(prefill, "cancelled")
        request = turn.request
        if request.hints.speculative_prefill and request.choices == 1 and not request.conversation.plain:
            self._watched[turn.turn_id] = self._sessions[session] = _Watched(turn)

    def ended(self, turn: Turn, retention: Retention) -> None:
        """The turn has ended well; its prompt and what it generated are in its worker's cache."""
        watched = self._watched.get(turn.turn_id)
        if watched is None or turn.prompt is None:
            return
        echo = Echo(turn.log.events)
        may_help = echo.reasons if not echo.calls else all(call.run_by == "mesh" for call in echo.calls)
        if not echo.whole or not may_help:
            self._forget(watched)
            return
        computed = turn.prompt.ids + bytes(turn.generated.ids)
        watched.end = _End(echo, turn.prompt, computed, retention, asyncio.get_running_loop().time())
        self._try(watched, watched.end)

    def result(self, result: ToolResult) -> None:
        """A result is on the bus; the first of a call counts."""
        watched = self._watched.get(turn_of_call(result.key))
        if watched is not None and not result.late:
            watched.results.setdefault(result.key, result)
            if watched.end is not None:
                self._try(watched, watched.end)

    def dropped(self, turn: Turn) -> None:
        """The turn failed or was cancelled."""
        if (watched := self._watched.get(turn.turn_id)) is not None:
            self._forget(watched)

    # --- what comes of prefills ---------------------------------------------------------------------------------

    def tokens(self, item: TurnTokens) -> None:
        """Something of a turn that is none."""
        session, prefill = next(
            ((session, one) for session, one in self._prefills.items() if one.key.turn_id == item.turn_id), ("", None)
        )
        if prefill is None:
            return
        if item.cached is not None:
            SPECULATED_TOKENS.inc(prefill.tokens - item.cached)
        if item.finish:
            del self._prefills[session]
            SPECULATED.labels(cause=prefill.cause, outcome="failed" if item.finish == "error" else "done").inc()

    def live(self) -> tuple[LiveTurn, ...]:
        """What our beat says of them, else their workers would take them for forgotten."""
        return tuple(LiveTurn(turn_id=one.key.turn_id, at=one.worker) for one in self._prefills.values())

    def worker_down(self, worker: str) -> None:
        """Its prefills died with it."""
        for session in [session for session, one in self._prefills.items() if one.worker == worker]:
            SPECULATED.labels(cause=self._prefills.pop(session).cause, outcome="failed").inc()

    def tick(self, now: float) -> None:
        """Nothing is waited for too long."""
        for watched in [one for one in self._watched.values() if one.end and now - one.end.at > WAIT_S]:
            self._forget(watched)
        for session in [session for session, one in self._prefills.items() if now - one.began > WAIT_S]:
            self._cancel(self._prefills.pop(session), "failed")

    # --- inside -------------------------------------------------------------------------------------------------

    def _forget(self, watched: _Watched) -> None:
        self._watched.pop(watched.turn.turn_id, None)
        if self._sessions.get(watched.turn.request.session) is watched:
            del self._sessions[watched.turn.request.session]

    def _current(self, watched: _Watched) -> bool:
        return self._sessions.get(watched.turn.request.session) is watched

    def _try(self, watched: _Watched, end: _End) -> None:
        if self._current(watched) and all(call.key in watched.results for call in end.echo.calls):
            self._watched.pop(watched.turn.turn_id, None)
            self._later(partial(self._prepare, watched, end))

    async def _prepare(self, watched: _Watched, end: _End) -> None:
        model = self._models.get(watched.turn.card)
        if not self._current(watched) or model is None:
            return
        cause: Cause = "results" if end.echo.calls else "reasoning"
        try:
            ids = await _certain(watched, end, model)
        except CatenaryError:  # the template refuses what it was not asked: the real turn will tell
            ids = b""
        fresh = len(ids) - _common(ids, end.computed)
        if fresh < model.card.block_size * TOKEN_BYTES or len(ids) >= model.card.context * TOKEN_BYTES:
            SPECULATED.labels(cause=cause, outcome="useless").inc()
            self._forget(watched)
        elif self._current(watched):
            self._forget(watched)
            self._send(watched.turn, end, ids, cause)

    def _send(self, turn: Turn, end: _End, ids: bytes, cause: Cause) -> None:
        key = TurnKey(turn_id=new_turn_id(int(time.time() * 1000), secrets.token_bytes(10)))
        message = RunTurn(
            turn=key,
            tokenizer=self._presence.instance,
            tokenizer_incarnation=self._presence.incarnation,
            model=turn.request.model,
            card=turn.card,
            prompt=ids,
            sampling=Sampling(max_tokens=1),
            hints=LOWEST,
            salt=end.prompt.salt,
            images=end.prompt.images,
            image_at=end.prompt.image_at,
            session=turn.request.session,
            retention=end.retention,
        )
        data = encode(message)
        if len(data) > LONGEST_MESSAGE:
            SPECULATED.labels(cause=cause, outcome="useless").inc()
            return
        now = asyncio.get_running_loop().time()
        self._prefills[turn.request.session] = _Prefill(key, turn.worker, cause, len(ids) // TOKEN_BYTES, now)
        self._bus.publish(self._bus.subjects.to("do", worker=turn.worker), data)

    def _cancel(self, prefill: _Prefill, outcome: str) -> None:
        SPECULATED.labels(cause=prefill.cause, outcome=outcome).inc()
        message = CancelTurn(turn=prefill.key, reason="the real turn is here")
        self._bus.publish(self._bus.subjects.to("do", worker=prefill.worker), encode(message))


async def _certain(watched: _Watched, end: _End, model: ServedModel) -> bytes:
    """Ids of the next prompt as far as they are certain; raises `CatenaryError`."""
    request = watched.turn.request
    conversation = request.conversation
    answer = end.echo.message(request.api, reasoning=echoes_reasoning(conversation, request.api))

    async def prompt_with(*more: Message) -> bytes:
        following = msgspec.structs.replace(conversation, messages=(*conversation.messages, answer, *more))
        return (await encode_prompt(model, whole(model, following, request), end.prompt.scope)).ids

    if end.echo.calls:
        return await prompt_with(*(_answer(call.id, watched.results[call.key], request) for call in end.echo.calls))
    first, second = [await prompt_with(UserMessage(parts=(TextPart(text=probe),))) for probe in PROBES]
    return first[: _common(first, second)]


def _answer(call_id: str, result: ToolResult, request: TurnRequest) -> ToolMessage:
    """As the client will send it; only one of the APIs has a word for a tool that failed."""
    text = result.output or (result.error.message if result.error else "")
    failed = result.error is not None and request.api == "messages"
    return ToolMessage(call_id=call_id, parts=(TextPart(text=text),), name=result.tool, is_error=failed)


def _common(one: bytes, other: bytes) -> int:
    """Bytes of the whole tokens that both begin with."""
    low, high = 0, min(len(one), len(other)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        if one[: middle * TOKEN_BYTES] == other[: middle * TOKEN_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low * TOKEN_BYTES
