"""``long_requests``: while one request is longer than the draft takes, vLLM drafts for none."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRequests(Finding):
    """``requests`` of the window were longer than the draft's ``longest``, in tokens.

    For at least ``share`` of the window, no draft token of any request could be accepted.
    """

    code: ClassVar[str] = "long_requests"
    requests: int
    longest: int
    share: float


def long_requests(situation: Situation) -> Iterator[LongRequests]:
    """The finding, if that is so for a measurable part of the time."""
    overlong = situation.model.overlong
    if overlong is None or overlong.share < situation.thresholds.worthwhile:
        return

    yield LongRequests(
        requests=overlong.requests,
        longest=overlong.longest,
        share=overlong.share,
        cost=overlong.share,
    )


LONG_REQUESTS: Final = FindingRule(
    kind=LongRequests, gate=long_requests, place=Place.DRAFTING, of_requests=True
)
RULES: Final = (LONG_REQUESTS,)
