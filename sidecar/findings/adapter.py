"""``adapter``: requests with an adapter accept less than others otherwise alike."""

from collections.abc import Iterator
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.analysis.split.tallies import NO_ADAPTER
from sidecar.findings.explanation import Explanation
from sidecar.findings.group import RUNBOOK, accepting_less, advice_or_fact
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.lower_acceptance import LowerAcceptance, both_rates
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.requests.keys import OTHER, Table
from sidecar.settings.groups import Thresholds

_CODE: Final = "adapter"


def adapter(model: ModelReport, thresholds: Thresholds) -> Iterator[LowerAcceptance]:
    """The finding on each adapter whose name is known."""
    named = [
        group
        for group in model.groups
        if group.by == Table.ADAPTER and group.group not in {NO_ADAPTER, OTHER}
    ]
    return accepting_less(_CODE, named, model, thresholds)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _adapter(finding: LowerAcceptance, model: ModelReport) -> Explanation:
    return advice_or_fact(
        finding,
        model,
        what=(
            f"Requests with adapter {finding.group} accept {both_rates(finding)} without it that"
            " are otherwise alike."
        ),
        change="Train a draft for this adapter",
        expect="The draft was made for the base model and does not apply the adapter.",
    )


ADAPTER: Final = FindingKind(
    code=_CODE,
    gate=adapter,
    place=Place.PART,
    unless=(ONE_ENGINE,),
    of_requests=True,
    explain=_adapter,
    why="an adapter's requests accept less",
    remedy="a draft for it",
    runbook=RUNBOOK,
)
