"""The one module that builds and matches subjects.

A subject is `<namespace>.<pattern>`; `CHANNELS` lists every pattern with who sends and who receives. Names that go
into a subject become one legal token, reversibly: letters, digits, `_` and `-` stay, every other byte of the UTF-8 form
becomes `=xx`. The namespace's slug prefixes what JetStream names: streams, buckets, queue groups.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

DEFAULT_NAMESPACE = "catenary.v1"

Role = Literal[
    "frontend",
    "tokenizer",
    "router",
    "kv-indexer",
    "worker",
    "tool-dispatch",
    "executor",
    "approver",
    "operator",
    "test",
]
BROKER_DISCONNECTS = "$SYS.ACCOUNT.*.DISCONNECT"
"""Where the broker tells of connections that ended, if it tells the mesh's account (`accounts.py`); JSON of its own."""

SERVICES: tuple[Role, ...] = ("frontend", "tokenizer", "router", "kv-indexer", "worker", "tool-dispatch")


@dataclass(frozen=True, slots=True)
class Channel:
    """One row of the subject table.

    Attributes:
        name: key in `CHANNELS` and in the AsyncAPI document.
        pattern: tokens after the namespace; `{x}` stands for one escaped token.
        kind: core (publish), request (with a reply subject), stream (in JetStream).
        senders, receivers: roles; "observer" rights are not listed, anybody with the right may subscribe.
        about: one sentence.
    """

    name: str
    pattern: str
    kind: Literal["core", "request", "stream"]
    senders: tuple[Role, ...]
    receivers: tuple[Role, ...]
    about: str


_ALL = SERVICES
_CHANNELS = (
    Channel("turn", "turn.{tokenizer}", "request", ("frontend",), ("tokenizer",), "Commands to the owner of a turn."),
    Channel(
        "memory", "memory.{tokenizer}", "core", ("tokenizer",), ("tokenizer",), "Answers as generated, to a new owner."
    ),
    Channel("place", "place.{router}", "request", ("tokenizer",), ("router",), "Asks for a placement."),
    Channel("overlap", "overlap.{model}", "request", ("router",), ("kv-indexer",), "Who holds this prompt's blocks?"),
    Channel("do", "worker.{worker}.do", "request", ("tokenizer", "operator"), ("worker",), "Commands to one worker."),
    Channel(
        "snapshot", "worker.{worker}.snapshot", "request", ("kv-indexer",), ("worker",), "What do you hold, in pages?"
    ),
    Channel("tokens", "tokens.{tokenizer}", "core", ("worker",), ("tokenizer",), "Generated tokens, a frame a step."),
    Channel("events", "events.{frontend}", "core", ("tokenizer",), ("frontend",), "Turn events, a frame a batch."),
    Channel("kv", "kv.{worker}", "core", ("worker",), ("kv-indexer",), "KV events, numbered."),
    Channel("load", "load.{worker}", "core", ("worker",), _ALL, "A worker's beat: load, tails, live turns."),
    Channel("beat", "beat.{service}.{instance}", "core", _ALL, _ALL, "A service's beat: tails, live turns."),
    Channel(
        "tool_call",
        "tool.call.{tool}.{run_by}",
        "stream",
        ("tokenizer",),
        ("tool-dispatch", "executor"),
        "A call, the moment its last token is decoded.",
    ),
    Channel(
        "tool_result",
        "tool.result.{tool}.{key}",
        "stream",
        ("tool-dispatch", "executor"),
        ("tokenizer", "tool-dispatch"),
        "The result of a call.",
    ),
    Channel(
        "tool_cancel",
        "tool.cancel.{tool}.{key}",
        "stream",
        ("tokenizer",),
        ("tool-dispatch", "executor"),
        "A call whose turn was cancelled.",
    ),
    Channel(
        "tool_approve",
        "tool.approve.{tool}.{key}",
        "stream",
        ("approver",),
        ("tool-dispatch",),
        "A yes or no to a call.",
    ),
    Channel("tool_dead", "tool.dead.{tool}", "stream", ("tool-dispatch",), ("operator",), "Calls nobody could run."),
    Channel("sim_script", "sim.{worker}.script", "request", ("test",), ("worker",), "Tells the simulator what to say."),
    Channel("sim_delete", "sim.{worker}.delete", "request", ("test",), ("worker",), "Forgets a script."),
    Channel("sim_report", "sim.{worker}.report", "request", ("test",), ("worker",), "What the simulator got and did."),
    Channel(
        "observe", "observe.turn.{what}", "core", ("frontend", "tokenizer"), ("operator",), "Facts without content."
    ),
)
CHANNELS: dict[str, Channel] = {channel.name: channel for channel in _CHANNELS}
TOOL_STREAM_CHANNELS = tuple(c for c in _CHANNELS if c.kind == "stream")

