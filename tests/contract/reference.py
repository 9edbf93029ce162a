"""Reference pages that are generated from the code: `python -m tests.contract.reference` writes them anew."""

import json
from collections.abc import Callable
from importlib.metadata import version

from catenary_cli.config import docs
from catenary_protocols.bus.asyncapi import document
from catenary_protocols.bus.permissions import matrix
from catenary_protocols.bus.registry import TRAFFIC
from catenary_protocols.bus.subjects import CHANNELS, DEFAULT_NAMESPACE, Subjects

from tests.contract.workspace import ROOT

FOLDER = ROOT / "docs" / "reference"


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
    "asyncapi.json": asyncapi,
    "permissions.md": lambda: matrix(Subjects()),
    "settings.md": docs,
    "subjects.md": subjects,
}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
