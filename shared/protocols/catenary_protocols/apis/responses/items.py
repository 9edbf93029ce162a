"""Input items → messages of a conversation. What the model did in one go stands in one assistant message, in order."""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from catenary_protocols.apis.reading import read, wrong
from catenary_protocols.apis.responses.answer import ItemList
from catenary_protocols.apis.responses.request import (
    ITEMS,
    Content,
    Contents,
    CustomCallIn,
    FunctionCallIn,
    ItemIn,
    ItemKind,
    MessageIn,
    OutputIn,
    ReasoningIn,
    ReferenceIn,
)
from catenary_protocols.apis.responses.tools import Toolbox, wrapped
from catenary_protocols.apis.sealed import Sealed
from catenary_protocols.call_ids import bare
from catenary_protocols.conversation import (
    AssistantMessage,
    CallPart,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolMessage,
    UserMessage,
)

_kind = msgspec.json.Decoder(ItemKind)
_decoders = {kind: msgspec.json.Decoder(type_) for kind, type_ in ITEMS.items()}
_encode = msgspec.json.Encoder().encode
_OPEN, _CLOSE = "<think>\n", "\n</think>"
"""Around a thought that a client sends back as text of the model."""

Said = ReasoningPart | TextPart | CallPart


def items_of(given: str | Sequence[Raw] | None) -> tuple[Raw, ...]:
    """A request's input as a list of items."""
    if isinstance(given, str):
        text = [{"type": "input_text", "text": given}]
        return (Raw(_encode({"type": "message", "role": "user", "content": text})),)
    return tuple(given or ())


def with_ids(items: Iterable[Raw], turn_id: str) -> tuple[Raw, ...]:
    """The items, each with an id: its own, or one of this turn."""
    return tuple(
        raw
        if _kind.decode(raw).id
        else Raw(b'{"id":"item_%b_%d",%b' % (turn_id.encode(), place, bytes(raw).lstrip()[1:]))
        for place, raw in enumerate(items)
    )


def page_of(items: Sequence[Raw], after: str, limit: int) -> ItemList:
    """At most `limit` items behind the one with the id `after`, or from the first on."""
    ids = [_kind.decode(raw).id for raw in items]
    if after and after not in ids:
        raise wrong("after", f"there is no item {after!r}")
    start = ids.index(after) + 1 if after else 0
    page, names = list(items[start : start + limit]), ids[start : start + limit]
    return ItemList(
        data=page,
        first_id=names[0] if names else None,
        last_id=names[-1] if names else None,
        has_more=start + limit < len(items),
    )


def read_items(
    before: Sequence[Raw], own: Sequence[Raw], instructions: str | None, toolbox: Toolbox, sealed: Sealed
) -> tuple[Message, ...]:
    """The conversation; instructions and the system messages that follow them are one. Raises `RequestError`."""
    reader = _Reader(toolbox, sealed)
    if instructions:
        reader.system((TextPart(text=instructions),))
    for items, name in ((before, "previous_response_id"), (own, "input")):
        for place, raw in enumerate(items):
            path = f"{name}[{place}]"
            kind = read(_kind, bytes(raw), within=path)
            if kind.type in _decoders:
                reader.add(read(_decoders[kind.type], bytes(raw), within=path), path)
            elif kind.call_id:
                reader.skip_call(kind.call_id)
    reader.end_of_answer()
    return tuple(reader.out)


class _Reader:
    def __init__(self, toolbox: Toolbox, sealed: Sealed) -> None:
        self._toolbox = toolbox
        self._sealed = sealed
        self._said: list[Said] = []
        self._names: dict[str, str] = {}
        self.out: list[Message] = []

    def add(self, item: ItemIn, path: str) -> None:
        match item:
            case MessageIn(role="assistant"):
                self._said += _answer(item.content)
            case MessageIn(role="user"):
                self.end_of_answer()
                self.out.append(UserMessage(parts=_parts(item.content, f"{path}.content")))
            case MessageIn():
                self.end_of_answer()
                self.system(_texts(item.content))
            case ReasoningIn():
                if thought := self._thought(item):
                    self._said.append(ReasoningPart(text=thought))
            case FunctionCallIn():
                self._call(item, item.arguments or "{}", custom=False)
            case CustomCallIn():
                self._call(item, wrapped(item.input), custom=True)
            case OutputIn():
                self._result(item, path)
            case ReferenceIn():
                raise wrong(path, "references are not kept here; send the item itself", code="unsupported")

    def skip_call(self, id_: str) -> None:
        """A call of a kind that is not known here; its result is."""
        self._names[bare(id_)] = ""

    def system(self, parts: tuple[TextPart, ...]) -> None:
        last = self.out[-1] if self.out else None
        if isinstance(last, SystemMessage):
            self.out[-1] = SystemMessage(parts=last.parts + parts)
        else:
            self.out.append(SystemMessage(parts=parts))

    def end_of_answer(self) -> None:
        if self._said:
            self.out.append(AssistantMessage(parts=tuple(self._said)))
            self._said = []

    def _call(self, item: FunctionCallIn | CustomCallIn, arguments: str, *, custom: bool) -> None:
        name = self._names[bare(item.call_id)] = self._toolbox.shown(item.name, item.namespace, custom=custom)
        self._said.append(CallPart(id=item.call_id, name=name, arguments=arguments))

    def _result(self, item: OutputIn, path: str) -> None:
        self.end_of_answer()
        name = self._names.get(bare(item.call_id))
        if name is None:
            raise wrong(f"{path}.call_id", f"no call before it has the id {item.call_id!r}")
        parts = _parts(item.output, f"{path}.output")
        self.out.append(ToolMessage(call_id=item.call_id, parts=parts, name=name))

    def _thought(self, item: ReasoningIn) -> str:
        sealed = self._sealed.open(item.encrypted_content) if item.encrypted_content else None
        if sealed is not None:
            return sealed
        return "".join(one.text for one in item.content or ()) or "\n\n".join(one.text for one in item.summary or ())


def _answer(content: Contents) -> list[Said]:
    texts = [content] if isinstance(content, str) else [one.text or one.refusal for one in content]
    return [_thought_or_text(text) for text in texts if text]


def _thought_or_text(text: str) -> Said:
    whole = text.strip()
    if whole.startswith(_OPEN) and whole.endswith(_CLOSE) and len(whole) >= len(_OPEN) + len(_CLOSE):
        return ReasoningPart(text=whole[len(_OPEN) : -len(_CLOSE)])
    return TextPart(text=text)


def _texts(content: Contents) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),)
    return tuple(TextPart(text=one.text) for one in content if one.text)


def _parts(content: Contents, path: str) -> tuple[TextPart | ImagePart, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),)
    parts = (_part(one, f"{path}[{place}]") for place, one in enumerate(content))
    return tuple(part for part in parts if part is not None)


def _part(content: Content, path: str) -> TextPart | ImagePart | None:
    match content.type:
        case "input_image":
            if not content.image_url:
                raise wrong(path, "files are not kept here; send the image as `image_url`", code="unsupported")
            return ImagePart(url=content.image_url, detail=content.detail or "", field=path)
        case "input_file":
            raise wrong(path, "files cannot be read; send their text", code="unsupported")
        case _:
            return TextPart(text=content.text) if content.text else None
