"""Which conversation does a turn belong to? The same session goes to the same tokenizer and shares its caches.

A client that names its conversation is believed. For others the head of the conversation names it: what an agent sends
again with every turn and never changes.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from catenary_protocols.apis.api import Draft
from catenary_protocols.conversation import SystemMessage, UserMessage

_encode = msgspec.json.Encoder().encode

SESSION_HEADERS = ("x-session-id", "x-claude-code-session-id", "session-id", "x-session-affinity")
"""Session headers of harnesses, the explicit one first (Claude Code, Codex, opencode)."""
AGENT_HEADERS = ("x-claude-code-agent-id",)
"""Headers that tell a sub-agent's conversation from its parent's."""
PARENT_HEADERS = ("x-parent-session-id", "x-codex-parent-thread-id")
"""Headers that name the session which a sub-agent's session works for (opencode, Codex)."""
FINAL_HEADER = "x-session-final"
"""Header of a session's last request, for a harness that cannot set `nvext.session_final`."""


def client_session(draft: Draft, headers: Mapping[str, str]) -> str:
    """The client's own name for the conversation, or ""."""
    named = next((headers[name] for name in SESSION_HEADERS if headers.get(name)), "") or draft.session
    agent = next((headers[name] for name in AGENT_HEADERS if headers.get(name)), "")
    return f"{named}/{agent}" if named and agent else named


def session_of(draft: Draft, tenant: str, headers: Mapping[str, str]) -> str:
    """32 hexadecimal digits that name the conversation within its tenant."""
    named = client_session(draft, headers)
    head: object = ("named", tenant, named) if named else ("head", tenant, draft.user, draft.model, *_head(draft))
    return blake2b(_encode(head), digest_size=16).hexdigest()


def said(headers: Mapping[str, str], name: str) -> bool:
    """Whether a header that is a switch is on."""
    return headers.get(name, "").strip().lower() in {"1", "true"}


def ends_session(headers: Mapping[str, str]) -> bool:
    """Whether the client sends no more turns of the session."""
    return said(headers, FINAL_HEADER)


def of_subagent(headers: Mapping[str, str]) -> bool:
    """Whether the session is a sub-agent's, which is over with its first answer that calls no tool."""
    return any(headers.get(name) for name in (*AGENT_HEADERS, *PARENT_HEADERS))


def _head(draft: Draft) -> tuple[object, ...]:
    messages = draft.conversation.messages
    system = [message for message in messages if isinstance(message, SystemMessage)][:1]
    user = next((message for message in messages if isinstance(message, UserMessage)), None)
    tools = [tool for tool in draft.conversation.tools if not tool.deferred]  # others come as they are found
    return system, tools, user
