"""OpenAI Completions: `POST /v1/completions`. A prompt as it stands, and what a model writes behind it."""

from catenary_protocols.apis.api import Api
from catenary_protocols.apis.completions.encoder import CompletionsEncoder
from catenary_protocols.apis.completions.read import read_completions
from catenary_protocols.apis.error_bodies import openai_error

__all__ = ["COMPLETIONS"]

COMPLETIONS = Api(
    name="completions",
    path="/v1/completions",
    read=read_completions,
    encoder=CompletionsEncoder,
    error=openai_error,
)
