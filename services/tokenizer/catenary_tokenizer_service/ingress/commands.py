"""`turn.<tokenizer>`: what frontends ask of us. Each command is answered on its reply subject."""

from collections.abc import Callable
from functools import partial

import structlog
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import (
    Attach,
    Attached,
    CancelTurn,
    CountTokens,
    Detokenize,
    Message,
    Refused,
    TokenCount,
    TokenText,
    TurnRequest,
    TurnTaken,
)
from catenary_protocols.errors import CatenaryError, ErrorInfo
from catenary_protocols.ids import TurnKey
from catenary_runtime.bus import Bus
from catenary_runtime.presence import Presence
from catenary_tokenizers import unpack
from nats.aio.msg import Msg

from catenary_tokenizer_service.core.generated import TOKEN_BYTES
from catenary_tokenizer_service.ingress.prompts import check_known, whole
from catenary_tokenizer_service.ingress.prompts import encode as encode_prompt
from catenary_tokenizer_service.serving import Serving
from catenary_tokenizer_service.turns import Turns

log = structlog.get_logger()
Command = TurnRequest | CancelTurn | Attach | CountTokens | Detokenize
_command: Decoder[Command] = Decoder(Command)  # type: ignore[arg-type]
TRACE_HEADERS = ("traceparent", "tracestate")


class Commands:
    """Handles one subject."""

    def __init__(
        self,
        bus: Bus,
        presence: Presence,
        turns: Turns,
        serving: Serving,
        *,
        max_turns: int,
        draining: Callable[[], bool],
    ) -> None:
        self._bus = bus
        self._presence = presence
        self._turns = turns
        self._serving = serving
        self._max_turns = max_turns
        self._draining = draining

    def handle(self, msg: Msg) -> None:
        """One command."""
        command = _command(msg.data)
        match command:
            case TurnRequest():
                self._answer(msg, self._take(command, msg.headers or {}))
            case CancelTurn():
                self._cancel(command)
            case Attach():
                self._attach(command, msg)
            case CountTokens():
                self._turns.preparing.later(partial(self._count, msg, command))
            case Detokenize():
                self._turns.preparing.later(partial(self._text, msg, command))

    def _answer(self, msg: Msg, message: Message) -> None:
        if msg.reply:
            self._bus.publish(msg.reply, encode(message))

    def _take(self, request: TurnRequest, headers: dict[str, str]) -> Message:
        taken = TurnTaken(turn=request.turn, tokenizer=self._presence.instance, incarnation=self._presence.incarnation)
        if request.turn.turn_id in self._turns.live:  # asked twice: we have it
            return taken
        if self._draining():
            return self._refuse(request.turn, ErrorInfo(code="draining", message="this tokenizer is stopping"))
        if len(self._turns.live) >= self._max_turns:
            return self._refuse(
                request.turn, ErrorInfo(code="overloaded", message="too many live turns", retry_after=1.0)
            )
        try:
            self._serving.check(request.model)
        except CatenaryError as error:
            return self._refuse(request.turn, error.info)
        trace = {name: headers[name] for name in TRACE_HEADERS if name in headers}
        self._turns.accept(request, trace)
        return taken

    @staticmethod
    def _refuse(turn: TurnKey, error: ErrorInfo) -> Refused:
        return Refused(turn=turn, error=error)

    def _cancel(self, command: CancelTurn) -> None:
        turn = self._turns.live.get(command.turn.turn_id)
        if turn is not None:
            self._turns.cancel(turn, command.reason or "client gone")
            turn.confirmed = turn.log.last  # whoever cancels wants no more of its events

    def _attach(self, command: Attach, msg: Msg) -> None:
        turn = self._turns.live.get(command.turn_id)
        if turn is None:
            return  # another tokenizer may have the log
        if command.look:
            here = self._presence.instance
            self._answer(msg, Attached(turn=turn.key, tokenizer=here, last=turn.log.last, request=turn.request))
            return
        turn.frontend = command.frontend
        turn.orphaned_at = 0.0
        self._answer(msg, Attached(turn=turn.key, tokenizer=self._presence.instance, last=turn.log.last))
        self._turns.outbox.again(turn, command.after)

    async def _count(self, msg: Msg, command: CountTokens) -> None:
        try:
            model = await self._serving.model(command.model)
            ids = (await encode_prompt(model, whole(model, command.conversation, command))).ids
        except CatenaryError as error:
            self._answer(msg, Refused(error=error.info))
        else:
            self._answer(msg, TokenCount(tokens=len(ids) // TOKEN_BYTES, ids=ids if command.ids else b""))

    async def _text(self, msg: Msg, command: Detokenize) -> None:
        try:
            model = await self._serving.model(command.model)
            check_known(model, unpack(command.ids), "tokens")
            text = model.tokenizer.decode(command.ids)
        except CatenaryError as error:
            self._answer(msg, Refused(error=error.info))
        else:
            self._answer(msg, TokenText(text=text))
