"""How long is a prompt? The tokenizer that would run the turn renders it as it would then, and counts."""

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CountTokens, Refused, TokenCount
from catenary_protocols.conversation import Conversation
from catenary_protocols.errors import CapacityError, RequestError, TransportError
from catenary_runtime.rendezvous import pick

from catenary_frontend.core.resubmit import nobody
from catenary_frontend.edge import Edge
from catenary_frontend.owners import ASK_ANOTHER, LONGEST_MESSAGE

_answer: Decoder[TokenCount | Refused] = Decoder(TokenCount | Refused)  # type: ignore[arg-type]  # a union
ANSWER_S = 5.0
"""How long one tokenizer may take."""


async def count_tokens(edge: Edge, model: str, conversation: Conversation, session: str) -> int:
    """Exact length of the prompt, in tokens; raises `CatenaryError`. Who does not answer is not asked again."""
    data = encode(CountTokens(model=model, conversation=conversation))
    if len(data) > LONGEST_MESSAGE:
        error = f"the request is {len(data)} bytes long on the bus; {LONGEST_MESSAGE} are possible"
        raise RequestError(error, code="request_too_large")
    peers = {peer.instance for peer in edge.presence.live("tokenizer") if peer.takes_work}
    while owner := pick(session, peers):
        peers.remove(owner)
        try:
            answer = _answer(
                await edge.bus.request(edge.bus.subjects.to("turn", tokenizer=owner), data, within=ANSWER_S)
            )
        except TransportError:
            continue
        if isinstance(answer, TokenCount):
            return answer.tokens
        if answer.error.code not in ASK_ANOTHER:
            raise RequestError.from_info(answer.error)
    raise CapacityError.from_info(nobody(retry_after=1.0))
