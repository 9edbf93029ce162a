"""OpenAI Chat Completions: `POST /v1/chat/completions`."""

from catenary_protocols.apis.api import Api
from catenary_protocols.apis.chat.encoder import ChatEncoder
from catenary_protocols.apis.chat.read import read_chat
from catenary_protocols.apis.error_bodies import openai_error

__all__ = ["CHAT"]

CHAT = Api(name="chat", path="/v1/chat/completions", read=read_chat, encoder=ChatEncoder, error=openai_error)
