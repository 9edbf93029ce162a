"""One connection to NATS, with the mesh's rules: publishing and callbacks never await, nothing leaves unchecked.

While the connection is away, or our own beats do not come back to us, messages are held *here* and nats-py is handed
nothing: it would flush them before anyone could check whether this process is still entitled to speak. `Presence`
decides what becomes of what is held: `release` it, or `discard` it under a new incarnation. What is held is bounded;
the oldest is dropped first, and its receiver sees a gap and asks.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import structlog
from catenary_protocols.bus.codec import UndecodableError
from catenary_protocols.bus.subjects import Subjects
from catenary_protocols.errors import TransportError
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoServersError, SlowConsumerError
from nats.js import JetStreamContext

from catenary_runtime.metrics import BUS_DROPPED, BUS_LOST, BUS_UNDECODABLE
from catenary_runtime.tls import CarefulClient

log = structlog.get_logger()
Handler = Callable[[Msg], None]
Headers = dict[str, str]

HELD_LIMIT = 64 * 1024 * 1024
SUBSCRIPTION_BYTES = 256 * 1024 * 1024
SUBSCRIPTION_MESSAGES = 512 * 1024
MIN_PAYLOAD = 8 * 1024 * 1024
LONGEST_MESSAGE = MIN_PAYLOAD - 4096
"""Bytes; the rest is for headers."""
_QUIET_S = 1.0
"""Between two lines that say the same of messages that were lost one after the other."""


@dataclass(slots=True)
class Ask:
    """A message that is out with a reply subject. `close` it when no more replies are wanted."""

    bus: "Bus"
    number: str
    on_reply: Handler
    on_nobody: Callable[[], None]

    def close(self) -> None:
        """Forget it; later replies are dropped."""
        self.bus.forget(self.number)


class Bus:
    """See the module.

    Attributes:
        instance: names the connection.
        inbox: beginning of the subjects on which we are answered; made from the instance's name if left out.
    """

    def __init__(
        self,
        url: str,
        subjects: Subjects,
        instance: str,
        *,
        death_limit: float = 1.5,
        inbox: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.subjects = subjects
        self.instance = instance
        self.death_limit = death_limit
        self.alive_at = 0.0
        """Loop time of our last beat that came back to us; set by `Presence`."""
        self.connected_at = 0.0
        self.lost_at = 0.0
        self.told_of_us = True
        """Whether others may have heard that we were gone: the broker that we lost lives, or may do so in a cluster."""
        self.on_lost: Callable[[], None] = lambda: None
        self.on_back: Callable[[], None] = lambda: None
        self._url = url
        self._nc = CarefulClient()
        self._tls = tls
        self._held: deque[tuple[str, bytes, str, Headers | None]] = deque()
        self._held_bytes = 0
        self._asks: dict[str, Ask] = {}
        self._numbers = count(1)
        self.inbox = inbox or f"_INBOX.{instance}"
        self._loop = asyncio.get_running_loop()
        self._js: JetStreamContext | None = None
        self._refused = ""
        self._told_at = 0.0

    # --- connection ---------------------------------------------------------------------------------------------

    async def connect(self, within: float = 30.0) -> None:
        """Connect, trying for `within` seconds; raises `TransportError`."""
        try:
            async with asyncio.timeout(within):
                await self._nc.connect(
                    servers=self._url.split(","),
                    name=self.instance,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.1,  # type: ignore[arg-type]  # seconds; a float works
                    connect_timeout=2,
                    ping_interval=2,
                    max_outstanding_pings=2,
                    pending_size=-1,
                    inbox_prefix=self.inbox,
                    tls=self._tls,
                    allow_reconnect=True,
                )
        except (NatsError, OSError, TimeoutError) as error:
            why = self._refused or str(error) or type(error).__name__
            raise TransportError(f"no broker at {redact(self._url)}: {why}") from error
        if self._nc.max_payload < MIN_PAYLOAD:
            await self._nc.close()
            raise TransportError(f"the broker's max_payload is {self._nc.max_payload}; {MIN_PAYLOAD} is needed")
        self.connected_at, self.alive_at, self.lost_at = self._loop.time(), self._loop.time(), 0.0
        await self.subscribe(f"{self.inbox}.ask.*", self._on_reply)

    async def pass_by(self) -> None:
        """Open another connection and end it: whoever listens learns whether the broker tells of such."""
        with contextlib.suppress(NatsError, TransportError, TimeoutError):  # without it we only know less
            await self._nc.flush(2)
            passing = await connect_once(self._url, f"{self.instance}-passing", tls=self._tls)
            await passing.close()

    async def close(self) -> None:
        """Flush what was handed over, then disconnect."""
        with contextlib.suppress(NatsError, asyncio.TimeoutError, OSError):
            if self._nc.is_connected:
                await self._nc.flush(2)
        with contextlib.suppress(NatsError, OSError):
            await self._nc.close()

    @property
    def nc(self) -> Client:
        """The client underneath, for JetStream and the Services API."""
        return self._nc

    @property
    def js(self) -> JetStreamContext:
        """JetStream."""
        if self._js is None:
            self._js = self._nc.jetstream()
        return self._js

    @property
    def connected(self) -> bool:
        """Whether the broker is there, and after an absence it is decided who we are now: no word goes out before."""
        return self._nc.is_connected and not self.lost_at

    @property
    def fresh(self) -> bool:
        """Connected again within the death limit: that nobody listens then means "not yet", not "dead"."""
        return self._loop.time() - self.connected_at < self.death_limit

    async def _on_error(self, error: Exception) -> None:
        if not isinstance(error, NatsError | OSError | TimeoutError):
            log.error("bus.callback_failed", exc_info=error)
            return
        if isinstance(error, SlowConsumerError):
            self._lost(error.subject)
            return
        why = str(error) or type(error).__name__
        if not self.connected_at:
            if not self._refused:
                log.warning("bus.waiting", broker=redact(self._url), error=why)
            self._refused = why
        elif not self.lost_at:  # else it was said by `bus.disconnected`; every failed try to reconnect comes here
            log.warning("bus.error", error=why)

    def _lost(self, subject: str) -> None:
        """A message came faster than its handler reads: its number is missing, and its sender is asked."""
        BUS_LOST.labels(channel=_channel(self.subjects, subject)).inc()
        if self._loop.time() - self._told_at > _QUIET_S:
            self._told_at = self._loop.time()
            log.warning("bus.lost", subject=subject)

    async def _on_disconnected(self) -> None:
        if not self._nc.is_closed and not self.lost_at:
            self.lost_at, self._lost_broker = self._loop.time(), self._nc.server_id
            log.warning("bus.disconnected")
            self._nc.forget_unsent()
            self.on_lost()

    async def _on_reconnected(self) -> None:
        self.connected_at = self._loop.time()
        self.told_of_us = self._nc.server_id == self._lost_broker or self._nc.clustered
        log.info("bus.reconnected", away_s=round(self.connected_at - self.lost_at, 3))
        self.lost_at = 0.0
        self.on_back()

    # --- out ----------------------------------------------------------------------------------------------------

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
        """Send, or hold while this process may not speak. Never awaits; raises `TransportError` only for size."""
        if not self.connected or self._held or self._loop.time() - self.alive_at > self.death_limit:
            self._hold(subject, data, reply, headers)
        else:
            self.publish_now(subject, data, reply=reply, headers=headers)

    def publish_now(self, subject: str, data: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
        """Send past the gate: for beats. Dropped while there is no connection."""
        if not self.connected:
            return
        sending = self._nc.publish(subject, data, reply=reply, headers=headers)
        try:
            sending.send(None)  # with pending_size=-1 it only appends to the client's buffer
        except StopIteration:
            return
        except MaxPayloadError as error:
            raise TransportError(f"a message of {len(data)} bytes is over the broker's limit") from error
        sending.close()

    def _hold(self, subject: str, data: bytes, reply: str, headers: Headers | None) -> None:
        self._held.append((subject, data, reply, headers))
        self._held_bytes += len(data)
        while self._held_bytes > HELD_LIMIT:
            self._held_bytes -= len(self._held.popleft()[1])
            BUS_DROPPED.inc()

    def release(self) -> None:
        """Send what was held: this process was never thought dead."""
        held, self._held, self._held_bytes = self._held, deque(), 0
        for subject, data, reply, headers in held:
            self.publish_now(subject, data, reply=reply, headers=headers)

    def discard(self) -> int:
        """Drop what was held, since others have gone on without it. Returns how many messages."""
        dropped = len(self._held)
        self._held.clear()
        self._held_bytes = 0
        return dropped

    # --- ask and answer -----------------------------------------------------------------------------------------

    def ask(
        self,
        subject: str,
        data: bytes,
        on_reply: Handler,
        on_nobody: Callable[[], None],
        *,
        headers: Headers | None = None,
    ) -> Ask:
        """Send with a reply subject. Replies go to `on_reply`; `on_nobody` is called at once when nobody listens."""
        number = str(next(self._numbers))
        ask = self._asks[number] = Ask(self, number, on_reply, on_nobody)
        self.publish(subject, data, reply=f"{self.inbox}.ask.{number}", headers=headers)
        return ask

    def forget(self, number: str) -> None:
        """No more replies to this ask are wanted."""
        self._asks.pop(number, None)

    async def request(self, subject: str, data: bytes, *, within: float, headers: Headers | None = None) -> bytes:
        """One answer; raises `TransportError` when nobody listens or none comes `within` so many seconds."""
        answer: asyncio.Future[bytes] = self._loop.create_future()

        def replied(msg: Msg) -> None:
            if not answer.done():
                answer.set_result(msg.data)

        def nobody() -> None:
            if not answer.done():
                answer.set_exception(TransportError(f"nobody listens on {subject}"))

        ask = self.ask(subject, data, replied, nobody, headers=headers)
        try:
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError:
            raise TransportError(f"no answer on {subject} in {within:g} s") from None
        finally:
            ask.close()

    def _on_reply(self, msg: Msg) -> None:
        ask = self._asks.get(msg.subject.rpartition(".")[2])
        if ask is None:
            return
        if not msg.data and msg.headers and msg.headers.get("Status") == "503":
            ask.on_nobody()
        else:
            ask.on_reply(msg)

    # --- in -----------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """Call `handler` for each message. It must not await; bytes it cannot decode are counted and dropped."""

        async def call(msg: Msg) -> None:
            try:
                handler(msg)
            except UndecodableError as error:
                BUS_UNDECODABLE.labels(channel=_channel(self.subjects, subject)).inc()
                log.warning("bus.undecodable", subject=msg.subject, size=len(msg.data), error=error.message)

        return await self._nc.subscribe(
            subject,
            queue=queue,
            cb=call,
            pending_msgs_limit=SUBSCRIPTION_MESSAGES,
            pending_bytes_limit=SUBSCRIPTION_BYTES,
        )


def _channel(subjects: Subjects, subject: str) -> str:
    return subject.removeprefix(subjects.namespace + ".").partition(".")[0]


def redact(url: str) -> str:
    """The URL without its password."""
    parts = []
    for one in url.split(","):
        scheme, sep, rest = one.partition("://")
        user, at, host = rest.rpartition("@")
        parts.append(f"{scheme}{sep}{user.partition(':')[0]}:***@{host}" if at else f"{scheme}{sep}{host}")
    return ",".join(parts)


async def connect_once(url: str, name: str, **options: Any) -> Client:
    """A plain connection for short commands; raises `TransportError` when the broker is not there."""
    client = CarefulClient()
    try:
        await client.connect(
            url.split(","),
            name=name,
            allow_reconnect=False,
            connect_timeout=2,
            max_reconnect_attempts=1,  # the first connect counts as one, and tries again this often
            reconnect_time_wait=0.05,  # type: ignore[arg-type]  # seconds; a float works
            error_cb=_quiet,
            **options,
        )
    except (NatsError, NoServersError, OSError, TimeoutError) as error:
        client.abandon()
        raise TransportError(f"no broker at {redact(url)}: {error or type(error).__name__}") from error
    return client


async def _quiet(_: Exception) -> None:
    """Errors of a short command reach its caller as exceptions."""
