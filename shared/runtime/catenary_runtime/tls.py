"""Encryption. Rule: where it is wanted, nothing is said to a broker that does not encrypt.

It is wanted with a `tls://` URL, or when any file of it is named.
"""

import asyncio
import ssl

from nats.aio.client import Client
from nats.errors import Error as NatsError

from catenary_runtime.config import ConfigError, Settings

SCHEME = "tls://"


def broker_tls(settings: Settings) -> ssl.SSLContext | None:
    """How to speak to the broker of these settings, None for plain text; raises `ConfigError`."""
    named = settings.nats_ca or settings.nats_cert or settings.nats_key
    if not named and SCHEME not in settings.nats:
        return None
    if bool(settings.nats_cert) != bool(settings.nats_key):
        raise ConfigError("nats_cert and nats_key go together", field="nats_cert")
    try:
        context = ssl.create_default_context(cafile=settings.nats_ca or None)
        if settings.nats_cert:
            context.load_cert_chain(settings.nats_cert, settings.nats_key)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(filter(None, (settings.nats_ca, settings.nats_cert, settings.nats_key)))
        raise ConfigError(f"nats_ca, nats_cert, nats_key ({files}): {error}", field="nats_ca") from error
    return context


def server_tls(cert: str, key: str) -> ssl.SSLContext | None:
    """How a server of ours speaks, None for plain text; raises `ConfigError`."""
    if not cert and not key:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key or None)
    except OSError as error:
        raise ConfigError(f"tls_cert, tls_key ({cert}, {key}): {error}", field="tls_cert") from error
    return context


class CarefulClient(Client):
    """Ends a connection where encryption is wanted and not offered; nats-py would go on without.

    Whoever stands between could then offer none, and be told the password.
    """

    @property
    def server_id(self) -> str:
        """Names the running broker; one that was restarted has another. "" before the first connect."""
        return str(self._server_info.get("server_id", ""))

    @property
    def clustered(self) -> bool:
        """Whether the broker is one of several."""
        return bool(self._server_info.get("cluster"))

    def abandon(self) -> None:
        """Close the socket of a failed connect, which nats-py leaves open; its own `close` may wait for ever on it."""
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]

    def forget_unsent(self) -> None:
        """Drop what has not left yet; nats-py would send it first thing when it is connected again."""
        self._pending.clear()
        self._pending_data_size = 0

    async def _send_ping(self, future: asyncio.Future[None] | None = None) -> None:
        """Behind what waits to be sent. nats-py writes it past that: a PONG would prove nothing of a subscription."""
        if self.is_connected and self._pending and self._transport is not None:
            self._transport.writelines(self._pending[:])
            self.forget_unsent()
        await super()._send_ping(future)

    def _connect_command(self) -> bytes:
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise NatsError("the broker does not encrypt, and TLS is wanted")
        return super()._connect_command()