_ILLEGAL = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(rb"=([0-9a-f]{2})")
_FIELD = re.compile(r"\{(\w+)\}")


@lru_cache(maxsize=4096)
def token(name: str) -> str:
    """One legal subject token for any non-empty name."""
    if not name:
        raise ValueError("a subject token cannot be empty")
    return _ILLEGAL.sub(lambda m: b"=%02x" % m[0][0], name.encode()).decode()


def name_of(escaped: str) -> str:
    """The name that a token was made from."""
    return _ESCAPED.sub(lambda m: bytes.fromhex(m[1].decode()), escaped.encode()).decode()


@dataclass(frozen=True, slots=True)
class Subjects:
    """All subjects of one namespace."""

    namespace: str = DEFAULT_NAMESPACE

    @property
    def slug(self) -> str:
        """The namespace as a JetStream name."""
        return self.namespace.replace(".", "-")

    def to(self, channel: str, **names: str) -> str:
        """The subject of a channel; a field left out becomes `*`."""
        pattern = CHANNELS[channel].pattern
        tail = _FIELD.sub(lambda m: token(names[m[1]]) if m[1] in names else "*", pattern)
        return f"{self.namespace}.{tail}"

    def match(self, channel: str, subject: str) -> dict[str, str] | None:
        """The names in a subject of this channel, or None when it is not one."""
        prefix = self.namespace + "."
        want = CHANNELS[channel].pattern.split(".")
        have = subject.removeprefix(prefix).split(".")
        if len(want) != len(have) or not subject.startswith(prefix):
            return None
        names: dict[str, str] = {}
        for pattern, text in zip(want, have, strict=True):
            if pattern.startswith("{"):
                try:
                    names[pattern[1:-1]] = name_of(text)
                except UnicodeDecodeError:
                    return None
            elif pattern != text:
                return None
        return names

    def everything(self) -> str:
        """Wildcard over the whole namespace."""
        return f"{self.namespace}.>"

    @property
    def tool_stream(self) -> str:
        """Name of the JetStream stream of the tool plane."""
        return f"{self.slug}-TOOLS"

    def executor_consumer(self, tool: str) -> str:
        """Durable consumer that every executor of a tool pulls from (consumers are named within their stream)."""
        return f"exec-{token(tool)}"

    def tool_of_consumer(self, consumer: str) -> str | None:
        """The tool whose executors pull from this consumer, or None when it is another kind of consumer."""
        return name_of(consumer.removeprefix("exec-")) if consumer.startswith("exec-") else None

    @property
    def models_bucket(self) -> str:
        """Key-value bucket of model cards."""
        return f"{self.slug}-models"

    @property
    def artifacts_bucket(self) -> str:
        """Object store of tokenizer files and templates, by content hash."""
        return f"{self.slug}-artifacts"

    @property
    def responses_bucket(self) -> str:
        """Key-value bucket of stored Responses."""
        return f"{self.slug}-responses"

    def queue_group(self, name: str) -> str:
        """Queue group of this mesh."""
        return f"{self.slug}-{name}"
