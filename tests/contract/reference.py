"""What is generated from the code and committed: `python -m tests.contract.reference` writes it anew."""

import json
from collections.abc import Callable
from importlib.metadata import version

from catenary_cli.config import docs
from catenary_cli.nats_permissions import written
from catenary_protocols.bus.asyncapi import document
from catenary_protocols.bus.permissions import matrix
from catenary_protocols.bus.registry import TRAFFIC
from catenary_protocols.bus.subjects import CHANNELS, DEFAULT_NAMESPACE, Subjects

from tests.contract.workspace import ROOT


def asyncapi() -> str:
    return json.dumps(document(version("catenary-protocols")), indent=1) + "\n"


def subjects() -> str:
    lines = [
        "# Subjects",
        "",
        f"After the namespace (`{DEFAULT_NAMESPACE}` unless told otherwise). `core`: published and forgotten; `request`:",
        "carries a reply subject; `stream`: kept in JetStream. The types are in [asyncapi.json](asyncapi.json).",
        "",
        "| subject | kind | from → to | messages | answers | what |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, channel in CHANNELS.items():
        traffic = TRAFFIC[name]
        sent = " ".join(f"`{kind.__name__}`" for kind in traffic.messages) or "JSON object"
        answers = " ".join(f"`{kind.__name__}`" for kind in traffic.replies)
        way = f"{', '.join(channel.senders)} → {', '.join(channel.receivers)}"
        lines.append(f"| `{channel.pattern}` | {channel.kind} | {way} | {sent} | {answers} | {channel.about} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/asyncapi.json": asyncapi,
    "docs/reference/permissions.md": lambda: matrix(Subjects()),
    "docs/reference/settings.md": docs,
    "docs/reference/subjects.md": subjects,
    "deploy/nats/accounts.conf": lambda: written(Subjects()),
}
"""By their path in the repository."""


def main() -> None:
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())


if __name__ == "__main__":
    main()
