"""``long_requests``: while one request is longer than the draft takes, vLLM drafts for none."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import AFTER_A_RESTART
from sidecar.settings.groups import Thresholds
from sidecar.wording.numbers import counted, percent

_CODE: Final = "long_requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRequests(Finding):
    """``requests`` of the window were longer than the draft's ``longest``, in tokens.

    For at least ``share`` of the window, no draft token of any request could be accepted.
    """

    code: str = field(default=_CODE, init=False)
    requests: int
    longest: int
    share: float


def long_requests(model: ModelReport, thresholds: Thresholds) -> Iterator[LongRequests]:
    """The finding, if that is so for a measurable part of the time."""
    overlong = model.overlong
    if overlong is None or overlong.share < thresholds.worthwhile:
        return

    yield LongRequests(
        requests=overlong.requests,
        longest=overlong.longest,
        share=overlong.share,
        cost=overlong.share,
    )


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _long_requests(finding: LongRequests, _: ModelReport) -> Explanation:
    requests = counted(finding.requests, "request")
    return Explanation(
        code=finding.code,
        what=(
            f"At least {requests} in the window grew past {finding.longest:,} tokens, which is all"
            " that the draft can handle with its draft tokens. While one of them runs, model runner"
            " V1 accepts no draft token of any request in the batch: at least"
            f" {percent(finding.share)} of the time, at every temperature and length."
        ),
        remedy=(
            "If the draft was made for longer requests, raise its max_model_len in"
            " --speculative-config; else try model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1), or"
            " route such requests to pods that do not speculate."
        ),
        expect="The other requests accept as much as while no such request runs.",
        verify=AFTER_A_RESTART,
    )


LONG_REQUESTS: Final = FindingKind(
    code=_CODE,
    gate=long_requests,
    place=Place.DRAFTING,
    of_requests=True,
    explain=_long_requests,
    why="a long request stops all drafts",
    remedy="raise the draft's max_model_len, or route these",
    runbook="SpecDecodeAcceptanceLow",
)
