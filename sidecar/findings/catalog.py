"""All findings: which there are, and how those on one model go together."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sidecar.analysis.report import ModelReport
from sidecar.findings.adapter import ADAPTER
from sidecar.findings.empty_replies import EMPTY_REPLIES
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.findings.greedy_drafting import GREEDY_DRAFTING
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.load import LOAD
from sidecar.findings.long_contexts import LONG_CONTEXTS
from sidecar.findings.long_prompts import LONG_PROMPTS
from sidecar.findings.long_requests import LONG_REQUESTS
from sidecar.findings.looping import LOOPING
from sidecar.findings.mismatch import MISMATCH
from sidecar.findings.not_speculating import NOT_SPECULATING
from sidecar.findings.number_of_tokens import TOO_FEW_TOKENS, TOO_MANY_TOKENS, NumberOfTokens
from sidecar.findings.one_engine import ONE_ENGINE
from sidecar.findings.prefix_cache import PREFIX_CACHE
from sidecar.findings.room import ROOM
from sidecar.findings.sampling import SAMPLING
from sidecar.findings.structured_output import STRUCTURED_OUTPUT
from sidecar.findings.synthetic_acceptance import SYNTHETIC_ACCEPTANCE
from sidecar.settings.groups import Thresholds

KINDS: Final[tuple[FindingKind[Any], ...]] = (
    NOT_SPECULATING,
    MISMATCH,
    SYNTHETIC_ACCEPTANCE,
    LOOPING,
    EMPTY_REPLIES,
    GREEDY_DRAFTING,
    LONG_REQUESTS,
    STRUCTURED_OUTPUT,
    SAMPLING,
    ADAPTER,
    LONG_PROMPTS,
    ONE_ENGINE,
    LOAD,
    LONG_CONTEXTS,
    TOO_MANY_TOKENS,
    TOO_FEW_TOKENS,
    PREFIX_CACHE,
    ROOM,
)
"""In the order of ``Place``, and of the table in docs/why.md."""
BY_CODE: Final[Mapping[str, FindingKind[Any]]] = {kind.code: kind for kind in KINDS}
OF_REQUESTS: Final = frozenset(kind.code for kind in KINDS if kind.of_requests)
"""The codes that are unknown where finished requests are."""


def find(model: ModelReport, thresholds: Thresholds) -> tuple[Finding, ...]:
    """The findings on a model, what to do first first. No two explain the same loss.

    They come in the order of ``Place``, and by their cost those that compete. Facts without a
    remedy come last.
    """
    found = _by_place(model, thresholds)
    faults = [*found[Place.NO_DRAFTS], *found[Place.COLLAPSE], *found[Place.OUTPUT]]
    if found[Place.COLLAPSE]:
        return tuple(faults)

    drafting = found[Place.DRAFTING]
    parts = _costliest(found[Place.PART])
    numbers = [number for number in found[Place.NUMBER] if not _follows(number, drafting, parts)]
    first, mixed = (numbers, []) if drafting else ([], numbers)
    losses = sorted([*parts, *mixed], key=lambda finding: finding.cost, reverse=True)

    told = [*faults, *first, *drafting, *losses, *found[Place.COSTS_NO_STEP]]
    return tuple(sorted(told, key=lambda finding: not finding.is_advice))


def _by_place(model: ModelReport, thresholds: Thresholds) -> dict[Place, list[Finding]]:
    """What each kind finds, without what another one explains."""
    found = {kind: tuple(kind.gate(model, thresholds)) for kind in KINDS}
    by_place: dict[Place, list[Finding]] = {place: [] for place in Place}
    for kind, findings in found.items():
        if not any(found[other] for other in kind.unless):
            by_place[kind.place] += findings
    return by_place


def _costliest(parts: Sequence[Finding]) -> Sequence[Finding]:
    """The most expensive one, if any; one with something to change comes before one without."""
    return sorted(parts, key=lambda part: (part.is_advice, part.cost), reverse=True)[:1]


def _follows(number: Finding, drafting: Sequence[Finding], parts: Sequence[Finding]) -> bool:
    """Whether the number of draft tokens follows from what lowers the acceptance rate.

    That comes first: with it gone, another number is right. Fewer tokens are right all the same
    where they save more time, as measured, than drafting in another way could.
    """
    is_sure = isinstance(number, NumberOfTokens) and number.is_sure
    of_drafting = any(not is_sure or one.cost >= number.cost for one in drafting)
    costs_more = any(part.is_advice and part.cost >= number.cost for part in parts)
    return of_drafting or costs_more


def explanations(model: ModelReport) -> list[Explanation]:
    """The model's findings in words, what to do first first."""
    return [BY_CODE[finding.code].explain(finding, model) for finding in model.findings]
