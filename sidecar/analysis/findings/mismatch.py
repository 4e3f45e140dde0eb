"""``mismatch``: almost no draft token is accepted, so the draft does not fit its target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch(Finding):
    """The draft tokens are rejected from the first position on, at any temperature."""

    code: ClassVar[str] = "mismatch"
    acceptance: float | None


def mismatch(situation: Situation) -> Iterator[Mismatch]:
    """The finding, if the verdict says that acceptance has collapsed."""
    judgement = situation.model.judgement
    if judgement.has_collapsed:
        yield Mismatch(acceptance=judgement.acceptance, cost=1.0)


RULES: Final = (FindingRule(kind=Mismatch, gate=mismatch, place=Place.COLLAPSE),)
