"""``synthetic_acceptance``: vLLM accepts draft tokens at a set rate, whatever the model says."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.paste import AFTER_A_RESTART
from sidecar.settings.groups import Thresholds

_CODE: Final = "synthetic_acceptance"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticAcceptance(Finding):
    """The acceptance rate is configured, as for a benchmark, and replies are not the model's."""

    code: str = field(default=_CODE, init=False)


def synthetic_acceptance(model: ModelReport, _: Thresholds) -> Iterator[SyntheticAcceptance]:
    """The finding, if an engine is configured so."""
    if model.judgement.evidence.is_synthetic:
        yield SyntheticAcceptance(cost=1.0)


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------


def _synthetic_acceptance(finding: SyntheticAcceptance, _: ModelReport) -> Explanation:
    return Explanation(
        code=finding.code,
        what=(
            "rejection_sample_method is synthetic: vLLM accepts draft tokens at a set rate,"
            " whatever the model says of them. It is for benchmarks. Replies are not the model's,"
            " and neither acceptance nor time says whether speculation pays."
        ),
        remedy=(
            "Remove rejection_sample_method and the keys that begin with synthetic_ from"
            " --speculative-config, and restart vLLM."
        ),
        expect="Replies are the model's own again, and the acceptance rate is measured.",
        verify=AFTER_A_RESTART,
    )


SYNTHETIC_ACCEPTANCE: Final = FindingKind(
    code=_CODE,
    gate=synthetic_acceptance,
    place=Place.COLLAPSE,
    explain=_synthetic_acceptance,
    why="drafts are accepted at a set rate",
    remedy="remove rejection_sample_method, restart vLLM",
    runbook="SpecDecodeAcceptanceCollapsed",
)
