"""``empty_replies``: more outputs than usual stop with at most one token."""

from collections.abc import Iterator
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.ending import EXPECT, IN_SHORT, RUNBOOK, EndsBadly, ending_badly, explained
from sidecar.findings.explanation import Explanation
from sidecar.findings.kind import FindingKind, Place
from sidecar.requests.keys import EMPTY
from sidecar.settings.groups import Thresholds

_CODE: Final = "empty_replies"


def empty_replies(model: ModelReport, _: Thresholds) -> Iterator[EndsBadly]:
    """The finding on replies of at most one token."""
    return ending_badly(_CODE, EMPTY, model)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _empty_replies(finding: EndsBadly, _model: ModelReport) -> Explanation:
    return explained(finding, EXPECT)


EMPTY_REPLIES: Final = FindingKind(
    code=_CODE,
    gate=empty_replies,
    place=Place.OUTPUT,
    of_requests=True,
    explain=_empty_replies,
    why="replies are empty",
    remedy=IN_SHORT,
    runbook=RUNBOOK,
)
