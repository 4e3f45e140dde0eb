"""What every finding has."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of a loss; a subclass adds its evidence.

    ``code`` is the label value of ``specdec_finding``. ``cost`` estimates the share of the decoding
    time that the cause costs, 0 to 1, and only orders findings; it is 0 for what costs no step.
    ``is_advice``: the cause loses, or removing it could gain a measurable amount; otherwise the
    finding is a fact without a remedy.
    """

    code: str
    cost: float = 0.0
    is_advice: bool = True


def advised(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those with something to change; the others are facts."""
    return tuple(finding for finding in findings if finding.is_advice)
