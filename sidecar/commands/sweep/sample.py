"""One completed request of a level; numbers only, never its text."""

from collections.abc import Iterable

import msgspec

from sidecar.analysis.attribution.result import Attribution, attributed
from sidecar.requests.record import RequestRecord


class Sample(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Seconds, and vLLM's own numbers if the reply carries them; else ``drafts`` is None.

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


def position_rates(histograms: Iterable[tuple[int, ...]]) -> tuple[float, ...]:
    """The acceptance rate at each draft position, 0 to 1; empty without histograms."""
    steps: list[int] = []
    for histogram in histograms:
        steps.extend([0] * (len(histogram) - len(steps)))
        for accepted, count in enumerate(histogram):
            steps[accepted] += count
    total = sum(steps)
    return tuple(sum(steps[position:]) / total for position in range(1, len(steps))) if total else ()
