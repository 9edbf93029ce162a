"""What `catenary up` prints when the mesh is ready: where it is, what runs, what to try."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import which

from catenary_cli.mesh import Mesh

TRY = """\
Try
  curl -N {api}/v1/chat/completions -H 'content-type: application/json' -d '{{
    "model": "{model}", "stream": true, "nvext": {{"run_tools": true, "tool_dispatch": true}},
    "messages": [{{"role": "user", "content": "What is the weather in `Oslo`?"}}],
    "tools": [{{"type": "function", "function": {{"name": "get_weather", "parameters": {{"type": "object",
      "properties": {{"city": {{"type": "string"}}}}, "required": ["city"]}}}}}}]}}'
  {catenary} services --data-dir {data}
  nats --server {broker} sub '{namespace}.tool.>'
"""


def welcome(mesh: Mesh) -> str:
    """The one table, and a request to begin with."""
    options = mesh.options
    facts = (
        ("API", f"{mesh.api}/v1"),
        ("reference", f"{mesh.api}/docs"),
        ("broker", mesh.broker),
        ("models", ", ".join(f"{model.name} ({model.engine} x {model.workers})" for model in options.models)),
        ("tools", ", ".join(options.tools) or "none"),
        ("logs", str(options.data_dir / "logs")),
    )
    rows = [
        (child.plan.service, child.plan.instance, str(child.pid), child.plan.url.removesuffix("/ready"))
        for child in mesh.children
    ]
    asking = TRY.format(
        api=mesh.api,
        model=options.models[0].name,
        broker=mesh.broker,
        namespace=options.common.namespace,
        data=options.data_dir,
        catenary=_command(),
    )
    return "\n".join(
        [
            "Catenary is ready.",
            "",
            *columns(facts),
            "",
            *columns((("service", "instance", "pid", "HTTP"), *rows)),
            "",
            asking,
        ]
    )


def _command() -> str:
    """What the reader's shell knows `catenary` as."""
    script = Path(sys.executable).with_name("catenary")
    return "catenary" if which("catenary") == str(script) else os.path.relpath(script)


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows as aligned text."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        indent + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
