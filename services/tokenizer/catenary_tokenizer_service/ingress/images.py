"""Images of a conversation: the template leaves a mark for each in the prompt, the engine gets them beside it."""

from hashlib import blake2b

from catenary_protocols.conversation import Conversation, ImagePart, ToolMessage, UserMessage
from catenary_protocols.errors import RequestError


def images_of(conversation: Conversation, *, seen: bool) -> tuple[str, ...]:
    """URLs in the order of the prompt's marks; raises `RequestError` for a model that has never `seen` one."""
    found: list[str] = []
    for at, message in enumerate(conversation.messages):
        if isinstance(message, UserMessage | ToolMessage):
            found += [part.url for part in message.parts if isinstance(part, ImagePart)]
            if found and not seen:
                raise RequestError("this model takes no images", code="unsupported", field=f"messages[{at}].content")
    return tuple(found)


def salt_with(images: tuple[str, ...], salt: str) -> str:
    """A salt that keeps blocks apart that are alike in tokens and not in what their images show."""
    if not images:
        return salt
    digest = blake2b(digest_size=16)
    for url in images:
        digest.update(len(url).to_bytes(8, "little") + url.encode())
    return f"{salt}/images/{digest.hexdigest()}"
