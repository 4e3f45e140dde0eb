"""What the middleware says to the sidecar: msgpack arrays in packets of at most 64 KiB over a Unix SEQPACKET socket.

The sidecar believes nothing it reads: every field has a type and a range, and what doesn't fit is refused whole.
"""

import math
from typing import Annotated, Final, Literal

import msgspec

from sidecar.requests.observe.payload import ENDPOINTS, LONGEST_HISTOGRAM, adds_up
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord

VERSION: Final = 1
MAX_PACKET_BYTES: Final = 65_536
MAX_PACKET_EVENTS: Final = 512

DROPPED_QUEUE_FULL: Final = "queue_full"  # the sidecar was away or slow for longer than the queue lasts
DROPPED_INTERNAL: Final = "internal"  # a fault of the middleware's own: that request went unobserved

ENDPOINT_NUMBERS: Final[dict[str, int]] = {endpoint: number for number, endpoint in enumerate(ENDPOINTS)}
_OUTCOMES: Final = tuple(Outcome)
OUTCOME_NUMBERS: Final = {outcome: number for number, outcome in enumerate(_OUTCOMES)}

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**40)]
Model = Annotated[str, msgspec.Meta(max_length=256)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern="^[a-z0-9_.-]+$")]
Histogram = Annotated[tuple[Count, ...], msgspec.Meta(max_length=LONGEST_HISTOGRAM)]


class Started(msgspec.Struct, array_like=True, frozen=True, tag=0, forbid_unknown_fields=True):
    """A request has begun. ``number`` counts a sender's requests from 0 on."""

    number: Count
    endpoint: Annotated[int, msgspec.Meta(ge=0, lt=len(ENDPOINTS))]
    start: Seconds  # Unix time


class Finished(msgspec.Struct, array_like=True, frozen=True, tag=1, forbid_unknown_fields=True):
    """A request has ended: the fields of ``RequestRecord``, but ``first_token`` and ``end`` count from ``start``."""

    number: Count
    endpoint: Annotated[int, msgspec.Meta(ge=0, lt=len(ENDPOINTS))]
    outcome: Annotated[int, msgspec.Meta(ge=0, lt=len(_OUTCOMES))]
    start: Seconds
    first_token: Seconds | None
    end: Seconds
    model: Model | None
    temperature: float | None
    choices: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    stream: bool
    max_tokens: Count | None
    prompt_tokens: Count | None
    completion_tokens: Count | None
    stream_events: Count
    acceptance: tuple[Count, Count, Count, Histogram] | None


class Packet(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Events of one sender in the order they happened.

    ``first`` is the number of the first event among all that the sender has sent, so that a gap shows what got lost on
    the way; what the sender dropped itself has no number and is in ``dropped``, since the last packet and by reason.
    Every request numbered below ``oldest_open`` has ended and its end was sent or dropped before this packet.
    """

    version: Literal[1]
    sender: Name
    first: Count
    oldest_open: Count
    dropped: Annotated[dict[Name, Count], msgspec.Meta(max_length=64)]
    events: Annotated[list[Started | Finished], msgspec.Meta(max_length=MAX_PACKET_EVENTS)]


def begun(number: int, endpoint: str, start: float) -> Started:
    """The event that says that a request has begun."""
    return Started(number, ENDPOINT_NUMBERS[endpoint], start)


def is_consistent(event: Finished) -> bool:
    """Whether numbers that are in their ranges each don't contradict one another."""
    temperature, acceptance = event.temperature, event.acceptance
    return (
        (temperature is None or (not temperature < 0 and not math.isinf(temperature)))
        and (event.first_token is None or event.first_token <= event.end)
        and (acceptance is None or adds_up(acceptance))
    )


def record_of(request_id: str, event: Finished) -> RequestRecord:
    """The record that ``event`` stands for."""
    return RequestRecord(
        id=request_id,
        path=ENDPOINTS[event.endpoint],
        model=event.model,
        temperature=event.temperature,
        choices=event.choices,
        stream=event.stream,
        start=event.start,
        first_token=None if event.first_token is None else event.start + event.first_token,
        end=event.start + event.end,
        outcome=_OUTCOMES[event.outcome],
        max_tokens=event.max_tokens,
        prompt_tokens=event.prompt_tokens,
        completion_tokens=event.completion_tokens,
        stream_events=event.stream_events,
        acceptance=None if event.acceptance is None else RequestAcceptance(*event.acceptance),
    )


def abandoned(request_id: str, event: Started, end: float) -> RequestRecord:
    """The record of a request whose end will never be told: aborted as far as anyone can know, all else unknown."""
    return RequestRecord(
        id=request_id,
        path=ENDPOINTS[event.endpoint],
        model=None,
        temperature=math.nan,
        choices=1,
        stream=False,
        start=event.start,
        first_token=None,
        end=max(end, event.start),
        outcome=Outcome.ABORTED,
    )
