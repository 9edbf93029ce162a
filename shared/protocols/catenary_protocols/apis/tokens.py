"""`POST /tokenize` and `POST /detokenize`: prompts as token ids, and back."""

import msgspec

from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.completions.read import packed, prompt_of, unpacked
from catenary_protocols.apis.reading import lacking, read
from catenary_protocols.apis.sampling import TokenId
from catenary_protocols.conversation import Sampling
from catenary_protocols.wire import Wire


class TokenizeRequest(Wire, frozen=True):
    """A prompt, or, as Chat Completions takes them, messages and tools."""

    model: str
    prompt: str | None = None
    messages: list[msgspec.Raw] | None = None


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens, how many they are, and how many the model can take."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(Wire, frozen=True):
    """Tokens."""

    model: str
    tokens: list[TokenId]


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Their text."""

    prompt: str


_tokenize = msgspec.json.Decoder(TokenizeRequest)
_detokenize = msgspec.json.Decoder(DetokenizeRequest)
_encode = msgspec.json.Encoder().encode


def read_tokenize(body: bytes) -> Draft:
    """The draft of a request whose prompt is wanted; raises `RequestError`."""
    request = read(_tokenize, body)
    if request.messages is not None:
        return CHAT.read(body)
    if request.prompt is None:
        raise lacking("prompt")
    return Draft(model=request.model, conversation=prompt_of(request.prompt), sampling=Sampling())


def read_detokenize(body: bytes) -> tuple[str, bytes]:
    """Model and token ids (little-endian u32); raises `RequestError`."""
    request = read(_detokenize, body)
    return request.model, packed(request.tokens)


def tokenize_answer(ids: bytes, context: int) -> bytes:
    """The answer's body."""
    tokens = unpacked(ids)
    return _encode(TokenizeAnswer(count=len(tokens), max_model_len=context, tokens=tokens))


def detokenize_answer(text: str) -> bytes:
    """The answer's body."""
    return _encode(DetokenizeAnswer(prompt=text))
