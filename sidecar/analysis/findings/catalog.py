"""All findings: which there are, and how those on one model go together."""

from typing import Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.greedy_drafting import GreedyDrafting, greedy_drafting
from sidecar.analysis.findings.groups import (
    Adapter,
    ForbiddenDrafts,
    LongPrompts,
    Sampling,
    StructuredOutput,
    costliest_group,
)
from sidecar.analysis.findings.load import Load, load
from sidecar.analysis.findings.mismatch import Mismatch, mismatch
from sidecar.analysis.findings.not_speculating import NotSpeculating, not_speculating
from sidecar.analysis.findings.number_of_tokens import (
    NumberOfTokens,
    TooFewTokens,
    TooManyTokens,
    number_of_tokens,
)
from sidecar.analysis.findings.one_engine import OneEngine, one_engine
from sidecar.analysis.findings.prefix_cache import PrefixCache, prefix_cache
from sidecar.analysis.findings.rates import LowerAcceptance
from sidecar.analysis.findings.room import Room, room
from sidecar.analysis.findings.situation import Situation

KINDS: Final[tuple[type[Finding], ...]] = (
    GreedyDrafting,
    TooManyTokens,
    TooFewTokens,
    Load,
    LongPrompts,
    StructuredOutput,
    ForbiddenDrafts,
    Adapter,
    Sampling,
    OneEngine,
    Mismatch,
    NotSpeculating,
    PrefixCache,
    Room,
)
CODES: Final = tuple(dict.fromkeys(kind.code for kind in KINDS))
"""The label values of ``specdec_finding``."""


def find(situation: Situation) -> tuple[Finding, ...]:
    """The findings on a model, the most expensive first. No two explain the same loss."""
    collapse = mismatch(situation)
    if collapse is not None:
        return _known(not_speculating(situation), collapse)

    greedy = greedy_drafting(situation)
    # An engine's requests may be those of a group. Draft sampling and filters both explain hot
    # requests.
    part = one_engine(situation) or costliest_group(situation, without_sampling=greedy is not None)
    rates = _known(greedy, part)

    number = load(situation) or number_of_tokens(situation)
    if number is not None and _follows(number, greedy, rates):
        number = None

    losses = sorted(_known(*rates, number), key=lambda finding: finding.cost, reverse=True)
    # those on the cache and on room cost no step
    return _known(not_speculating(situation), *losses, prefix_cache(situation), room(situation))


def _follows(
    number: Load | NumberOfTokens, greedy: LowerAcceptance | None, rates: tuple[Finding, ...]
) -> bool:
    """Whether the number of draft tokens follows from what lowers the acceptance rate.

    That comes first: with it gone, another number is right.
    """
    return greedy is not None or any(number.cost <= rate.cost for rate in rates)


def _known(*found: Finding | None) -> tuple[Finding, ...]:
    return tuple(finding for finding in found if finding is not None)
