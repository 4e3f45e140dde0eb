"""Whether speculation pays at a temperature, and how many tokens to speculate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.analysis.request_stats import RecentWork

_MOST_TOKENS: Final = 16  # more are never advised
# vLLM has no switch for single requests; the runbook SpecDecodeAcceptanceLowAtTemperature.md says more.
_LOSING: Final = "Send this traffic to pods that don't speculate, or speculate fewer tokens."


class Verdict(StrEnum):
    """What an acceptance rate means for the time that generation takes."""

    NET_POSITIVE = "net_positive"
    BREAK_EVEN = "break_even"
    NET_NEGATIVE = "net_negative"
    INSUFFICIENT_DATA = "insufficient_data"


@dataclass(frozen=True, slots=True)
class VerdictThresholds:
    """Acceptance rates (0 to 1) and the volume below which nothing is said.

    ``margin``: how far beyond a threshold a rate has to go to change a verdict. ``window`` is the length of the sliding
    window in seconds, ``min_share`` the part of all draft tokens that a bucket must have.
    """

    net_negative: float = 0.5
    break_even: float = 0.65
    fewer_tokens: float = 0.4
    more_tokens: float = 0.8
    min_requests: int = 20
    min_drafts_per_second: float = 1.0
    min_share: float = 0.1
    window: float = 300.0
    margin: float = 0.01


class Judge:
    """Keeps each temperature's verdict, so that one near a threshold does not flap."""

    def __init__(self, thresholds: VerdictThresholds) -> None:
        self._thresholds = thresholds
        self._verdicts: dict[str, Verdict] = {}

    def judge(self, recent: Mapping[str, RecentWork]) -> dict[str, Verdict]:
        """The verdicts on all temperatures of a model, from their sliding windows."""
        total = sum(work.draft_tokens for work in recent.values())
        for temperature, work in recent.items():
            before = self._verdicts.get(temperature, Verdict.INSUFFICIENT_DATA)
            self._verdicts[temperature] = verdict(before, work, total, self._thresholds)
        return {temperature: self._verdicts[temperature] for temperature in recent}


def verdict(before: Verdict, work: RecentWork, total: float, thresholds: VerdictThresholds) -> Verdict:
    """The verdict that follows ``before``; ``total`` are the draft tokens of all temperatures."""
    # A verdict once given holds until the volume is half of what it took.
    need = 1.0 if before is Verdict.INSUFFICIENT_DATA else 0.5
    enough = (
        work.requests >= need * thresholds.min_requests
        and work.drafts >= need * thresholds.min_drafts_per_second * thresholds.window
        and work.draft_tokens >= need * thresholds.min_share * total
    )
    if work.acceptance is None or not enough:
        return Verdict.INSUFFICIENT_DATA
    near = {_plain(work.acceptance + shift, thresholds) for shift in (-thresholds.margin, thresholds.margin)}
    return before if before in near else _plain(work.acceptance, thresholds)


def _plain(acceptance: float, thresholds: VerdictThresholds) -> Verdict:
    if acceptance < thresholds.net_negative:
        return Verdict.NET_NEGATIVE
    return Verdict.BREAK_EVEN if acceptance < thresholds.break_even else Verdict.NET_POSITIVE


def advice(judged: Verdict, work: RecentWork, thresholds: VerdictThresholds) -> str | None:
    """What to change where ``judged`` is the verdict on ``work``; None where all fits, or too little is known."""
    if judged is Verdict.INSUFFICIENT_DATA:
        return None
    found = None if work.acceptance is None else tokens_advice(work.acceptance, work.positions, thresholds)
    return _LOSING if found is None and judged is Verdict.NET_NEGATIVE else found


def tokens_advice(acceptance: float, positions: Sequence[float], thresholds: VerdictThresholds) -> str | None:
    """What to change about the number of speculative tokens; None where it fits.

    ``positions[p]`` is the acceptance rate at draft position p, out of all drafts; empty where not known.
    """
    if acceptance < thresholds.fewer_tokens:
        return _fewer(acceptance, positions, thresholds)
    if acceptance > thresholds.more_tokens:
        return _more(acceptance, positions, thresholds)
    return None


def _fewer(acceptance: float, positions: Sequence[float], thresholds: VerdictThresholds) -> str:
    text = f"Acceptance {acceptance:.2f}: speculate fewer tokens"
    if not positions:
        return f"{text}."
    worth = sum(1 for rate in positions if rate >= thresholds.fewer_tokens)  # rates fall from position to position
    if worth == 0:
        return f"{text}, or none: even the first is accepted {positions[0]:.0%} of the time."
    if worth == len(positions):
        return f"{text}."
    return f"{text}: {worth} instead of {len(positions)}; the next one is accepted {positions[worth]:.0%} of the time."


def _more(acceptance: float, positions: Sequence[float], thresholds: VerdictThresholds) -> str | None:
    text = f"Acceptance {acceptance:.2f}: speculate more tokens"
    if not positions or positions[-1] <= 0:
        return f"{text}."
    # Beyond the last position acceptance is taken to fall as it did on the way there, on average.
    fall = min(positions[-1] ** (1 / len(positions)), 1.0)
    rate, count = positions[-1], len(positions)
    while count < min(2 * len(positions), _MOST_TOKENS) and rate * fall >= thresholds.fewer_tokens:
        rate, count = rate * fall, count + 1
    if count == len(positions):
        return None
    return f"{text}: up to {count} instead of {len(positions)}, as long as latency under load allows."
