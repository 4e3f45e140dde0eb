"""``long_contexts``: speculation pays with short contexts, and loses with long ones."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import ModelReport
from sidecar.analysis.speed.speedup import Speedup
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.load import LOAD
from sidecar.findings.paste import verification
from sidecar.settings.groups import Thresholds

_CODE: Final = "long_contexts"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongContexts(Finding):
    """The speedup with contexts of ``context`` tokens, and the one with those of ``shorter``.

    Both are labels of ranges. ``error`` is the standard error of ``speedup``.
    """

    code: str = field(default=_CODE, init=False)
    context: str
    speedup: float
    error: float
    shorter: str
    speedup_at_shorter: float


def long_contexts(model: ModelReport, thresholds: Thresholds) -> Iterator[LongContexts]:
    """The finding at the longest context, if that clearly loses and a shorter one clearly gains."""
    by_context = list(model.contexts.items())  # from short to long
    if len(by_context) < 2:
        return

    longest, losing = by_context[-1]
    if not _clearly_loses(losing, thresholds):
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
                is_advice=cost >= thresholds.worthwhile,
            )
            return


def _clearly_loses(speedup: Speedup, thresholds: Thresholds) -> bool:
    line = thresholds.speedup_net_negative
    return speedup.ratio + CONFIDENCE * speedup.error < line


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _long_contexts(finding: LongContexts, model: ModelReport) -> Explanation:
    speedup = f"{finding.speedup:.2f} ± {CONFIDENCE * finding.error:.2f}"
    what = (
        f"With contexts of {finding.context} tokens, decoding is {speedup} times as fast as without"
        f" speculation. With {finding.shorter} it is {finding.speedup_at_shorter:.2f} times as"
        " fast."
    )
    expect = (
        "A step takes longer the more tokens it attends to, and verifying draft tokens lengthens it"
        " more than plain decoding."
    )
    if not finding.is_advice:
        why = f"{expect} Nothing to change: such contexts are too small a part."
        return Explanation.fact(finding.code, what, why)

    return Explanation(
        code=finding.code,
        what=what,
        remedy=(
            "Speculate fewer tokens. Only if that does not help, route requests with such contexts"
            " to pods that do not speculate."
        ),
        expect=expect,
        verify=verification(model),
    )


LONG_CONTEXTS: Final = FindingKind(
    code=_CODE,
    gate=long_contexts,
    place=Place.NUMBER,
    unless=(LOAD,),
    explain=_long_contexts,
    why="pays only with shorter contexts",
    remedy="speculate fewer tokens",
    runbook="SpecDecodeSlowerThanPlain",
)
