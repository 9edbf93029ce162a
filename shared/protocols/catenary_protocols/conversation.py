"""The API-neutral form of a request: what every API is decoded to and every template is fed from.

Parts of an assistant message stand in the order in which the model wrote them: reasoning, text and calls may alternate.
JSON that belongs to others (tool schemas, call arguments) stays JSON *text*: nothing past the boundary is a dict.
"""

from collections.abc import Iterator
from typing import Literal

from catenary_protocols.wire import Wire


class TextPart(Wire, frozen=True, tag="text"):
    """Visible text."""

    text: str


class ImagePart(Wire, frozen=True, tag="image"):
    """An image, by URL or inline (`data:` URL).

    Attributes:
        field: where in the request it stands, for an error that names it.
    """

    url: str
    detail: str = ""
    field: str = ""


class ReasoningPart(Wire, frozen=True, tag="reasoning"):
    """What the model thought, in its place."""

    text: str


class CallPart(Wire, frozen=True, tag="call"):
    """A tool call the model made.

    Attributes:
        id: the API's call id, echoed by the client; data only.
        name: the tool.
        arguments: JSON text of an object, as the client sent it back.
    """

    id: str
    name: str
    arguments: str


class SystemMessage(Wire, frozen=True, tag="system"):
    """Instructions, at the head or in the middle of a conversation."""

    parts: tuple[TextPart, ...]


class UserMessage(Wire, frozen=True, tag="user"):
    """What the user said."""

    parts: tuple[TextPart | ImagePart, ...]
    name: str = ""


class AssistantMessage(Wire, frozen=True, tag="assistant"):
    """What the model said, in order.

    Attributes:
        left_out: it came without a field for reasoning, through an API that has none of its own, and its calls' ids
            tell of some.
    """

    parts: tuple[ReasoningPart | TextPart | CallPart, ...]
    left_out: bool = False


class ToolMessage(Wire, frozen=True, tag="tool"):
    """The result of one call."""

    call_id: str
    parts: tuple[TextPart | ImagePart, ...]
    name: str = ""
    is_error: bool = False


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


class Tool(Wire, frozen=True):
    """A function the model may call.

    Attributes:
        schema: JSON text of the JSON Schema of the arguments.
        strict: the arguments must satisfy the schema exactly.
        deferred: it may be called, and stays out of the prompt's head: the conversation itself tells of it.
    """

    name: str
    description: str = ""
    schema: str = '{"type":"object","properties":{}}'
    strict: bool = False
    deferred: bool = False


class ToolChoice(Wire, frozen=True):
    """Whether and what the model must call. `name` is set for mode `named`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""


class Conversation(Wire, frozen=True):
    """All that a prompt is rendered from.

    Attributes:
        text, ids: the whole prompt, as text or token ids (little-endian u32): no template is used, and what the model
            says is not parsed.
        template: JSON text of an object of keyword arguments for the chat template ("" for none).
        thinking: None leaves it to the template's default.
        restore: reasoning that a client left out is put back where it is known.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_calls: bool = True
    thinking: bool | None = None
    restore: bool = True
    template: str = ""
    text: str = ""
    ids: bytes = b""

    @property
    def plain(self) -> bool:
        """It is a prompt, not messages."""
        return bool(self.text or self.ids)

    def images(self) -> Iterator[ImagePart]:
        """Its images, in order."""
        return (part for message in self.messages for part in message.parts if isinstance(part, ImagePart))


class Sampling(Wire, frozen=True):
    """How to choose tokens, and when to stop.

    `max_tokens` counts generated tokens from the original prompt; None means up to the model's context. `stop` matches
    visible text only; a token of `stop_token_ids` ends the turn as the model's own do, and is no visible text.
    `logprobs`: log probabilities are told, with so many alternatives (0 to 20); None: they are not.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: dict[int, float] = {}


class TokenLogprob(Wire, frozen=True):
    """How likely an engine found a token that it generated.

    Attributes:
        logprob: natural logarithm of its probability.
        top: the likeliest ids at its place and their logarithms, the likeliest first.
    """

    logprob: float
    top: dict[int, float] = {}


class Within(Wire, frozen=True):
    """Which workers may run a turn: one of `workers` (empty: any), and one that has all of `tags`."""

    workers: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class Hints(Wire, frozen=True):
    """`nvext.agent_hints`: what the harness knows about this turn; clamped by the key's policy.

    Attributes:
        priority: higher goes first; 0 is ordinary.
        strict_priority: sorts before priority.
        osl: expected output length, tokens.
        latency_sensitivity: 0 (batch) to 1 (a person waits).
        speculative_prefill: warm the next turn's prefix when this one ends.
    """

    priority: int = 0
    strict_priority: int = 0
    osl: int | None = None
    latency_sensitivity: float | None = None
    speculative_prefill: bool = False
