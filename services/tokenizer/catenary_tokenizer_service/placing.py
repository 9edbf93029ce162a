"""Where a turn runs: asks one router, and the next one when that one is silent.

The router answers within 250 ms and repeats `PlaceQueued` each second. Silence for the death limit, nobody listening,
or a new incarnation of the router: the same `PlaceTurn` goes to the next live router, and a `CancelPlace` to the old
one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CancelPlace, Placement, PlaceQueued, PlaceTurn, Refused
from catenary_protocols.errors import ErrorInfo
from catenary_runtime import telemetry
from catenary_runtime.bus import Ask, Bus
from catenary_runtime.presence import Peer, Presence
from catenary_runtime.rendezvous import ranked
from nats.aio.msg import Msg

from catenary_tokenizer_service.ingress.prompts import Prompt, hashes_of
from catenary_tokenizer_service.models import Models
from catenary_tokenizer_service.turn import Turn

log = structlog.get_logger()
Answer = Placement | PlaceQueued | Refused
_answer: Decoder[Answer] = Decoder(Answer)  # type: ignore[arg-type]  # a union of types is no type to mypy
SESSIONS = 8192


def _hashes(turn: Turn, prompt: Prompt, block_size: int) -> bytes:
    """Of the blocks that its worker will compute or have: those of a moved turn hold what it generated too."""
    if not turn.generated.count:
        return prompt.hashes
    ids = prompt.ids + bytes(turn.generated.ids)
    return hashes_of(ids, block_size, prompt.salt, prompt.images, prompt.image_at)


@dataclass(slots=True)
class _Asked:
    turn: Turn
    message: PlaceTurn
    span: telemetry.Span
    router: str = ""
    ask: Ask | None = None
    heard_at: float = 0.0
    tried: tuple[str, ...] = ()


@dataclass(slots=True)
class PlacingEvents:
    """What comes of it."""

    on_queued: Callable[[Turn, int], None]
    on_placed: Callable[[Turn, Placement], None]
    on_refused: Callable[[Turn, ErrorInfo], None]


class Placer:
    """Turns that wait for a placement."""

    def __init__(self, bus: Bus, presence: Presence, events: PlacingEvents, no_router_s: float) -> None:
        self._bus = bus
        self._presence = presence
        self._events = events
        self._no_router_s = no_router_s
        self._asked: dict[str, _Asked] = {}
        self._last_worker: OrderedDict[str, str] = OrderedDict()

    def place(self, turn: Turn, models: Models) -> None:
        """Ask for a placement of the turn's current attempt."""
        model = models.get(turn.card)
        if turn.prompt is None or model is None:
            raise RuntimeError(f"turn {turn.turn_id} is placed before it is prepared")
        now = asyncio.get_running_loop().time()
        turn.placing_since = now
        request, card = turn.request, model.card
        message = PlaceTurn(
            turn=turn.key,
            tokenizer=self._presence.instance,
            tokenizer_incarnation=self._presence.incarnation,
            model=request.model,
            card=card.card,
            block_size=card.block_size,
            hashes=_hashes(turn, turn.prompt, card.block_size),
            prompt_tokens=turn.prompt.tokens + turn.generated.count,
            session=request.session,
            arrived_at=request.arrived_at,
            max_tokens=turn.prompt.max_tokens - turn.generated.count,
            hints=request.hints,
            tenant=request.tenant,
            not_on=turn.not_on,
            last_worker=self._last_worker.get(request.session, ""),
            deadline=request.deadline,
            within=request.within,
            explain=request.explain,
        )
        span = telemetry.start("place", telemetry.extract(turn.trace))
        asked = self._asked[turn.turn_id] = _Asked(turn, message, span)
        self._ask_next(asked, now)

    def forget(self, turn: Turn) -> None:
        """The turn does not want a placement any more."""
        asked = self._asked.pop(turn.turn_id, None)
        if asked is not None:
            self._let_go(asked, cancel=True)
            asked.span.end()

    def router_down(self, router: Peer) -> None:
        """Its turns go to the next one."""
        now = asyncio.get_running_loop().time()
        for asked in list(self._asked.values()):
            if asked.router == router.instance:
                self._ask_next(asked, now)

    def tick(self, now: float) -> None:
        """Leave routers that are silent; give up where there is none."""
        for asked in list(self._asked.values()):
            if not asked.router:
                self._ask_next(asked, now)
            elif now - asked.heard_at > self._bus.death_limit and not self._presence.cut_off:
                log.warning("router.silent", router=asked.router, turn_id=asked.turn.turn_id)
                self._ask_next(asked, now)

    def _ask_next(self, asked: _Asked, now: float) -> None:
        self._let_go(asked, cancel=True)
        live = {peer.instance: peer for peer in self._presence.live("router") if peer.takes_work}
        order = ranked(asked.message.model, live)
        router = next((one for one in order if one not in asked.tried), order[0] if order else "")
        if not router:
            self._give_up_late(asked, now)
            return
        asked.router, asked.heard_at = router, now
        asked.tried = (*asked.tried, router) if len(asked.tried) < len(live) else (router,)
        asked.ask = self._bus.ask(
            self._bus.subjects.to("place", router=router),
            encode(asked.message),
            lambda msg: self._answered(asked, router, msg),
            lambda: self._nobody(asked, router),
            headers=telemetry.headers_of(asked.span) or asked.turn.trace,
        )

    def _give_up_late(self, asked: _Asked, now: float) -> None:
        asked.router = ""
        if now - asked.turn.placing_since > self._no_router_s:
            self._done(asked)
            error = ErrorInfo(code="no_worker", message="no router is there to place the turn", retry_after=1.0)
            self._events.on_refused(asked.turn, error)

    def _nobody(self, asked: _Asked, router: str) -> None:
        if asked.router != router:
            return
        if self._bus.fresh:
            asked.router = ""  # it may not have subscribed again yet: `tick` asks anew
            self._let_go(asked, cancel=False)
            return
        self._presence.leave("router", router)  # its listeners call `router_down`
        if asked.router == router:
            self._ask_next(asked, asyncio.get_running_loop().time())

    def _answered(self, asked: _Asked, router: str, msg: Msg) -> None:
        answer = _answer(msg.data)
        if asked.router != router or answer.turn != asked.message.turn:
            return
        asked.heard_at = asyncio.get_running_loop().time()
        match answer:
            case PlaceQueued():
                self._events.on_queued(asked.turn, answer.position)
            case Placement():
                self._remember(asked.turn.request.session, answer.worker)
                self._done(asked)
                self._events.on_placed(asked.turn, answer)
            case Refused():
                self._done(asked)
                self._events.on_refused(asked.turn, answer.error)

    def _done(self, asked: _Asked) -> None:
        self._asked.pop(asked.turn.turn_id, None)
        self._let_go(asked, cancel=False)
        asked.span.end()

    def _let_go(self, asked: _Asked, *, cancel: bool) -> None:
        if asked.ask is not None:
            asked.ask.close()
            asked.ask = None
            if cancel and asked.router:
                subject = self._bus.subjects.to("place", router=asked.router)
                self._bus.publish(subject, encode(CancelPlace(turn=asked.message.turn)))

    def _remember(self, session: str, worker: str) -> None:
        self._last_worker[session] = worker
        self._last_worker.move_to_end(session)
        if len(self._last_worker) > SESSIONS:
            self._last_worker.popitem(last=False)
