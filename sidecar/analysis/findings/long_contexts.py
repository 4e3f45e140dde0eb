"""``long_contexts``: speculation pays with short contexts, and loses with long ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.load import LOAD
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.speed.speedup import Speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContexts(Finding):
    """The speedup with contexts of ``context`` tokens, and the one with those of ``shorter``.

    Both are labels of ranges. ``error`` is the standard error of ``speedup``.
    """

    code: ClassVar[str] = "long_contexts"
    context: str
    speedup: float
    error: float
    shorter: str
    speedup_at_shorter: float


def long_contexts(situation: Situation) -> Iterator[LongContexts]:
    """The finding at the longest context, if that clearly loses and a shorter one clearly gains."""
    by_context = list(situation.model.contexts.items())  # from short to long
    if len(by_context) < 2:
        return

    longest, losing = by_context[-1]
    if not _clearly_loses(losing, situation):
        return

    for shorter, gaining in by_context[:-1]:
        if gaining.ratio - CONFIDENCE * gaining.error > 1:
            tokens = sum(speedup.tokens for _, speedup in by_context)
            cost = losing.tokens / tokens * (1 - losing.ratio)
            yield LongContexts(
                context=longest,
                speedup=losing.ratio,
                error=losing.error,
                shorter=shorter,
                speedup_at_shorter=gaining.ratio,
                cost=cost,
                is_advice=cost >= situation.thresholds.worthwhile,
            )
            return


def _clearly_loses(speedup: Speedup, situation: Situation) -> bool:
    line = situation.thresholds.speedup_net_negative
    return speedup.ratio + CONFIDENCE * speedup.error < line


LONG_CONTEXTS: Final = FindingRule(
    kind=LongContexts, gate=long_contexts, place=Place.NUMBER, unless=(LOAD,)
)
RULES: Final = (LONG_CONTEXTS,)
