"""What the findings share on a group of requests that accepts less than others alike.

A group that accepts less and still gains is a fact, unless another draft could gain more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.analysis.split.tallies import GroupReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.lower_acceptance import (
    LowerAcceptance,
    lower_acceptance,
    without_advice,
)
from sidecar.findings.paste import verification
from sidecar.settings.groups import Thresholds


def loses_or_could_gain(finding: LowerAcceptance, worthwhile: float) -> bool:
    """Whether to change anything: the group loses, or another draft or request could gain."""
    return finding.loses or finding.cost >= worthwhile


def accepting_less(
    code: str,
    groups: Iterable[GroupReport],
    model: ModelReport,
    thresholds: Thresholds,
    is_advised: Callable[[LowerAcceptance, float], bool] = loses_or_could_gain,
) -> Iterator[LowerAcceptance]:
    """A finding on each of the ``groups`` that accepts clearly less than the others.

    ``is_advised`` says of a finding, and of the cost that is worth a change, whether to change
    anything.
    """
    for group in groups:
        difference = group.difference
        if difference is None or not difference.is_clearly_lower:
            continue

        finding = lower_acceptance(code, group.group, difference, model, thresholds)
        is_advice = is_advised(finding, thresholds.worthwhile)
        yield replace(finding, is_advice=is_advice)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

RUNBOOK: Final = "SpecDecodeAcceptanceP10Low"
# docs/measurements/routing.md: it pays only close to what the servers can do.
AT_LAST: Final = (
    "Only if that does not help and the load is high, route these requests to pods that do not"
    " speculate"
)


def advice_or_fact(
    finding: LowerAcceptance,
    model: ModelReport,
    *,
    what: str,
    change: str,
    expect: str,
    body: str = "",
) -> Explanation:
    """The remedy is a ``change`` and, only if the group loses, at last to send it elsewhere."""
    if not finding.is_advice:
        return Explanation.fact(finding.code, what, without_advice(finding))

    route = f". {AT_LAST}" if finding.loses else ""
    return Explanation(
        code=finding.code,
        what=what,
        remedy=f"{change}{route}.",
        expect=expect,
        verify=verification(model, body=body),
    )
