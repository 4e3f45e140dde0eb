"""One completed request of a level; numbers only, never its text."""

from collections.abc import Iterable

import msgspec

from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.attribution.result import Attribution, attributed
from sidecar.analysis.request_window import add_positions
from sidecar.requests.record import RequestRecord


class Sample(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Seconds, and vLLM's own numbers if the reply has them; else ``drafts`` is None.

    ``ttft`` is the time to the first token, ``tpot`` that for each output token after it; None if unknown.
    ``histogram[j]``: verification steps that accepted j tokens. Saved as an array, in the order of the fields.
    """

    temperature: float
    ttft: float | None
    tpot: float | None
    duration: float
    tokens: int | None
    drafts: int | None = None
    draft_tokens: int = 0
    accepted_tokens: int = 0
    histogram: tuple[int, ...] = ()


def sample(record: RequestRecord, temperature: float) -> Sample:
    """The sample of a completed request."""
    times = attributed(record, "", Attribution.NONE)
    numbers = record.acceptance
    return Sample(
        temperature=temperature,
        ttft=times.ttft,
        tpot=times.tpot,
        duration=times.duration,
        tokens=record.completion_tokens,
        drafts=None if numbers is None else numbers.drafts,
        draft_tokens=0 if numbers is None else numbers.draft_tokens,
        accepted_tokens=0 if numbers is None else numbers.accepted_tokens,
        histogram=() if numbers is None else numbers.histogram,
    )


def acceptance(samples: Iterable[Sample]) -> Acceptance | None:
    """The sum of the requests' own numbers; None if no reply has any."""
    exact = [one for one in samples if one.drafts is not None]
    positions: list[int] = []
    for one in exact:
        add_positions(positions, one.histogram)
    if not exact:
        return None
    return Acceptance(
        drafts=sum(one.drafts or 0 for one in exact),
        draft_tokens=sum(one.draft_tokens for one in exact),
        accepted_tokens=sum(one.accepted_tokens for one in exact),
        positions=tuple(positions),
    )
