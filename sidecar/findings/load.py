"""``load``: speculation loses at the load of the window, and pays with fewer requests running."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.advice import Advice
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.judgement import Verdict
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.speedup import LoadReport
from sidecar.findings.explanation import Explanation, speculation_of
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import changed_config, verification
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds
from sidecar.wording.advice import schedule_sentence

_CODE: Final = "load"
_ENOUGH_STEPS: Final = 1000  # at a load


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(Finding):
    """The speedup with ``running`` requests, and the one at the lower load ``fewer``.

    ``running`` is the mean number of requests, ``fewer`` the label of a range; ``error`` is the
    standard error of ``speedup``.
    """

    code: str = field(default=_CODE, init=False)
    running: float
    speedup: float
    error: float
    fewer: str
    speedup_at_fewer: float


def load(model: ModelReport, _: Thresholds) -> Iterator[Load]:
    """The finding at the lowest load at which speculation clearly pays."""
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
    if not load.plain_tpot_seconds or not load.tpot_seconds:
        return None
    return load.plain_tpot_seconds / load.tpot_seconds


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _load(finding: Load, model: ModelReport) -> Explanation:
    speedup = f"{finding.speedup:.2f} ± {CONFIDENCE * finding.error:.2f}"
    schedule = schedule_sentence(model.advice or Advice())

    return Explanation(
        code=finding.code,
        what=(
            f"With {finding.running:.0f} requests running, decoding is {speedup} times as fast as"
            f" without speculation. With {finding.fewer} it is {finding.speedup_at_fewer:.2f} times"
            " as fast, by TPOT."
        ),
        remedy=schedule or "Add pods, so that fewer requests run on each.",
        expect=(
            "At low load, verification uses compute that would be idle. At high load it takes it"
            " from other requests."
        ),
        verify=verification(model),
        config=_scheduled(model.advice, speculation_of(model)),
    )


def _scheduled(advice: Advice | None, speculation: Speculation) -> str:
    if advice is None or not advice.schedule:
        return ""
    entries = [list(entry) for entry in advice.schedule]
    return changed_config(speculation, num_speculative_tokens_per_batch_size=entries)


LOAD: Final = FindingKind(
    code=_CODE,
    gate=load,
    place=Place.NUMBER,
    explain=_load,
    why="pays only at a lower load",
    remedy="schedule draft tokens by batch size, or add pods",
    runbook="SpecDecodeSlowerThanPlain",
)
