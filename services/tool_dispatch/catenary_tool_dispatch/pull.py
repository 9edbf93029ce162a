"""One standing pull request at a JetStream consumer, so that a message arrives the moment it is stored.

A request asks for as many messages as there is room for and stays at the server; when it is used up, over, or void
because the connection is a new one, the next goes out at once. It is a plain publish: nothing polls, nothing awaits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import structlog
from catenary_runtime.bus import Bus
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

log = structlog.get_logger()
EXPIRES_S = 30.0
_OVERDUE_S = 5.0
_AGAIN_S = 0.5
_FROM_STREAM = "$JS.ACK."


class Puller:
    """Hands each message of a consumer to `on_message`, which must not await.

    Attributes:
        bind: finds or makes the consumer and returns its name; called again whenever the consumer is gone.
        room: how many more messages can be taken; call `refill` when it grew.
        bound: set while the consumer is there.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        *,
        bind: Callable[[], Awaitable[str]],
        on_message: Callable[[Msg], None],
        room: Callable[[], int],
    ) -> None:
        self._bus = bus
        self._name = name
        self._inbox = f"{bus.inbox}.pull.{name}"
        self._bind = bind
        self._on_message = on_message
        self._room = room
        self._subject = ""
        self._number = 0
        self._standing = 0
        self._sent_at = 0.0
        self._lost = asyncio.Event()
        self.bound = asyncio.Event()
        self._subscription: Subscription | None = None
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Pull until cancelled, binding again whenever the consumer is gone."""
        self._subscription = await self._bus.subscribe(f"{self._inbox}.*", self._on_reply)
        while True:
            self._lost.clear()
            try:
                consumer = await self._bind()
            except (NatsError, TimeoutError) as error:
                log.warning("pull.not_bound", consumer=self._name, error=str(error) or type(error).__name__)
                await asyncio.sleep(_AGAIN_S)
                continue
            self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._bus.subjects.tool_stream}.{consumer}"
            self._standing = 0
            self.bound.set()
            self.refill()
            await self._lost.wait()

    def refill(self) -> None:
        """Send a request if none is standing and there is room."""
        batch = self._room()
        if self._subject and not self._standing and batch > 0 and self._bus.connected:
            self._number += 1
            self._standing = batch
            self._sent_at = self._loop.time()
            body = b'{"batch":%d,"expires":%d}' % (batch, int(EXPIRES_S * 1e9))
            self._bus.publish_now(self._subject, body, reply=f"{self._inbox}.{self._number}")

    def check(self) -> None:
        """Now and then: a request that went out on an earlier connection, or is overdue, is void."""
        overdue = self._loop.time() - self._sent_at > EXPIRES_S + _OVERDUE_S
        if self._standing and (overdue or self._sent_at < self._bus.connected_at):
            self._standing = 0
        self.refill()

    async def stop(self) -> None:
        """Ask for no more, and let the server forget what was asked for; what is on its way still arrives."""
        self._subject = ""
        if self._subscription is not None:
            with contextlib.suppress(NatsError, TimeoutError):
                await self._subscription.drain()  # type: ignore[no-untyped-call]  # as nats-py has it

    def _on_reply(self, msg: Msg) -> None:
        status = (msg.headers or {}).get("Status", "") if not msg.data else ""
        if msg.reply.startswith(_FROM_STREAM):
            self._standing = max(self._standing - 1, 0)
            try:
                self._on_message(msg)
            finally:
                self.refill()
        elif msg.subject == f"{self._inbox}.{self._number}":  # of the standing request; a call keeps its own subject
            self._ended(status, (msg.headers or {}).get("Description", ""))

    def _ended(self, status: str, description: str) -> None:
        """The server let go of the request: it is over (408), or the consumer is gone (503, 409), or too much (409)."""
        self._standing = 0
        if status == "408":
            self.refill()
            return
        log.info("pull.refused", consumer=self._name, status=status, description=description)
        if status == "503" or "deleted" in description.lower():
            self._subject = ""
            self.bound.clear()
            self._lost.set()
