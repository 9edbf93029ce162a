"""`catenary nats-permissions`: accounts, users and their least rights, as a file for nats-server to include."""

import argparse
import json
import re
from collections.abc import Sequence

from catenary_protocols.bus.accounts import ADMIN, accounts, executor_user
from catenary_protocols.bus.permissions import ROLES
from catenary_protocols.bus.subjects import Subjects

from catenary_cli.options import Flags, resolve

ABOUT = "Print accounts and permissions of the mesh for a nats-server of your own."
EXAMPLE = "catenary nats-permissions --tool lookup > accounts.conf"
HEAD = """\
# Accounts and permissions of the mesh {namespace}, from its message registry (`catenary nats-permissions`).
# In nats-server.conf: include "accounts.conf". Passwords come from the server's environment:
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument(
        "--config", default="", help="catenary.toml to read (env CATENARY_CONFIG; default ./catenary.toml)"
    )
    parser.add_argument("--namespace", default="", help="first tokens of every subject (default catenary.v1)")
    parser.add_argument(
        "--tool", action="append", default=[], metavar="NAME", help="also an account for the executors of NAME"
    )


def run(args: argparse.Namespace) -> int:
    """Print them."""
    print(written(resolve(Flags(config=args.config, namespace=args.namespace)).subjects, args.tool), end="")
    return 0


def written(subjects: Subjects, tools: Sequence[str] = ()) -> str:
    """The file for nats-server to include; `tools` have executors of their own."""
    roles = [role for role in ROLES if role not in {"executor", "test"}]
    users = {
        "accounts": accounts(
            subjects,
            {role: f"${variable(role)}" for role in roles},
            f"${variable(ADMIN)}",
            {tool: f"${variable(executor_user(tool))}" for tool in tools},
        )
    }
    text = json.dumps(users, indent=2)
    names = re.findall(r'"password": "\$(\w+)"', text)
    head = HEAD.format(namespace=subjects.namespace) + "".join(f"#   {name}\n" for name in names)
    inside = text[2:-2]  # a file that is included has no braces of its own
    return head + re.sub(r'("password": )"(\$\w+)"', r"\1\2", inside) + "\n"


def variable(user: str) -> str:
    """Environment variable of a user's password."""
    return f"CATENARY_PASSWORD_{re.sub(r'[^A-Za-z0-9]', '_', user)}".upper()
