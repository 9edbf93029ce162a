"""The `catenary` command. Exit codes: 0 done, 1 it failed, 2 asked wrongly, 130 killed by a second Ctrl-C."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any, NoReturn

from catenary_protocols.errors import CatenaryError

COMMANDS = {
    "up": "up",
    "demo": "demo",
    "chat": "chat",
    "top": "top",
    "trace": "trace",
    "why": "why",
    "doctor": "doctor",
    "provision": "provisioning",
    "services": "services",
    "config": "config",
    "keys": "keys",
    "nats-permissions": "nats_permissions",
    "simulate": "simulate",
}
FAILED, MISUSED, KILLED = 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Says what was probably meant."""

    def __init__(self, **options: Any) -> None:
        self.words: list[str] = []
        super().__init__(allow_abbrev=False, **options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        self.words += names
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        found = re.search(r"invalid choice: '(.*?)'|unrecognized arguments: (\S+)", message)
        words = [*self.words, *re.findall(r"[\w.-]+", message.partition("(choose from")[2])]
        close = difflib.get_close_matches(next(filter(None, found.groups())), words, n=1) if found else []
        hint = f"; did you mean `{close[0]}`?" if close else "" if found else f"; `{self.prog} --help` tells of it"
        self.exit(MISUSED, f"{self.prog}: {message}{hint}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command."""
    parser = _Parser(prog="catenary", description="A mesh of small services that serves language models to agents.")
    parser.add_argument("--version", action="version", version=version("catenary-cli"))
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = import_module(f"catenary_cli.{module}")
        one = commands.add_parser(
            name, help=command.ABOUT, description=command.ABOUT, epilog=f"example: {command.EXAMPLE}"
        )
        command.add(one)
        one.set_defaults(run=command.run, parser=one)
    args, unknown = parser.parse_known_args(argv)
    run, chosen = args.run, args.parser
    if unknown:
        chosen.error(f"unrecognized arguments: {unknown[0]}")
    for used in ("run", "parser", "command"):
        delattr(args, used)
    try:
        code = int(run(args))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read this had enough; what is still in the buffer goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except CatenaryError as error:
        print(f"catenary: {error.message}", file=sys.stderr)
        return MISUSED if error.field else FAILED
    except KeyboardInterrupt:
        return KILLED
    return code


if __name__ == "__main__":
    sys.exit(main())
