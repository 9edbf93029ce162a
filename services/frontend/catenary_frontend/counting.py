"""What a tokenizer says of a prompt without running it: it renders and counts as it would for a turn."""

from catenary_protocols.bus.codec import Decoder, encode
from catenary_protocols.bus.messages import CountTokens, Detokenize, Refused, TokenCount, TokenText
from catenary_protocols.conversation import Conversation
from catenary_protocols.errors import CapacityError, RequestError, TransportError
from catenary_runtime.bus import LONGEST_MESSAGE
from catenary_runtime.rendezvous import pick

from catenary_frontend.core.resubmit import nobody
from catenary_frontend.edge import Edge
from catenary_frontend.owners import ASK_ANOTHER

_answer: Decoder[TokenCount | TokenText | Refused] = Decoder(TokenCount | TokenText | Refused)  # type: ignore[arg-type]  # a union
ANSWER_S = 5.0
"""How long one tokenizer may take."""


async def count_tokens(edge: Edge, model: str, conversation: Conversation, session: str) -> int:
    """Exact length of the prompt, in tokens; raises `CatenaryError`."""
    return (await _count(edge, CountTokens(model=model, conversation=conversation), session)).tokens


async def tokenize(edge: Edge, model: str, conversation: Conversation, session: str, tenant: str) -> bytes:
    """The token ids (little-endian u32) of a session's prompt; raises `CatenaryError`."""
    message = CountTokens(model=model, conversation=conversation, ids=True, session=session, tenant=tenant)
    return (await _count(edge, message, session)).ids


async def detokenize(edge: Edge, model: str, ids: bytes) -> str:
    """The text of token ids; raises `CatenaryError`."""
    answer = await _ask(edge, Detokenize(model=model, ids=ids), model)
    if not isinstance(answer, TokenText):
        raise TransportError(f"a tokenizer answered with {type(answer).__name__}")
    return answer.text


async def _count(edge: Edge, message: CountTokens, session: str) -> TokenCount:
    answer = await _ask(edge, message, session)
    if not isinstance(answer, TokenCount):
        raise TransportError(f"a tokenizer answered with {type(answer).__name__}")
    return answer


async def _ask(edge: Edge, message: CountTokens | Detokenize, session: str) -> TokenCount | TokenText:
    """The answer of the first tokenizer that gives one. Who does not is not asked again."""
    data = encode(message)
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
        if not isinstance(answer, Refused):
            return answer
        if answer.error.code not in ASK_ANOTHER:
            raise RequestError.from_info(answer.error)
    raise CapacityError.from_info(nobody(retry_after=1.0))
