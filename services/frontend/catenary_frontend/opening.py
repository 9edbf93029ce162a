"""A request becomes a turn, or several, and an exchange that writes the answer. A turn that runs can be joined."""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from catenary_protocols.apis.api import Api, Draft, Encoder
from catenary_protocols.apis.session import ends_session, of_subagent, said, session_of
from catenary_protocols.bus.codec import encode_json
from catenary_protocols.bus.messages import TurnRequest
from catenary_protocols.bus.tool_plane import TurnFact
from catenary_protocols.ids import TurnKey, new_turn_id
from catenary_runtime import semconv, telemetry
from msgspec import structs
from starlette.requests import Request
from starlette.types import Scope

from catenary_frontend.account import Account
from catenary_frontend.auth import Caller, Lease
from catenary_frontend.choices import Choices
from catenary_frontend.edge import Edge, raw_send, request_id_of
from catenary_frontend.exchange import EXPLAIN_HEADER, Exchange, Keep, Pace
from catenary_frontend.numbered import Numbered
from catenary_frontend.outlet import Outlet
from catenary_frontend.turn import OpenTurn

D = TypeVar("D", bound=Draft)
LONGEST_NOTE = 1 << 20
"""Bytes of a request that travel beside its conversation, so that another frontend can go on with the answer."""


class Memory(Protocol[D]):
    """What an API keeps from one turn to the next."""

    async def recall(self, draft: D, tenant: str) -> D:
        """The draft with what went before it; raises `CatenaryError`."""

    def keep(self, draft: D, tenant: str, turn_id: str) -> Keep | None:
        """Where the whole answer goes, if it is to be kept."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[D]):
    """A request, and all that is known of it before its turn begins.

    Attributes:
        model: what its model is called in the mesh; the answer has the client's own name for it.
        body: as it was read.
        lease: the place of its turns on its key's account.
        resumable: its client may leave the stream and come back to it.
    """

    draft: D
    model: str
    body: bytes
    caller: Caller
    began: float
    lease: Lease | None = None
    resumable: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A turn that runs at `owner`, or has run there not long ago, and what tells of it."""

    turn: TurnRequest
    owner: str
    encoder: Encoder


