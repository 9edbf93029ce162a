"""`GET /v1/models` in OpenAI's shape and in Anthropic's."""

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from catenary_protocols.bus.messages import ModelCard

_encode = msgspec.json.Encoder().encode


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="model"):
    """A model. `context_window`, `max_output_tokens`: tokens."""

    id: str
    created: int
    owned_by: str
    context_window: int
    max_output_tokens: int


class OpenAIModels(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="list"):
    """All models."""

    data: list[OpenAIModel]


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """A model. `max_input_tokens`, `max_tokens`: tokens."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int


class AnthropicModels(msgspec.Struct, frozen=True, kw_only=True):
    """One page that holds all models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def openai_models(cards: Sequence[ModelCard]) -> bytes:
    """The list, OpenAI's shape."""
    return _encode(OpenAIModels(data=[_openai(card) for card in cards]))


def openai_model(card: ModelCard) -> bytes:
    """One model, OpenAI's shape."""
    return _encode(_openai(card))


def anthropic_models(cards: Sequence[ModelCard]) -> bytes:
    """The list, Anthropic's shape."""
    ids = [card.model for card in cards]
    page = AnthropicModels(
        data=[_anthropic(card) for card in cards],
        has_more=False,
        first_id=ids[0] if ids else None,
        last_id=ids[-1] if ids else None,
    )
    return _encode(page)


def anthropic_model(card: ModelCard) -> bytes:
    """One model, Anthropic's shape."""
    return _encode(_anthropic(card))


def _openai(card: ModelCard) -> OpenAIModel:
    return OpenAIModel(
        id=card.model,
        created=card.created,
        owned_by=card.owned_by,
        context_window=card.context,
        max_output_tokens=card.context,
    )


def _anthropic(card: ModelCard) -> AnthropicModel:
    return AnthropicModel(
        id=card.model,
        display_name=card.model,
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=card.context,
        max_tokens=card.context,
    )
