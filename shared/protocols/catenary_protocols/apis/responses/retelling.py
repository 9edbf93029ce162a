"""The stream of a response that is over and whose events nobody has any more: its beginning and its end."""

import msgspec

from catenary_protocols.apis.responses.answer import Response
from catenary_protocols.apis.responses.assembly import Writer

_decode = msgspec.json.Decoder(Response).decode


def told_again(body: bytes, after: int) -> bytes:
    """Events of the response in `body` with numbers above `after`; the last of them is always among them."""
    response = _decode(body)
    begun = msgspec.structs.replace(response, status="in_progress", output=[], usage=None, incomplete_details=None)
    writer = Writer(after)
    writer.event("response.created", response=begun)
    writer.event("response.in_progress", response=begun)
    writer.skip(after)
    writer.event(f"response.{response.status}", response=response)
    return writer.flush()
