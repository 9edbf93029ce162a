"""The served OpenAPI document: operations from the routes, schemas from the types that decode and encode."""

from typing import Any

import msgspec
from catenary_protocols.apis.chat.answer import ChatChunk, ChatCompletion, ToolCallDispatch, ToolResultDispatch
from catenary_protocols.apis.chat.request import ChatRequest
from catenary_protocols.apis.completions.answer import Completion
from catenary_protocols.apis.completions.request import CompletionsRequest
from catenary_protocols.apis.error_bodies import AnthropicErrorBody, OpenAIErrorBody
from catenary_protocols.apis.messages.answer import (
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageDelta,
    MessagesAnswer,
    MessageStart,
    MessageStop,
    Ping,
    TokenCountAnswer,
    ToolCallDispatched,
    ToolResultDispatched,
)
from catenary_protocols.apis.messages.blocks import BLOCKS
from catenary_protocols.apis.messages.request import CountRequest, MessagesRequest
from catenary_protocols.apis.models import AnthropicModel, AnthropicModels, OpenAIModel, OpenAIModels
from catenary_protocols.apis.responses.answer import DeletedResponse, InputTokens, ItemList, StreamEvent
from catenary_protocols.apis.responses.answer import Response as ResponseObject
from catenary_protocols.apis.responses.request import ITEMS, TOOLS, ResponsesRequest
from catenary_protocols.apis.tokens import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from fastapi import FastAPI

_MESSAGE_EVENTS = (
    MessageStart,
    Ping,
    BlockStart,
    BlockDelta,
    BlockStop,
    MessageDelta,
    MessageStop,
    ToolCallDispatched,
    ToolResultDispatched,
)
_TYPES = (
    ResponsesRequest,
    ResponseObject,
    StreamEvent,
    DeletedResponse,
    InputTokens,
    ItemList,
    *dict.fromkeys((*ITEMS.values(), *TOOLS.values())),
    MessagesRequest,
    CountRequest,
    *BLOCKS,
    MessagesAnswer,
    *_MESSAGE_EVENTS,
    TokenCountAnswer,
    CompletionsRequest,
    Completion,
    TokenizeRequest,
    TokenizeAnswer,
    DetokenizeRequest,
    DetokenizeAnswer,
    ChatRequest,
    ChatCompletion,
    ChatChunk,
    ToolCallDispatch,
    ToolResultDispatch,
    OpenAIErrorBody,
    AnthropicErrorBody,
    OpenAIModel,
    OpenAIModels,
    AnthropicModel,
    AnthropicModels,
)


def _schema(*kinds: type) -> dict[str, Any]:
    refs = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in kinds]
    return {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}


def _json(*kinds: type) -> dict[str, Any]:
    return {"application/json": _schema(*kinds)}


def _operation(body: type | None, answer: tuple[type, ...], chunks: tuple[type, ...], error: type) -> dict[str, Any]:
    content = _json(*answer)
    if chunks:
        content["text/event-stream"] = _schema(*chunks)
    operation: dict[str, Any] = {
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "4XX": {"description": "The request cannot be served; `param` names the field.", "content": _json(error)},
            "5XX": {"description": "The mesh cannot serve it now.", "content": _json(error)},
        }
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


CHAT_OPERATION = _operation(ChatRequest, (ChatCompletion,), (ChatChunk,), OpenAIErrorBody)
COMPLETIONS_OPERATION = _operation(CompletionsRequest, (Completion,), (Completion,), OpenAIErrorBody)
TOKENIZE_OPERATION = _operation(TokenizeRequest, (TokenizeAnswer,), (), OpenAIErrorBody)
DETOKENIZE_OPERATION = _operation(DetokenizeRequest, (DetokenizeAnswer,), (), OpenAIErrorBody)
RESPONSES_OPERATION = _operation(ResponsesRequest, (ResponseObject,), (StreamEvent,), OpenAIErrorBody)
RESPONSE_OPERATION = _operation(None, (ResponseObject,), (StreamEvent,), OpenAIErrorBody)
DELETE_RESPONSE_OPERATION = _operation(None, (DeletedResponse,), (), OpenAIErrorBody)
INPUT_TOKENS_OPERATION = _operation(ResponsesRequest, (InputTokens,), (), OpenAIErrorBody)
INPUT_ITEMS_OPERATION = _operation(None, (ItemList,), (), OpenAIErrorBody)
MESSAGES_OPERATION = _operation(MessagesRequest, (MessagesAnswer,), _MESSAGE_EVENTS, AnthropicErrorBody)
COUNT_OPERATION = _operation(CountRequest, (TokenCountAnswer,), (), AnthropicErrorBody)
TURN_EVENTS_OPERATION = _operation(None, (), (ChatChunk, Completion, StreamEvent, *_MESSAGE_EVENTS), OpenAIErrorBody)
MODELS_OPERATION = _operation(None, (OpenAIModels, AnthropicModels), (), OpenAIErrorBody)
MODEL_OPERATION = _operation(None, (OpenAIModel, AnthropicModel), (), OpenAIErrorBody)


def document(api: FastAPI) -> None:
    """Make the app's OpenAPI document hold the schemas."""
    plain = api.openapi

    def whole() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = plain()
            _, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
            schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
            api.openapi_schema = schema
        return api.openapi_schema

    api.openapi = whole  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
