"""Images of a conversation: the template leaves a mark for each in the prompt, the engine gets them beside it."""

from hashlib import blake2b

from catenary_protocols.conversation import Conversation
from catenary_protocols.errors import RequestError


def images_of(conversation: Conversation, *, seen: bool) -> tuple[str, ...]:
    """URLs in the order of the prompt's marks; raises `RequestError` for a model that has never `seen` one."""
    found = list(conversation.images())
    if found and not seen:
        raise RequestError("this model takes no images", code="unsupported", field=found[0].field)
    return tuple(image.url for image in found)


def salt_with(images: tuple[str, ...], salt: str) -> str:
    """A salt that keeps blocks apart that are alike in tokens and not in what their images show."""
    if not images:
        return salt
    digest = blake2b(digest_size=16)
    for url in images:
        digest.update(len(url).to_bytes(8, "little") + url.encode())
    return f"{salt}/images/{digest.hexdigest()}"
