"""``load``: speculation loses at the load of the window, and pays with fewer requests running."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.judgement import Verdict
from sidecar.analysis.speed.speedup import LoadReport

_ENOUGH_STEPS: Final = 1000  # at a load


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Finding):
    """The speedup with ``running`` requests, and the one at the lower load ``fewer``.

    ``running`` is the mean number of requests, ``fewer`` the label of a range; ``error`` is the
    standard error of ``speedup``.
    """

    code: ClassVar[str] = "load"
    running: float
    speedup: float
    error: float
    fewer: str
    speedup_at_fewer: float


def load(situation: Situation) -> Iterator[Load]:
    """The finding at the lowest load at which speculation clearly pays."""
    model = situation.model
    speed = model.speed
    if speed is None or speed.speedup is None or speed.steps is None:
        return
    if model.judgement.by_speedup is not Verdict.NET_NEGATIVE:
        return

    ratio = speed.speedup.ratio
    error = speed.speedup.error
    for lower in model.loads:  # from low to high
        gain = _speedup_below(lower, speed.steps.running)
        if gain is not None and gain * (1 - CONFIDENCE * error / ratio) > 1:
            yield Load(
                running=speed.steps.running,
                speedup=ratio,
                error=error,
                fewer=lower.running,
                speedup_at_fewer=gain,
                cost=1 - ratio,
            )
            return


def _speedup_below(load: LoadReport, running: float) -> float | None:
    """The speedup at a load; None if it is not below ``running``, or not known well enough."""
    is_lower = load.highest is not None and load.highest < running
    if not is_lower or load.steps < _ENOUGH_STEPS:
        return None
    if not load.plain_seconds or not load.actual_seconds:
        return None
    return load.plain_seconds / load.actual_seconds


LOAD: Final = FindingRule(kind=Load, gate=load, place=Place.NUMBER)
RULES: Final = (LOAD,)
