"""The models a client may name, and what to say of others."""

from collections.abc import Callable, Mapping

import msgspec
from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import CapacityError, RequestError
from catenary_runtime.models import Directory

LONGEST = 256
"""Characters of a name that is told back."""
May = Callable[[str], bool]


def _anyone(_: str) -> bool:
    return True


class Catalog:
    """Models that are served, and those that were: their workers may come back. `aliases`: the model of each."""

    def __init__(self, directory: Directory, aliases: Mapping[str, str]) -> None:
        self._directory = directory
        self._aliases = aliases
        self._known: set[str] = set()
        directory.on_card = lambda card: self._known.add(card.model)

    def cards(self, may_use: May = _anyone) -> list[ModelCard]:
        """Models that are served now, by name, and then the aliases of those; only names one may use."""
        served = self._directory.all()
        named = {card.model: card for card in served}
        others = (
            msgspec.structs.replace(named[model], model=alias)
            for alias, model in self._aliases.items()
            if model in named and alias not in named
        )
        return [card for card in (*served, *others) if may_use(card.model)]

    def find(self, model: str, may_use: May = _anyone) -> ModelCard:
        """The card of a model or alias; raises `RequestError` (unknown) or `CapacityError` (no worker now).

        The error names only models one may use.
        """
        card = self._directory.current(model) or self._directory.current(self._aliases.get(model, ""))
        if card is not None:
            return card
        if model in self._known or self._aliases.get(model) in self._known:
            raise CapacityError(f"no worker serves model {model!r} just now", code="model_not_ready", retry_after=1)
        served = ", ".join(card.model for card in self.cards(may_use))
        if not served:
            raise CapacityError("no model is served yet", code="model_not_ready", retry_after=1)
        asked = model if len(model) <= LONGEST else f"{model[:LONGEST]}…"
        raise RequestError(f"no model {asked!r} here; there is: {served}", code="model_not_found", field="model")
