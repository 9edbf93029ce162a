"""Who is alive, and whether we may speak: beats out, beats in, incarnations.

Silence counts only while our own beat comes back to us: when it does not, *we* are cut off, and after a cut everyone
gets a fresh death limit. Whoever heard nothing of itself for longer than the death limit, because it was frozen, the
broker was away or the way to it was blocked, has been thought dead: it takes a new incarnation, discards what it held,
and speaks again with its beat.

Where the broker tells of connections that ended, a peer whose connection did has a shorter limit to be heard again:
one that only lost its connection is back by then, one that was killed is not. It is judged when a beat of ours that was
sent after that time has come back. Who comes back later than that, to the same broker or another of its cluster, knows
itself thought dead. Whoever takes a peer's name and disconnects makes nobody dead by it.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import structlog
from catenary_protocols.bus.broker import Disconnected
from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import Beat, WorkerLoad
from catenary_protocols.bus.subjects import BROKER_DISCONNECTS
from nats.aio.msg import Msg

from catenary_runtime.bus import Bus
from catenary_runtime.metrics import INCARNATIONS, PEERS

log = structlog.get_logger()
BEAT_S = 0.25
AGAIN_S = 0.35
"""More than the bus waits before it connects again; its first beat follows at once."""
_MARGIN_S = 0.1
"""How much sooner than others we think ourselves dead: their word and our beat are on their way for so long at most."""
_CLOCK_S = 0.001
"""What the loop's clock counts by."""
AnyBeat = Beat | WorkerLoad
_decode: Decoder[AnyBeat] = Decoder(Beat | WorkerLoad)  # type: ignore[arg-type]  # a union of types is no type to mypy
_disconnected = Decoder(Disconnected, json=True)


@dataclass(slots=True)
class Peer:
    """A live instance of a service, as its last beat told."""

    service: str
    instance: str
    incarnation: int
    heard_at: float
    beat: AnyBeat

    @property
    def takes_work(self) -> bool:
        """Ready and not draining."""
        return self.beat.ready and not self.beat.draining


@dataclass(slots=True)
class Listener:
    """What a service wants to hear of its peers.

    A peer that comes back in a new incarnation was restarted, or was cut off and has kept its state: its beat's live
    turns tell which. That is `on_renewed(old, new)`; left out, it is `on_down(old)`, then `on_up(new)`.
    """

    on_up: Callable[[Peer], None] = lambda _: None
    on_beat: Callable[[Peer], None] = lambda _: None
    on_down: Callable[[Peer], None] = lambda _: None
    on_renewed: Callable[[Peer, Peer], None] | None = None


