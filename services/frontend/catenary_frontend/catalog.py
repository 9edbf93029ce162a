"""The models a client may name, and what to say of others."""

from catenary_protocols.bus.messages import ModelCard
from catenary_protocols.errors import CapacityError, RequestError
from catenary_runtime.models import Directory


class Catalog:
    """Models that are served, and those that were: their workers may come back."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._known: set[str] = set()
        directory.on_card = lambda card: self._known.add(card.model)

    def cards(self) -> list[ModelCard]:
        """Models that are served now, by name."""
        return self._directory.all()

    def find(self, model: str) -> ModelCard:
        """The card of a model; raises `RequestError` (unknown) or `CapacityError` (no worker now)."""
        card = self._directory.current(model)
        if card is not None:
            return card
        if model in self._known:
            raise CapacityError(f"no worker serves model {model!r} just now", code="model_not_ready", retry_after=1)
        served = ", ".join(card.model for card in self.cards())
        if not served:
            raise CapacityError("no model is served yet", code="model_not_ready", retry_after=1)
        raise RequestError(f"no model {model!r} here; there is: {served}", code="model_not_found", field="model")
