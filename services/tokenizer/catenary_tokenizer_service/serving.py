"""The model that a request names: at once when it is loaded, else as soon as it is, and never after the limit.

A model is served from the moment a ready worker says so. Whoever asks for it then waits until its tokenizer is loaded.
"""

import asyncio

from catenary_protocols.errors import CapacityError, CatenaryError, RequestError
from catenary_runtime.models import Directory

from catenary_tokenizer_service.models import Models, ServedModel


class Serving:
    """See the module.

    Attributes:
        models: those that are loaded.
    """

    def __init__(self, directory: Directory, models: Models, limit_s: float) -> None:
        self._directory = directory
        self.models = models
        self._limit_s = limit_s

    def check(self, name: str) -> None:
        """Raise what is known against a model at once: no worker has it, or its card cannot be served."""
        self._why_not(name, self._card(name))

    async def model(self, name: str) -> ServedModel:
        """It, loaded; raises `CatenaryError`, when loading takes longer than the limit too."""
        card = self._card(name)
        try:
            async with asyncio.timeout(self._limit_s):
                while (model := self.models.get(card)) is None:
                    self._why_not(name, card)
                    await self.models.news(card)
        except TimeoutError:
            error = f"model {name!r} is still being loaded"
            raise CapacityError(error, code="model_not_ready", retry_after=1.0) from None
        return model

    def loading(self) -> list[str]:
        """Models that workers serve and this tokenizer does not yet."""
        served = self._directory.live().items()
        return [name for name, card in served if self.models.get(card) is None and not self.models.why_not(card)]

    def _card(self, name: str) -> str:
        card = self._directory.live().get(name)
        if card is None:
            raise RequestError(f"model {name!r} is not served here", code="model_not_found", field="model")
        return card

    def _why_not(self, name: str, card: str) -> None:
        if why := self.models.why_not(card):
            raise CatenaryError(f"model {name!r} cannot be served: {why}", field="model")
