"""What findings share that compare the acceptance rate of some requests with that of others."""

from dataclasses import dataclass

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.report import ModelReport
from sidecar.analysis.split.strata import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerAcceptance(Finding):
    """Some requests accept clearly less than comparable others.

    ``rate`` is their acceptance rate, ``others`` that of the others, 0 to 1; ``error`` is the
    standard error of the difference.
    """

    rate: float
    others: float
    error: float


def cost_of(difference: Difference, model: ModelReport) -> float:
    """The share of the decoding time that would be saved if the requests accepted as the others.

    Steps take as long as they do now; tokens per step follow from the acceptance rate.
    """
    drafted = sum(
        engine.acceptance.draft_tokens for engine in model.engines if engine.acceptance is not None
    )
    share = min(difference.drafted / drafted, 1.0) if drafted else 0.0

    window = model.judgement.evidence.window
    tokens_drafted = window.draft_tokens / window.drafts if window.drafts else 1.0
    length_now = 1 + tokens_drafted * difference.rate
    length_as_others = 1 + tokens_drafted * difference.others
    return share * (1 - length_now / length_as_others)
