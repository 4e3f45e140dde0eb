"""All findings: which there are, and how those on one model go together."""

from collections.abc import Sequence
from typing import Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.registry import RULES
from sidecar.analysis.findings.rule import Place
from sidecar.analysis.findings.situation import Situation

_IN_ORDER: Final = [rule for place in Place for rule in RULES if rule.place is place]

CODES: Final = tuple(dict.fromkeys(rule.kind.code for rule in _IN_ORDER))
"""The label values of ``specdec_finding``."""
OF_REQUESTS: Final = frozenset(rule.kind.code for rule in RULES if rule.of_requests)
"""Those that are unknown where finished requests are."""
COUNTS: Final = tuple(count for rule in RULES for count in rule.counts)
"""What the rules need of finished requests."""


def find(situation: Situation) -> tuple[Finding, ...]:
    """The findings on a model, what to do first first. No two explain the same loss.

    They come in the order of ``Place``, and by their cost those that compete. Facts without a
    remedy come last.
    """
    found = _by_place(situation)
    faults = [*found[Place.NO_DRAFTS], *found[Place.COLLAPSE], *found[Place.OUTPUT]]
    if found[Place.COLLAPSE]:
        return tuple(faults)

    drafting = found[Place.DRAFTING]
    parts = _costliest(found[Place.PART])
    numbers = [number for number in found[Place.NUMBER] if not _follows(number, drafting, parts)]
    losses = sorted([*parts, *numbers], key=lambda finding: finding.cost, reverse=True)

    told = [*faults, *drafting, *losses, *found[Place.COSTS_NO_STEP]]
    return tuple(sorted(told, key=lambda finding: not finding.is_advice))


def _by_place(situation: Situation) -> dict[Place, list[Finding]]:
    """What each rule finds, without what another one explains."""
    found = {rule: tuple(rule.gate(situation)) for rule in RULES}
    by_place: dict[Place, list[Finding]] = {place: [] for place in Place}
    for rule, findings in found.items():
        if not any(found[other] for other in rule.unless):
            by_place[rule.place] += findings
    return by_place


def _costliest(parts: Sequence[Finding]) -> Sequence[Finding]:
    """The most expensive one, if any; one with something to change comes before one without."""
    return sorted(parts, key=lambda part: (part.is_advice, part.cost), reverse=True)[:1]


def _follows(number: Finding, drafting: Sequence[Finding], parts: Sequence[Finding]) -> bool:
    """Whether the number of draft tokens follows from what lowers the acceptance rate.

    That comes first: with it gone, another number is right.
    """
    costs_more = any(part.is_advice and part.cost >= number.cost for part in parts)
    return bool(drafting) or costs_more
