"""Messages of the API → messages of a conversation, everything in its place."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from catenary_protocols.apis.messages.blocks import (
    Base64Source,
    Block,
    Content,
    ContentSource,
    DocumentParam,
    ImageParam,
    RedactedThinkingParam,
    SearchResultParam,
    TextParam,
    TextSource,
    ThinkingParam,
    ToolReferenceParam,
    ToolResultParam,
    ToolUseParam,
    UnknownBlock,
    UrlSource,
    blocks,
)
from catenary_protocols.apis.messages.request import TurnMessage
from catenary_protocols.apis.reading import wrong
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
    Tool,
    ToolMessage,
    UserMessage,
)
from catenary_protocols.errors import RequestError

_encode = msgspec.json.Encoder().encode
Shown = TextPart | ImagePart


class History:
    """Reads the messages of one request.

    Args:
        tools: the request's tools, by name: references to them are written out.
        sealed: opens signatures.

    Attributes:
        passed_over: paths of blocks of types that nobody here knows.
    """

    def __init__(self, tools: Mapping[str, Tool], sealed: Sealed) -> None:
        self._tools = tools
        self._sealed = sealed
        self._called: dict[str, str] = {}
        self.passed_over: list[str] = []

    def read(self, messages: Sequence[TurnMessage]) -> Iterator[Message]:
        """The conversation's messages, in order; raises `RequestError`."""
        for at, message in enumerate(messages):
            path = f"messages[{at}].content"
            match message.role:
                case "user":
                    yield from self._user(message.content, path)
                case "assistant":
                    yield self._assistant(message.content, path)
                case "system":
                    yield SystemMessage(parts=tuple(self._texts(message.content, path)))

    def _user(self, content: Content, path: str) -> Iterator[Message]:
        """Results are messages of their own; what stands between them stays between them."""
        said: list[Shown] = []
        for here, block in self._blocks(content, path):
            if isinstance(block, ToolResultParam):
                if said:
                    yield UserMessage(parts=tuple(said))
                    said = []
                yield self._result(block, here)
            else:
                said += self._shown(block, here)
        if said or not content:
            yield UserMessage(parts=tuple(said))

    def _result(self, block: ToolResultParam, path: str) -> ToolMessage:
        content = self._blocks(block.content or "", f"{path}.content")
        parts = [part for here, one in content for part in self._shown(one, here)]
        id_ = block.tool_use_id
        if bare(id_) not in self._called:
            raise wrong(f"{path}.tool_use_id", f"no `tool_use` block before it has the id {id_!r}")
        return ToolMessage(
            call_id=id_,
            parts=tuple(parts),
            name=self._called[bare(id_)],
            is_error=bool(block.is_error),
        )

    def _assistant(self, content: Content, path: str) -> AssistantMessage:
        parts: list[ReasoningPart | TextPart | CallPart] = []
        for here, block in self._blocks(content, path):
            match block:
                case TextParam():
                    parts += [TextPart(text=block.text)] if block.text else []
                case ThinkingParam() | RedactedThinkingParam():
                    thought = self._thought(block)
                    parts += [ReasoningPart(text=thought)] if thought else []
                case ToolUseParam():
                    self._called[bare(block.id)] = block.name
                    parts.append(CallPart(id=block.id, name=block.name, arguments=_arguments(block, here)))
                case _:
                    raise _misplaced(here, block, "an assistant's message")
        return AssistantMessage(parts=tuple(parts))

    def _thought(self, block: ThinkingParam | RedactedThinkingParam) -> str:
        """What was sealed; what cannot be opened counts as far as it can be read."""
        if isinstance(block, RedactedThinkingParam):
            return self._sealed.open(block.data) or ""
        return self._sealed.open(block.signature) or block.thinking

    def _shown(self, block: Block, path: str) -> list[Shown]:
        """Parts of what a user or a tool says."""
        match block:
            case TextParam():
                return [TextPart(text=block.text)]
            case ImageParam():
                return [_image(block, path)]
            case DocumentParam():
                return self._document(block, path)
            case SearchResultParam():
                texts = [block.title, block.source, *(one.text for one in block.content)]
                return [TextPart(text="\n".join(texts))]
            case ToolReferenceParam():
                return [TextPart(text=self._definition(block.tool_name))]
            case _:
                raise _misplaced(path, block, "what a user or a tool says")

    def _document(self, block: DocumentParam, path: str) -> list[Shown]:
        head = [TextPart(text=text) for text in (block.title, block.context) if text]
        match block.source:
            case TextSource():
                return [*head, TextPart(text=block.source.data)]
            case ContentSource():
                inner = self._blocks(block.source.content, f"{path}.source.content")
                return [*head, *(part for here, one in inner for part in self._shown(one, here))]
            case _:
                message = "only documents that are text can be read here, not files such as PDF"
                raise wrong(f"{path}.source", message, code="unsupported")

    def _texts(self, content: Content, path: str) -> Iterator[TextPart]:
        for here, block in self._blocks(content, path):
            if not isinstance(block, TextParam):
                raise _misplaced(here, block, "a system message")
            yield TextPart(text=block.text)

    def _blocks(self, content: Content, path: str) -> Iterator[tuple[str, Block]]:
        for here, block in blocks(content, path):
            if isinstance(block, UnknownBlock):
                self.passed_over.append(here)
            else:
                yield here, block

    def _definition(self, name: str) -> str:
        """A tool as prompts list them: JSON on a line."""
        tool = self._tools.get(name)
        if tool is None:
            return name
        function = {"name": name, "description": tool.description, "parameters": msgspec.Raw(tool.schema.encode())}
        return _encode({"type": "function", "function": function}).decode()


def _image(block: ImageParam, path: str) -> ImagePart:
    match block.source:
        case Base64Source():
            return ImagePart(url=f"data:{block.source.media_type};base64,{block.source.data}", field=path)
        case UrlSource():
            return ImagePart(url=block.source.url, field=path)
        case _:
            raise wrong(f"{path}.source", "no files are kept here; send the image itself", code="unsupported")


def _arguments(block: ToolUseParam, path: str) -> str:
    arguments = bytes(block.input).decode()
    if not arguments.startswith("{"):
        raise wrong(f"{path}.input", "must be an object")
    return arguments


def _misplaced(path: str, block: Block, where: str) -> RequestError:
    kind = type(block).__struct_config__.tag
    return wrong(f"{path}.type", f"{kind!r} blocks have no place in {where}")
