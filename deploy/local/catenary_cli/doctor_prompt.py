"""`catenary doctor prompt A.json B.json`: does the second request's prompt go on from the first one's, and if not, why?

Rendered and encoded as the mesh does, but without what it remembers of the model's own answers. Thoughts that the mesh
has sealed count as far as they can be read.
"""

import argparse
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec
from catenary_protocols.apis.api import Draft
from catenary_protocols.apis.chat import CHAT
from catenary_protocols.apis.completions import COMPLETIONS
from catenary_protocols.apis.messages import messages_api
from catenary_protocols.apis.responses import responses_api
from catenary_protocols.errors import CatenaryError, RequestError
from catenary_tokenizer_service.core.shape import chat_messages, chat_tools, template_options
from catenary_tokenizers import ModelDirectoryError, ModelTokenizer, PromptError, TemplateLimitError, load
from catenary_tokenizers.divergence import Divergence, SeenPrompt, diverged, seen_prompt
from catenary_tokenizers.ids import TOKEN_BYTES
from catenary_tokenizers.load import embedded_path

ABOUT = "Tell where and why the prompt of a second request is no extension of a first one's. Exit code 1 if it is none."
EXAMPLE = "catenary doctor prompt turn-4.json turn-5.json --model models/m"
EXCERPT = 12
"""Tokens to show from where the prompts part."""
_BLOCKS_OF_ANTHROPIC = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})
WHY = {
    "tools": "the tools are others",
    "system": "a system text is another",
    "message": "a message is another",
    "removed": "messages are gone",
    "rendering": "the messages are the same, the template writes them otherwise",
}


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; `first` and `second` are what stands in each prompt from where they part."""

    extends: bool
    tokens: tuple[int, int]
    blocks: int
    divergence: Divergence | None = None
    first: str = ""
    second: str = ""


class _Unsealed:
    """For who has no key: nothing opens."""

    def seal(self, text: str) -> str:
        """Nothing is sealed here."""
        return text

    def open(self, token: str) -> str | None:
        """None but for the empty text."""
        return None if token else ""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("first", type=Path, metavar="A.json", help="body of a request")
    parser.add_argument("second", type=Path, metavar="B.json", help="body of the session's next one")
    parser.add_argument("--model", default="", help="model directory (default: the embedded model)")
    parser.add_argument("--block-size", type=int, default=16, metavar="N", help="tokens of a KV block (16)")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print (table)")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    if args.block_size < 1:
        raise RequestError(f"--block-size is at least 1, not {args.block_size}", field="block_size")
    try:
        model = load(Path(args.model) if args.model else embedded_path())
    except ModelDirectoryError as error:
        raise RequestError(f"--model: {error}", field="model") from error
    told = compare(model, args.block_size, _seen(model, args.first), _seen(model, args.second))
    if args.output == "json":
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    else:
        print(_said(told))
    return 0 if told.extends else 1


def compare(model: ModelTokenizer, block_size: int, first: SeenPrompt, second: SeenPrompt) -> Told:
    """How the second prompt leaves the first."""
    left = diverged(first, second, block_size)
    tokens = len(first.ids) // TOKEN_BYTES, len(second.ids) // TOKEN_BYTES
    blocks = tokens[0] // block_size
    if left is None:
        return Told(extends=True, tokens=tokens, blocks=blocks)
    part = slice(left.token * TOKEN_BYTES, (left.token + EXCERPT) * TOKEN_BYTES)
    texts = model.decode(first.ids[part]), model.decode(second.ids[part])
    return Told(extends=False, tokens=tokens, blocks=blocks, divergence=left, first=texts[0], second=texts[1])


def reader_of(body: bytes) -> Callable[[bytes], Draft]:
    """Reads the API that a body was written for, told by the fields that only one has."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"not JSON: {error}", code="invalid_json") from error
    if not isinstance(fields, dict):
        raise RequestError("not a JSON object", code="invalid_json")
    if "input" in fields:
        return responses_api(_Unsealed()).read
    if "prompt" in fields:
        return COMPLETIONS.read
    return messages_api(_Unsealed()).read if _is_anthropic(fields) else CHAT.read


def _is_anthropic(fields: dict[str, object]) -> bool:
    tools, messages = fields.get("tools"), fields.get("messages")
    blocks = [
        block
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
        if isinstance(block, dict)
    ]
    return (
        "system" in fields
        or any(isinstance(tool, dict) and "input_schema" in tool for tool in (tools if isinstance(tools, list) else ()))
        or any(block.get("type") in _BLOCKS_OF_ANTHROPIC for block in blocks)
    )


def _seen(model: ModelTokenizer, path: Path) -> SeenPrompt:
    try:
        body = path.read_bytes()
        conversation = reader_of(body)(body).conversation
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}", field="file") from error
    except CatenaryError as error:
        raise RequestError(f"{path}: {error.message}", field=error.field or "body") from error
    if conversation.plain:
        ids = conversation.ids or model.encode(conversation.text, special=True, begin=True)
        return seen_prompt(ids, (), ())
    messages, tools = chat_messages(conversation), chat_tools(conversation)
    try:
        rendered = model.render(messages, tools, now=datetime.now().astimezone(), **template_options(conversation))
    except (PromptError, TemplateLimitError) as error:
        raise RequestError(f"{path}: the model's chat template refuses it: {error}", field="messages") from error
    return seen_prompt(model.encode_prompt(rendered), messages, tools)


def _said(told: Told) -> str:
    first, second = told.tokens
    left = told.divergence
    if left is None:
        return f"it goes on: all {first:,} tokens of the first prompt begin the second's {second:,}"
    where = "" if left.message is None else f", in message {left.message} ({left.role})"
    return "\n".join(
        [
            f"they part at token {left.token:,} of {first:,}{where}: {WHY[left.cause]}",
            f"  blocks lost    {left.blocks_lost:,} of {told.blocks:,}",
            f"  first prompt   {told.first!r}",
            f"  second prompt  {told.second!r}",
        ]
    )
