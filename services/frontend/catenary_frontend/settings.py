from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from catenary_runtime.config import PORTS, Settings, option

from catenary_frontend.core.keys import Policy, read_entry, read_keys

MB = 1024 * 1024


def keys_in(entries: Iterable[str]) -> tuple[Policy, ...]:
    """The keys of `api_keys`; raises `ValueError`."""
    return tuple(map(read_entry, entries))


def keys_of(file: str) -> tuple[Policy, ...]:
    """The keys of `keys_file`, "" for none; raises `ValueError` or `OSError`."""
    return read_keys(Path(file).read_text(encoding="utf-8")) if file else ()


def named(aliases: Iterable[str]) -> dict[str, str]:
    """The model behind each name of `aliases`; raises `ValueError`."""
    pairs: dict[str, str] = {}
    for entry in aliases:
        alias, _, model = entry.partition("=")
        if not alias or not model:
            raise ValueError(f"{entry!r} is not name=model")
        pairs[alias] = model
    return pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendSettings(Settings):
    """HTTP edge: OpenAI and Anthropic APIs."""

    port: int = option(8000, "Port of the APIs; 0 picks a free one.", among=PORTS)
    tls_cert: str = option("", "Certificate chain of the APIs (PEM); without it they are plain HTTP.")
    tls_key: str = option("", "Key of that certificate (PEM).")
    max_connections: int = option(4096, "Client connections at a time; one more is told 503 and closed.")
    head_s: float = option(10.0, "Longest time a request's line and headers may take to come.", positive=True)
    body_s: float = option(60.0, "Longest time a request's body may take to come.", positive=True)
    api_keys: tuple[str, ...] = option(
        (),
        "Hashes of keys that may call, each `hash` or `tenant:hash`; without any key, anyone may.",
        secret=True,
        check=keys_in,
    )
    keys_file: str = option(
        "", "TOML file of keys that may call and what each may do; read again when it changes.", check=keys_of
    )
    aliases: tuple[str, ...] = option((), "Other names of models, each `name=model`.", check=named)
    max_body_bytes: int = option(7 * MB, "Longest request body.")
    hold_s: float = option(1.0, "Longest time a stream's status line waits for something to stream.")
    heartbeat_s: float = option(10.0, "Silence on a stream after which a sign of life is sent.", positive=True)
    resume_s: float = option(5.0, "How long a stored response goes on after its client left, for it to come back.")
    slow_reader_bytes: int = option(MB // 2, "What may wait for a client that reads slowly, before its turn is cut.")
