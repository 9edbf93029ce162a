"""What the tokenizers' beats mean for their turns here."""

import asyncio

from catenary_protocols.bus.messages import Beat
from catenary_runtime.links import LinkSender
from catenary_runtime.presence import Listener, Peer, Presence

from catenary_worker.core.turns import Turns, listed_at
from catenary_worker.runner import Runner


class Owners:
    """Listens to presence; `check` is called with every beat of ours."""

    def __init__(self, presence: Presence, turns: Turns, links: LinkSender, runner: Runner) -> None:
        self._presence = presence
        self._turns = turns
        self._links = links
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        presence.listen(Listener(on_beat=self._on_beat, on_down=self._on_down, on_renewed=self._on_renewed))

    def check(self) -> None:
        """Give up turns whose owners are silent; nothing is concluded while *we* are cut off."""
        if self._presence.cut_off:
            return
        now = self._loop.time()
        self._runner.dropped(self._turns.unanswered(now), "unanswered")
        live = {peer.instance for peer in self._presence.live("tokenizer")}
        self._runner.dropped(self._turns.strays(live, now), "owner_lost")

    def _on_beat(self, peer: Peer) -> None:
        if isinstance(peer.beat, Beat) and peer.service == "tokenizer":
            listed = listed_at(self._presence.instance, peer.beat.turns)
            self._runner.dropped(self._turns.beat(peer.instance, listed, self._loop.time()), "not_wanted")

    def _on_down(self, peer: Peer) -> None:
        if peer.service == "tokenizer":
            self._runner.dropped(self._turns.owner_gone(peer.instance, self._loop.time()), "owner_lost")
            self._links.forget(peer.instance)

    def _on_renewed(self, _: Peer, new: Peer) -> None:
        if isinstance(new.beat, Beat) and new.service == "tokenizer":
            listed = listed_at(self._presence.instance, new.beat.turns)
            now = self._loop.time()
            gone = self._turns.owner_renewed(new.instance, new.incarnation, listed, now)
            self._runner.dropped(gone, "owner_lost")
