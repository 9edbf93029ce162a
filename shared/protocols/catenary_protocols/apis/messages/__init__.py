"""Anthropic Messages: `POST /v1/messages`, and the length of a prompt: `POST /v1/messages/count_tokens`."""

from functools import partial

from catenary_protocols.apis.api import Api
from catenary_protocols.apis.error_bodies import anthropic_error
from catenary_protocols.apis.messages.encoder import MessagesEncoder
from catenary_protocols.apis.messages.read import MessagesDraft, read_count, read_messages
from catenary_protocols.apis.sealed import Sealed

__all__ = ["MessagesDraft", "messages_api", "read_count"]


def messages_api(sealed: Sealed) -> Api[MessagesDraft]:
    """The API, with what signs and restores thinking."""
    return Api(
        name="messages",
        path="/v1/messages",
        read=partial(read_messages, sealed),
        encoder=partial(MessagesEncoder, sealed),
        error=anthropic_error,
    )
