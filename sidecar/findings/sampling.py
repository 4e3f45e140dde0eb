"""``sampling``: requests with filters or penalties accept less than others otherwise alike."""

from collections.abc import Iterator
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.greedy_drafting import GREEDY_DRAFTING
from sidecar.findings.group import RUNBOOK, accepting_less, advice_or_fact
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.lower_acceptance import LowerAcceptance, both_rates
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.requests.keys import Table
from sidecar.settings.groups import Thresholds

_CODE: Final = "sampling"


def sampling(model: ModelReport, thresholds: Thresholds) -> Iterator[LowerAcceptance]:
    """The findings on filters and on penalties."""
    shaped = [
        group
        for group in model.groups
        if group.by == Table.SAMPLING and group.group in {"filtered", "penalties"}
    ]
    return accepting_less(_CODE, shaped, model, thresholds)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_PARAMETERS: Final = {
    "filtered": "top-k, top-p or min-p",
    "penalties": "presence, frequency or repetition penalties",
}
_BODIES: Final = {"filtered": '{"top_k": 20}', "penalties": '{"presence_penalty": 1}'}


def _sampling(finding: LowerAcceptance, model: ModelReport) -> Explanation:
    parameters = _PARAMETERS.get(finding.group, finding.group)
    return advice_or_fact(
        finding,
        model,
        what=(
            f"Requests with {parameters} accept {both_rates(finding)} without them that"
            " are otherwise alike."
        ),
        change="Ask the clients whether they need these parameters",
        expect=(
            "These parameters shape the target's distribution alone: the drafter does not see them."
        ),
        body=_BODIES.get(finding.group, ""),
    )


SAMPLING: Final = FindingKind(
    code=_CODE,
    gate=sampling,
    place=Place.PART,
    unless=(ONE_ENGINE, GREEDY_DRAFTING),
    of_requests=True,
    explain=_sampling,
    why="top-k, top-p or penalties accept less",
    remedy="drop them where clients do not need them",
    runbook=RUNBOOK,
)
