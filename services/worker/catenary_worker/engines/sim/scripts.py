"""What a test tells the simulator to say.

A script is `{id, match, texts, pieces, finish, cached_tokens, fault: {after, error}, times}`: the next turns whose
prompt contains `match` say its texts, one after the other and then from the first again. An attempt of a turn that has
its text already keeps it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from catenary_protocols.errors import ErrorInfo, RequestError

from catenary_worker.engines.paged import Ended
from catenary_worker.engines.sim.codec import Codec
from catenary_worker.engines.sim.voice import Recital

_REMEMBERED = 4096


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The turn fails after so many pieces, with this message."""

    after: Annotated[int, msgspec.Meta(ge=0)]
    error: str = "scripted fault"


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See the module.

    Attributes:
        id: replaces an earlier script of this id.
        match: part of the prompt's text, control tokens spelled out; "" matches every prompt.
        texts: what is said, special tokens spelled.
        pieces: characters that one step gives, or "token"; special tokens are never cut.
        finish: how it ends.
        cached_tokens: what is reported as reused, whatever really was.
        times: turns it is good for; None: until it is deleted.
    """

    id: str
    texts: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    match: str = ""
    pieces: Annotated[int, msgspec.Meta(ge=1)] | Literal["token"] = "token"
    finish: Literal["stop", "length"] = "stop"
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    fault: Fault | None = None
    times: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ScriptBook:
    """The scripts in force, first come first served."""

    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}
        self._uses: dict[str, int] = {}
        self._given: OrderedDict[str, tuple[Script, str]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._scripts) or bool(self._given)

    def add(self, spec: Mapping[str, object]) -> Script:
        """Take a script. Raises `RequestError` that names the wrong field."""
        try:
            script = msgspec.convert(spec, Script)
        except msgspec.ValidationError as error:
            _, _, path = str(error).partition(" - at `$.")
            raise RequestError(f"script: {error}", code="invalid_value", field=path.rstrip("`") or "script") from error
        self._scripts[script.id] = script
        self._uses[script.id] = 0
        return script

    def delete(self, name: str) -> bool:
        """Forget a script; False if there is none of this id."""
        self._uses.pop(name, None)
        return self._scripts.pop(name, None) is not None

    def text_for(self, turn_id: str, prompt: str) -> tuple[Script, str] | None:
        """The script and the text that this turn says, if one matches."""
        if turn_id in self._given:
            return self._given[turn_id]
        for script in self._scripts.values():
            if script.match in prompt:
                return self._give(turn_id, script)
        return None

    def _give(self, turn_id: str, script: Script) -> tuple[Script, str]:
        uses = self._uses[script.id]
        self._uses[script.id] = uses + 1
        if script.times is not None and uses + 1 >= script.times:
            self.delete(script.id)
        given = script, script.texts[uses % len(script.texts)]
        self._given[turn_id] = given
        if len(self._given) > _REMEMBERED:
            self._given.popitem(last=False)
        return given


def recite(script: Script, text: str, codec: Codec, end: int | None) -> Recital:
    """A script's text as a voice; `end` is the id that ends a message."""
    if script.pieces == "token":
        pieces = [[token] for token in codec.write(text)]
    else:
        pieces = [list(piece) for piece in codec.pieces(text, script.pieces)]
    if script.fault is not None and script.fault.after <= len(pieces):
        failed = ErrorInfo(code="engine_failed", message=script.fault.error)
        return Recital(pieces[: script.fault.after], Ended("error", failed))
    if script.finish == "stop" and end is not None:
        pieces = [*pieces[:-1], [*(pieces[-1] if pieces else []), end]]
    return Recital(pieces, Ended(script.finish))
