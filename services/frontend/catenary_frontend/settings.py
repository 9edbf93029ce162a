from dataclasses import dataclass

from catenary_runtime.config import PORTS, Settings, option

MB = 1024 * 1024


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
        (), "Hashes of keys that may call, each `hash` or `tenant:hash`; without any key, anyone may.", secret=True
    )
    keys_file: str = option("", "TOML file of keys that may call and what each may do; read again when it changes.")
    aliases: tuple[str, ...] = option((), "Other names of models, each `name=model`.")
    max_body_bytes: int = option(7 * MB, "Longest request body.")
    hold_s: float = option(1.0, "Longest time a stream's status line waits for something to stream.")
    heartbeat_s: float = option(10.0, "Silence on a stream after which a sign of life is sent.", positive=True)
    resume_s: float = option(5.0, "How long a stored response goes on after its client left, for it to come back.")
    slow_reader_bytes: int = option(MB // 2, "What may wait for a client that reads slowly, before its turn is cut.")
