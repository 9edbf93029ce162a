"""Who may publish and subscribe what: least rights for each role, from the same channels the code uses.

A channel gives its senders publish and its receivers subscribe. Beside that a role has what its use of JetStream
needs, an inbox that nobody else hears, and, if it is asked, the right to answer. Executors have an account of their own
for each tool; `accounts.py` makes one.
"""

from dataclasses import dataclass

from catenary_protocols.bus.subjects import BROKER_DISCONNECTS, CHANNELS, SERVICES, Channel, Role, Subjects

ROLES: tuple[Role, ...] = (*SERVICES, "executor", "approver", "operator", "test")
INBOX = "_INBOX.>"
PLACEHOLDER = "TOOL"
"""Stands for a tool's name in the matrix."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Allow lists of one role.

    Attributes:
        answers: may publish to the reply subject of what it receives, though that is not in `publish`.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool


def inbox(role: str, instance: str) -> str:
    """Prefix of the subjects on which an instance of a role is answered."""
    return f"_INBOX.{role}.{instance}"


def executor_rights(subjects: Subjects, tool: str) -> Rights:
    """Of a tool's executors, in the account of that tool: take its calls, publish their results, hear of cancels."""
    consumer = f"{subjects.tool_stream}.{subjects.executor_consumer(tool)}"
    publish = (
        subjects.to("tool_result", tool=tool),
        f"$JS.API.CONSUMER.MSG.NEXT.{consumer}",
        f"$JS.ACK.{consumer}.>",
    )
    return Rights(publish, (INBOX, subjects.to("tool_cancel", tool=tool)), answers=False)


def rights(role: Role, subjects: Subjects) -> Rights:
    """Of one role in one namespace."""
    if role == "executor":
        return executor_rights(subjects, PLACEHOLDER)
    sends = [channel for channel in CHANNELS.values() if role in channel.senders]
    hears = [channel for channel in CHANNELS.values() if role in channel.receivers]
    publish = [*(_sent(channel, role, subjects) for channel in sends), *_jetstream(role, subjects)]
    subscribe = [INBOX if role == "operator" else inbox(role, ">"), *(subjects.to(channel.name) for channel in hears)]
    if role in SERVICES:
        subscribe += ["$SRV.>", BROKER_DISCONNECTS]
    if role == "tool-dispatch":
        subscribe.append(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{subjects.tool_stream}.>")
    if role == "operator":
        publish.append("$SRV.>")
        subscribe.append(subjects.everything())
    answers = role in SERVICES or any(channel.kind == "request" for channel in hears)
    return Rights(tuple(dict.fromkeys(publish)), tuple(subscribe), answers)


def _sent(channel: Channel, role: Role, subjects: Subjects) -> str:
    """A service beats in its own name only."""
    return subjects.to(channel.name, service=role) if channel.name == "beat" else subjects.to(channel.name)


def _jetstream(role: Role, subjects: Subjects) -> list[str]:
    models, artifacts = f"KV_{subjects.models_bucket}", f"OBJ_{subjects.artifacts_bucket}"
    responses = f"KV_{subjects.responses_bucket}"
    match role:
        case "worker":
            return [
                *_read(models),
                *_read(artifacts),
                f"$KV.{subjects.models_bucket}.>",
                f"$O.{subjects.artifacts_bucket}.>",
                f"$JS.API.STREAM.PURGE.{artifacts}",
            ]
        case "tokenizer":
            return [*_read(models), *_read(artifacts), *_read(responses), f"$KV.{subjects.responses_bucket}.>"]
        case "frontend":
            return [*_read(models), *_read(responses), f"$KV.{subjects.responses_bucket}.>"]
        case "tool-dispatch":
            return [
                *_read(subjects.tool_stream),
                *_pull(subjects),
                f"$JS.API.CONSUMER.DURABLE.CREATE.{subjects.tool_stream}.*",
                f"$JS.API.CONSUMER.NAMES.{subjects.tool_stream}",
                f"$JS.API.CONSUMER.LIST.{subjects.tool_stream}",
            ]
        case "operator":
            return ["$JS.API.>"]
        case _:
            return []


def _read(stream: str) -> list[str]:
    """Look into a stream: its state, one message, or all by an ordered consumer of one's own."""
    return [
        "$JS.API.STREAM.NAMES",  # the client looks the stream up by subject
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.DELETE.{stream}.*",
        f"$JS.FC.{stream}.>",
    ]


def _pull(subjects: Subjects) -> list[str]:
    """Take calls from a tool's consumer."""
    return [
        f"$JS.API.STREAM.INFO.{subjects.tool_stream}",
        f"$JS.API.CONSUMER.INFO.{subjects.tool_stream}.*",
        f"$JS.API.CONSUMER.MSG.NEXT.{subjects.tool_stream}.*",
        f"$JS.ACK.{subjects.tool_stream}.>",
    ]


def matrix(subjects: Subjects) -> str:
    """All roles as Markdown."""
    lines = [
        "# Permissions",
        "",
        "What each role may publish and subscribe. `answers`: it may publish to the reply subject of what it receives",
        "(`allow_responses`). `catenary up` gives its broker one user per service with exactly these rights, and",
        "`catenary nats-permissions` prints them for a broker of your own ([how](../how-to/secure-the-broker.md)).",
        f"Executors have one account per tool; `{PLACEHOLDER}` stands for its name.",
        "",
    ]
    for role in ROLES:
        of = rights(role, subjects)
        lines += [
            f"## {role}",
            "",
            f"answers: {'yes' if of.answers else 'no'}",
            "",
            "| publish | subscribe |",
            "| --- | --- |",
        ]
        rows = max(len(of.publish), len(of.subscribe))
        for at in range(rows):
            cells = (f"`{side[at]}`" if at < len(side) else "" for side in (of.publish, of.subscribe))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