class Opening(Generic[D]):
    """Opens exchanges of one API."""

    def __init__(self, api: Api[D], edge: Edge, memory: Memory[D] | None) -> None:
        self._api = api
        self._edge = edge
        self._memory = memory

    def fresh(self, request: Request, asked: Asked[D], scope: Scope) -> Exchange:
        """The exchange of new turns."""
        now = time.time()
        turn_id = new_turn_id(int(now * 1000), secrets.token_bytes(10))
        turn = self._turn_of(asked, turn_id, request.headers, now)
        encoder = self._api.encoder(asked.draft, turn_id, int(now))
        if asked.resumable and turn.resumable:
            encoder = Numbered(encoder)
        turns: list[OpenTurn] = []
        exchange, headers = self._exchange(request, asked, scope, Running(turn, "", encoder), turns)
        choices = Choices(exchange, turn.choices, self._stop(turns))
        for one in _each(turn):
            client = exchange if turn.choices == 1 else choices.client_of(one.choice)
            turns.append(self._edge.turns.open(one, client, headers))
        return exchange

    def joined(self, request: Request, asked: Asked[D], scope: Scope, running: Running) -> Exchange:
        """The exchange of a turn that was another exchange's till now, as a stream."""
        asked = replace(asked, draft=replace(asked.draft, stream=True))
        turns: list[OpenTurn] = []
        exchange, headers = self._exchange(request, asked, scope, running, turns)
        here = structs.replace(
            running.turn,
            frontend=self._edge.instance,
            frontend_incarnation=self._edge.presence.incarnation,
        )
        turns.append(self._edge.turns.join(here, running.owner, exchange, headers))
        return exchange

    def _exchange(
        self, request: Request, asked: Asked[D], scope: Scope, running: Running, turns: list[OpenTurn]
    ) -> tuple[Exchange, dict[str, str]]:
        """The exchange, and the trace's headers. `turns` will be those that it stops."""
        turn = running.turn
        edge, draft = self._edge, asked.draft
        span = telemetry.start(
            "request",
            telemetry.extract(request.headers),
            _attributes(turn, stream=draft.stream),
            kind=telemetry.SpanKind.SERVER,
        )
        account = Account(
            turn_id=turn.turn.turn_id,
            api=self._api.name,
            model=draft.model,
            session=turn.session,
            stream=draft.stream,
            request_id=request_id_of(scope),
            began=asked.began,
            span=span,
            tell=self._tell,
            passed_over=draft.passed_over,
            lease=asked.lease,
        )
        settings = edge.settings
        exchange = Exchange(
            api=self._api,
            encoder=running.encoder,
            outlet=Outlet(raw_send(scope), edge.spawn, settings.slow_reader_bytes),
            account=account,
            pace=Pace(settings.hold_s, settings.heartbeat_s, settings.resume_s),
            stop=self._stop(turns),
            keep=self._keep(asked, turn.turn.turn_id),
            resumable=turn.resumable,
        )
        return exchange, telemetry.headers_of(span)

    def _turn_of(self, asked: Asked[D], turn_id: str, headers: Mapping[str, str], now: float) -> TurnRequest:
        draft = asked.draft
        wanted = (asked.resumable and draft.choices == 1) or self._keep(asked, turn_id) is not None
        resumable = draft.stream and len(asked.body) <= LONGEST_NOTE and wanted
        return TurnRequest(
            turn=TurnKey(turn_id=turn_id),
            frontend=self._edge.instance,
            frontend_incarnation=self._edge.presence.incarnation,
            model=asked.model,
            session=session_of(draft, asked.caller.tenant, headers),
            conversation=draft.conversation,
            sampling=draft.sampling,
            arrived_at=now,
            hints=draft.hints,
            within=draft.within,
            tenant=asked.caller.tenant,
            salt=asked.caller.tenant,
            api=self._api.name,
            run_tools=draft.run_tools,
            answer_schema=draft.answer_schema,
            truncate=draft.truncate,
            choices=draft.choices,
            resumable=resumable,
            note=asked.body if resumable else b"",
            explain=said(headers, EXPLAIN_HEADER.decode()),
            session_final=draft.session_final or ends_session(headers),
            subagent=of_subagent(headers),
        )

    def _keep(self, asked: Asked[D], turn_id: str) -> Keep | None:
        return self._memory.keep(asked.draft, asked.caller.tenant, turn_id) if self._memory else None

    def _stop(self, turns: list[OpenTurn]) -> Callable[[str], None]:
        def stop(reason: str) -> None:
            for turn in turns:
                self._edge.turns.cancel(turn, reason)

        return stop

    def _tell(self, fact: TurnFact) -> None:
        bus = self._edge.bus
        bus.publish(bus.subjects.to("observe", what=fact.what), encode_json(fact))


def _each(request: TurnRequest) -> Iterator[TurnRequest]:
    """A turn for each choice. Without a seed of the client's, each gets one of its own: they are to differ."""
    yield request
    sampling = request.sampling
    first = sampling.seed if sampling.seed is not None else secrets.randbits(31)
    for choice in range(1, request.choices):
        yield structs.replace(
            request,
            turn=TurnKey(turn_id=new_turn_id(int(request.arrived_at * 1000), secrets.token_bytes(10))),
            choice=choice,
            sampling=structs.replace(sampling, seed=(first + choice) % 2**31),
        )


def _attributes(request: TurnRequest, *, stream: bool) -> dict[str, str | int | float | bool]:
    sampling = request.sampling
    known: dict[str, str | int | float | bool | None] = {
        semconv.OPERATION: "chat",
        semconv.PROVIDER: "catenary",
        semconv.API: request.api,
        semconv.TURN_ID: request.turn.turn_id,
        semconv.CONVERSATION_ID: request.session,
        semconv.REQUEST_MODEL: request.model,
        semconv.REQUEST_STREAM: stream,
        semconv.REQUEST_MAX_TOKENS: sampling.max_tokens,
        semconv.REQUEST_TEMPERATURE: sampling.temperature,
        semconv.REQUEST_TOP_P: sampling.top_p,
        semconv.REQUEST_SEED: sampling.seed,
    }
    return {name: value for name, value in known.items() if value is not None}
