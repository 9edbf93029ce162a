"""Rule: a turn is submitted again only when that cannot repeat anything its client or an executor has seen.

A turn whose owner died is given to another one if not a single event of it came and nothing could have been missed.
Otherwise it ends in an error, which says "do not retry" once a call of it was published.
"""

from catenary_protocols.errors import ErrorInfo


def may_resubmit(*, last_event: int, submitted_at: float, cut_at: float) -> bool:
    """Whether a dead owner's turn may go to another. `cut_at`: when we were last cut off from the bus."""
    return last_event == 0 and cut_at < submitted_at


def owner_lost(*, calls_published: bool) -> ErrorInfo:
    """How a turn ends whose owner died in the middle of it."""
    return ErrorInfo(
        code="owner_lost",
        message="the service that ran this turn was lost in the middle of it",
        retry=not calls_published,
    )


def cut_off(*, calls_published: bool) -> ErrorInfo:
    """How a turn ends that waited too long for the bus."""
    return ErrorInfo(
        code="disconnected",
        message="this service has lost its connection to the mesh",
        retry_after=1.0,
        retry=not calls_published,
    )


def nobody(retry_after: float) -> ErrorInfo:
    """How a turn ends for which no owner was found."""
    return ErrorInfo(code="overloaded", message="no tokenizer service takes turns just now", retry_after=retry_after)
