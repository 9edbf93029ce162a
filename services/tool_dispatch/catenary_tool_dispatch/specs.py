"""What a registry may say: one struct for a `[[tools]]` table, one for an `[[mcp]]` table."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from catenary_protocols.errors import CatenaryError
from msgspec import Meta, Struct

from catenary_tool_dispatch.arguments import ArgumentCheck

MAX_OUTPUT_BYTES = 1024 * 1024
"""A result travels in one bus message of 8 MB, and JSON may need six bytes for one."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"accept-encoding", "connection", "content-length", "content-type", "host", "transfer-encoding"})


class RegistryError(CatenaryError):
    """The registry file is wrong at `field`."""

    default_code = "invalid_value"


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What bounds the runs of a tool, and of each tool of an MCP server.

    Attributes:
        timeout_s: seconds a run may take.
        max_output_bytes: a longer output is cut there, and marked as truncated.
        concurrency: runs at once in one instance.
        at_most_once: acknowledge before the run: after a crash the call is not run again, and expires.
        approval: wait for a yes on `tool.approve.<tool>.<key>`.
    """

    timeout_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    max_output_bytes: Annotated[int, Meta(gt=0, le=MAX_OUTPUT_BYTES)] = 64 * 1024
    concurrency: Annotated[int, Meta(gt=0, le=1024)] = 8
    at_most_once: bool = False
    approval: bool = False


class ToolSpec(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tool.

    Attributes:
        schema: JSON Schema (draft 2020-12) of the arguments; in the file a table, or the name of a JSON file beside it.
        python: `module:callable`, a function or coroutine function that takes the arguments by keyword.
        command: argv; gets the arguments as JSON on stdin, answers on stdout.
        url: gets the arguments as a POST of JSON, answers in the body.
        headers: for `url`: the environment variable that holds the value of each header.
        private_host: for `url`: its host, when that may lead to an address that is not public.
    """

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str = ""
    schema: dict[str, Any] = {}
    python: str = ""
    command: list[str] = []
    url: str = ""
    headers: dict[str, str] = {}
    private_host: str = ""


class McpSpec(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One MCP server, whose tools are found when it starts.

    Attributes:
        command: argv of a server that speaks on stdin and stdout.
        url: of a server that speaks streamable HTTP.
        env: for `command`: names of environment variables that it is given beside the usual ones.
        log: for `command`: file to which its stderr is appended; left out, it is dropped.
        headers, private_host: for `url`, as in `ToolSpec`.
        prefix: stands before each tool's name; left out, the server's name and `_`.
        tools: the tools to offer, by the server's names; empty for all.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    command: list[str] = []
    url: str = ""
    env: list[str] = []
    log: str = ""
    headers: dict[str, str] = {}
    private_host: str = ""
    prefix: str | msgspec.UnsetType = msgspec.UNSET
    tools: list[str] = []

    def offered(self, name: str) -> str:
        """The name under which a tool of the server is offered."""
        return (f"{self.name}_" if self.prefix is msgspec.UNSET else self.prefix) + name


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that is ready to be offered: its spec and its compiled argument check."""

    spec: ToolSpec
    check: ArgumentCheck


@dataclass(frozen=True, slots=True)
class Registry:
    """What a file says, by name."""

    tools: Mapping[str, Tool]
    servers: Mapping[str, McpSpec]


def check_way(spec: ToolSpec | McpSpec, ways: tuple[str, ...], where: str) -> None:
    """One way to run, and what goes with it; raises `RegistryError`."""
    if sum(bool(getattr(spec, way)) for way in ways) != 1:
        names = ", ".join(f"`{way}`" for way in ways[:-1])
        raise RegistryError(f"{where}: give one of {names} and `{ways[-1]}`", field=where)
    for belongs, keys in (("url", ("headers", "private_host")), ("command", ("env", "log"))):
        for key in keys:
            if not getattr(spec, belongs) and getattr(spec, key, None):
                raise RegistryError(f"{where}: `{key}` goes with `{belongs}`", field=f"{where}.{key}")
    if spec.url:
        _check_url(spec, where)
    for name in (*spec.headers.values(), *getattr(spec, "env", ())):
        if name not in os.environ:
            field = f"{where}.{'headers' if name in spec.headers.values() else 'env'}"
            raise RegistryError(f"{field}: the environment has no variable {name}", field=field)


def _check_url(spec: ToolSpec | McpSpec, where: str) -> None:
    try:
        url = urlsplit(spec.url)
        host = url.hostname
        _ = url.port
    except ValueError as error:
        raise RegistryError(f"{where}.url: {error}", field=f"{where}.url") from error
    if url.scheme not in {"http", "https"} or not host:
        raise RegistryError(f"{where}.url must begin with https:// or http:// and a host", field=f"{where}.url")
    if url.username is not None or url.password is not None:
        raise RegistryError(f"{where}.url: secrets belong in `headers`, by variable", field=f"{where}.url")
    if spec.private_host not in {"", host}:
        said = f"{where}.private_host is {spec.private_host!r}, and the URL's host {host!r}"
        raise RegistryError(said, field=f"{where}.private_host")
    for name, variable in spec.headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OURS:
            raise RegistryError(f"{where}.headers: {name!r} is no header to set", field=f"{where}.headers")
        if not re.fullmatch(r"[\t\x20-\x7e]*", os.environ.get(variable, "")):
            said = f"{where}.headers: {variable} holds what no header can"
            raise RegistryError(said, field=f"{where}.headers")
