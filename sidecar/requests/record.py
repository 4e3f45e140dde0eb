"""What is known about one request to vLLM, but never its text.

The ranges apply to records read from outside the process; see ``middleware/wire.py``.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

UNKNOWN_TEMPERATURE: Final = math.nan
"""The request may have a temperature, but it could not be read. None would mean that it has none."""

LARGEST_COUNT: Final = 2**53  # the largest range of integers that a double holds exactly
MOST_CHOICES: Final = 2**20  # vLLM refuses n > 16,384 by default
LONGEST_NAME: Final = 256
LONGEST_HISTOGRAM: Final = 128

Count = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
UnixSeconds = Annotated[float, Meta(ge=0, le=2**40)]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
Histogram = Annotated[tuple[Count, ...], Meta(max_length=LONGEST_HISTOGRAM)]
Parameters = Annotated[tuple[Annotated[str, Meta(max_length=24)], ...], Meta(max_length=8)]


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    ABORTED = "aborted"  # the client or the server went away before the end
    ERROR = "error"  # an HTTP status of 400 or more, or an error object in the stream


class AskedUsage(StrEnum):
    """The outcome of asking vLLM for usage on the client's behalf; see ``observe/usage.py``."""

    REMOVED = "removed"  # it came and was removed
    MISSING = "missing"  # the stream ended without it, or it was the server's own
    REFUSED = "refused"  # vLLM refused the changed request and accepted the original one


@dataclass(frozen=True, slots=True)
class RequestAcceptance:
    """vLLM's own speculative-decoding numbers for one request (vLLM 0.29+, its per-request metrics).

    ``histogram[j]`` is the number of verification steps that accepted exactly ``j`` draft tokens; it is empty if vLLM
    sent none.
    """

    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    histogram: Histogram = ()

    @property
    def adds_up(self) -> bool:
        """Whether accepted ≤ drafted, and the histogram sums to the steps and the accepted tokens."""
        if self.accepted_tokens > self.draft_tokens or (self.draft_tokens and not self.drafts):
            return False
        accepted = sum(length * steps for length, steps in enumerate(self.histogram))
        return not self.histogram or (sum(self.histogram), accepted) == (self.drafts, self.accepted_tokens)


@dataclass(frozen=True, slots=True)
class RequestStart:
    """A request in flight; ``id`` is unique within the life of its source."""

    id: Name
    start: UnixSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One finished request.

    ``path`` is the endpoint's, empty if unknown. ``temperature`` is the one in the request: None if it has none and
    the model's default applies; UNKNOWN_TEMPERATURE if it could not be read. ``choices`` is ``n`` times the number
    of prompts. ``stream_events`` counts the events of a stream of chat or text completions that carried generated
    tokens: one per engine step, fewer if vLLM merged some. Otherwise it is 0; ``/v1/responses`` and ``/v1/messages``
    have no event for a step whose text is empty (vLLM 0.32), so their number would say nothing. ``completion_tokens``
    is summed over all choices; None if the reply does not have it. ``asked_usage`` is None if the client's own request
    was sent. ``parameters`` names the sampling parameters in the request that not every vLLM serves under speculation
    (``observe/payload.py`` has the list); traces do not carry them.
    """

    id: Name
    path: Name
    model: Name | None
    temperature: float | None
    choices: Annotated[int, Meta(ge=1, le=MOST_CHOICES)]
    stream: bool
    start: UnixSeconds
    first_token: UnixSeconds | None
    end: UnixSeconds
    outcome: Outcome
    max_tokens: Count | None = None
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    stream_events: Count = 0
    acceptance: RequestAcceptance | None = None
    parameters: Parameters = ()
    asked_usage: AskedUsage | None = None
    event_offsets: tuple[float, ...] = ()  # seconds from ``start``; filled only while recording


def aborted(request: RequestStart, end: float) -> RequestRecord:
    """The record of a request whose end was not observed: counted as aborted."""
    return RequestRecord(
        id=request.id,
        path="",
        model=None,
        temperature=UNKNOWN_TEMPERATURE,
        choices=1,
        stream=False,
        start=request.start,
        first_token=None,
        end=max(end, request.start),
        outcome=Outcome.ABORTED,
    )
