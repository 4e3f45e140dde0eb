"""``looping``: more outputs than usual repeat themselves until they are cut off."""

from collections.abc import Iterator
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.ending import EXPECT, IN_SHORT, RUNBOOK, EndsBadly, ending_badly, explained
from sidecar.findings.explanation import Explanation
from sidecar.findings.kind import FindingKind, Place
from sidecar.requests.keys import LOOP
from sidecar.settings.groups import Thresholds

_CODE: Final = "looping"


def looping(model: ModelReport, _: Thresholds) -> Iterator[EndsBadly]:
    """The finding on repetition loops."""
    return ending_badly(_CODE, LOOP, model)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_FLATTERS: Final = (
    " Text that repeats itself is easy to predict, so speed and acceptance rate look better than"
    " they are."
)


def _looping(finding: EndsBadly, _model: ModelReport) -> Explanation:
    return explained(finding, EXPECT + _FLATTERS)


LOOPING: Final = FindingKind(
    code=_CODE,
    gate=looping,
    place=Place.OUTPUT,
    of_requests=True,
    explain=_looping,
    why="replies repeat themselves",
    remedy=IN_SHORT,
    runbook=RUNBOOK,
)
