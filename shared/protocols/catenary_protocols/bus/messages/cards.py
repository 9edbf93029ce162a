"""What a worker tells of its model, kept in a bucket."""

from catenary_protocols.bus.messages.base import Message


class ModelCard(Message, frozen=True):
    """What a model is. Kept in the `models` bucket under `<token(model)>.<card>`.

    Attributes:
        card: content hash over the artifacts and the fields that change tokens.
        artifacts: file name → object name in the artifacts store.
        parser, reasoning: format names of catenary-parsers.
        context: tokens.
        images, logprobs: whether it takes images, and whether its engine tells log probabilities.
        guides: whether its engine can be made to keep to a grammar; else what it says is looked at afterwards.
    """

    model: str
    card: str
    context: int
    block_size: int
    artifacts: dict[str, str]
    parser: str = ""
    reasoning: str = "auto"
    created: int = 0
    owned_by: str = "catenary"
    images: bool = False
    logprobs: bool = False
    guides: bool = True
