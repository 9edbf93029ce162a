"""`catenary keys new`: an API key, told once, and the entry of the file that lets it in."""

import argparse
import json
import secrets
import sys

from catenary_frontend.core.keys import hash_of, key_from

ABOUT = "Make an API key and the entry that lets it in; the key itself is kept nowhere."
EXAMPLE = "catenary keys new --tenant acme >> keys.toml"
KEY_BYTES = 32


def add(parser: argparse.ArgumentParser) -> None:
    """Flags of the command."""
    parser.add_argument("what", choices=("new",), metavar="new", help="make a key")
    parser.add_argument("--tenant", default="", help="whose key it is (default: a tenant of its own)")
    parser.add_argument("-o", "--output", choices=("toml", "json"), default="toml", help="how to print (toml)")


def run(args: argparse.Namespace) -> int:
    """Print it. In TOML the key is on the terminal (stderr), so that stdout can be appended to the file."""
    key = key_from(secrets.token_bytes(KEY_BYTES))
    entry = {"hash": hash_of(key), **({"tenant": args.tenant} if args.tenant else {})}
    if args.output == "json":
        print(json.dumps({"key": key, **entry}, indent=2))
    else:
        print(f"the key, told this once: {key}", file=sys.stderr)
        print("\n[[keys]]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items()), sep="\n")
    return 0
