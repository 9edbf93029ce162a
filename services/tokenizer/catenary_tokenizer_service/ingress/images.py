"""Images of a conversation: the template leaves a mark for each in the prompt, the engine gets them beside it."""

from collections.abc import Mapping

from catenary_protocols.conversation import Conversation
from catenary_protocols.errors import RequestError
from catenary_tokenizers import unpack

_NAMES = ("image", "img", "vision")


def images_of(conversation: Conversation, *, seen: bool) -> tuple[str, ...]:
    """URLs in the order of the prompt's marks; raises `RequestError` for a model that has never `seen` one."""
    found = list(conversation.images())
    if found and not seen:
        raise RequestError("this model takes no images", code="unsupported", field=found[0].field)
    return tuple(image.url for image in found)


def places_of(images: tuple[str, ...], ids: bytes, controls: Mapping[str, int]) -> tuple[int, ...]:
    """Where in the prompt each image's mark stands: that control token of which there are as many as images.

    Callers' text makes no control token, so that none is counted wrongly. A template that leaves no mark of its own for
    each image might have it anywhere: then all of them count from the first token on.
    """
    if not images:
        return ()
    tokens = unpack(ids)
    for text, index in sorted(controls.items()):
        if any(name in text.lower() for name in _NAMES) and tokens.count(index) == len(images):
            return tuple(place for place, token in enumerate(tokens) if token == index)
    return (0,) * len(images)
