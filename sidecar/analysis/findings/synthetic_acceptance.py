"""``synthetic_acceptance``: vLLM accepts draft tokens at a set rate, whatever the model says."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticAcceptance(Finding):
    """The acceptance rate is configured, as for a benchmark, and replies are not the model's."""

    code: ClassVar[str] = "synthetic_acceptance"


def synthetic_acceptance(situation: Situation) -> Iterator[SyntheticAcceptance]:
    """The finding, if an engine is configured so."""
    if situation.model.judgement.evidence.is_synthetic:
        yield SyntheticAcceptance(cost=1.0)


RULES: Final = (
    FindingRule(kind=SyntheticAcceptance, gate=synthetic_acceptance, place=Place.COLLAPSE),
)