@dataclass(slots=True)
class Presence:
    """See the module.

    Attributes:
        make_beat: builds our beat; must carry `incarnation` as it is here.
        on_renewed: called after a new incarnation was taken, with the old one; before the first beat.
    """

    bus: Bus
    service: str
    instance: str
    make_beat: Callable[[], AnyBeat]
    interval: float = BEAT_S
    death_limit: float = 1.5
    incarnation: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    on_renewed: Callable[[int], None] = lambda _: None
    _peers: dict[tuple[str, str], Peer] = field(default_factory=dict)
    _listeners: list[Listener] = field(default_factory=list)
    _own_heard_at: float = 0.0
    _ticked_at: float = 0.0
    _grace_until: float = 0.0
    _frozen: float = 0.0
    _soon: bool = False
    _ended: dict[tuple[str, str], float] = field(default_factory=dict)
    _told: bool = False
    """The broker tells of connections that ended."""

    async def start(self, watch: Iterable[str] = ()) -> None:
        """Subscribe to our own beat and to those of the services in `watch`."""
        self.bus.on_back = self._came_back
        INCARNATIONS.inc()
        watched = set(watch)
        subjects = {self._subject(service, None) for service in watched}
        if self.service not in watched:
            subjects.add(self._subject(self.service, self.instance))
        for subject in subjects:
            await self.bus.subscribe(subject, self._on_beat)
        await self.bus.subscribe(BROKER_DISCONNECTS, self._on_disconnect)
        await self.bus.pass_by()
        self._own_heard_at = self._ticked_at = self._now()

    def listen(self, listener: Listener) -> None:
        """Tell `listener` from now on."""
        self._listeners.append(listener)

    def live(self, service: str) -> list[Peer]:
        """Peers of a service that are thought alive."""
        return [peer for (name, _), peer in self._peers.items() if name == service]

    def get(self, service: str, instance: str) -> Peer | None:
        """One live peer."""
        return self._peers.get((service, instance))

    @property
    def again(self) -> float:
        """Seconds that a peer whose connection ended has to be heard again."""
        return self.interval + AGAIN_S

    @property
    def cut_off(self) -> bool:
        """Our own beat does not come back to us."""
        return not self.bus.connected or self._now() - self._own_heard_at > 2.5 * self.interval + 0.2

    async def run(self) -> None:
        """Beat and watch until cancelled."""
        self._own_heard_at = self._ticked_at = self.bus.alive_at = self._now()
        self.bus.release()
        while True:
            self.tick()
            await asyncio.sleep(self.interval)

    def beat_soon(self) -> None:
        """Send a beat now, since something changed."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._beat_now)

    def tick(self) -> None:
        """One round: notice a freeze, beat, bury the silent."""
        now = self._now()
        self._frozen = max(self._frozen, now - self._ticked_at)
        self._ticked_at = now
        if self.bus.connected:
            if self._frozen > self.death_limit:
                self._rejoin(self._frozen)
            self._frozen = 0.0
        self._publish()
        if self.cut_off:
            self._grace_until = now + self.death_limit
        elif now > self._grace_until:
            self._bury(now)

    def _bury(self, now: float) -> None:
        for key, peer in list(self._peers.items()):
            if now - max(peer.heard_at, self._grace_until - self.death_limit) > self.death_limit:
                log.warning("peer.dead", service_dead=peer.service, peer=peer.instance, silent_s=now - peer.heard_at)
                del self._peers[key]
                self._tell_down(peer)

    def _came_back(self) -> None:
        now = self._now()
        away = max(now - self._own_heard_at, self._frozen)
        self._frozen = 0.0
        self._grace_until = now + self.death_limit
        told = self._told and self.bus.told_of_us
        if away > (min(self.again - _MARGIN_S, self.death_limit) if told else self.death_limit):
            self._rejoin(away)
        else:
            self._own_heard_at = self.bus.alive_at = now
            self._publish()
            self.bus.release()

    def _rejoin(self, away: float) -> None:
        old = self.incarnation
        self.incarnation = max(old + 1, time.time_ns() // 1_000_000)
        dropped = self.bus.discard()
        INCARNATIONS.inc()
        log.warning("incarnation.renewed", away_s=round(away, 3), old=old, new=self.incarnation, dropped=dropped)
        now = self._own_heard_at = self._ticked_at = self._now()
        self._frozen = 0.0
        self._grace_until = now + self.death_limit
        self.on_renewed(old)
        self._publish()
        self.bus.alive_at = now
        self.bus.release()

    def _beat_now(self) -> None:
        self._soon = False
        self._publish()

    def _publish(self) -> None:
        self.bus.publish_now(self._subject(self.service, self.instance), encode(self.make_beat()))

    def _subject(self, service: str, instance: str | None) -> str:
        if service == "worker":
            return self.bus.subjects.to("load", **({"worker": instance} if instance else {}))
        return self.bus.subjects.to("beat", service=service, **({"instance": instance} if instance else {}))

    def _on_beat(self, msg: Msg) -> None:
        beat = _decode(msg.data)
        if isinstance(beat, WorkerLoad):
            service, instance = "worker", beat.worker
        else:
            service, instance = beat.service, beat.instance
        now = self._now()
        if instance == self.instance and service == self.service:
            self._heard_ourselves(now)
        key = (service, instance)
        peer = self._peers.get(key)
        if peer is not None and beat.incarnation < peer.incarnation:
            return
        if peer is None or beat.incarnation > peer.incarnation:
            old, peer = peer, Peer(service, instance, beat.incarnation, now, beat)
            self._peers[key] = peer
            PEERS.labels(service=service).set(len(self.live(service)))
            self._tell_up(old, peer)
        peer.heard_at = now
        peer.beat = beat
        for listener in self._listeners:
            listener.on_beat(peer)

    def _heard_ourselves(self, now: float) -> None:
        silent = now - self._own_heard_at
        if silent > self.death_limit:
            self._rejoin(silent)
        self._own_heard_at = self.bus.alive_at = now
        self._judge(now)

    def _on_disconnect(self, msg: Msg) -> None:
        name, now, self._told = _disconnected(msg.data).client.name, self._now(), True
        ended = [key for key in self._peers if key[1] == name and key != (self.service, self.instance)]
        if ended:
            self._ended |= dict.fromkeys(ended, now)
            asyncio.get_running_loop().call_later(self.again, self._publish)

    def _judge(self, now: float) -> None:
        """Bury those that were not heard again since their connection ended."""
        for key, since in list(self._ended.items()):
            if now - since < self.again - _CLOCK_S:
                continue
            del self._ended[key]
            peer = self._peers.get(key)
            if peer is not None and peer.heard_at <= since and now > self._grace_until:
                log.warning("peer.disconnected", service_dead=peer.service, peer=peer.instance)
                self.leave(*key)

    def leave(self, service: str, instance: str) -> None:
        """A peer said goodbye or was found dead by other means."""
        peer = self._peers.pop((service, instance), None)
        if peer is not None:
            self._tell_down(peer)

    def _tell_up(self, old: Peer | None, new: Peer) -> None:
        for listener in self._listeners:
            if old is not None and listener.on_renewed is not None:
                listener.on_renewed(old, new)
                continue
            if old is not None:
                listener.on_down(old)
            listener.on_up(new)

    def _tell_down(self, peer: Peer) -> None:
        PEERS.labels(service=peer.service).set(len(self.live(peer.service)))
        for listener in self._listeners:
            listener.on_down(peer)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
