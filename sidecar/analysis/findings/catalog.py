"""All findings: which there are, and how those on one model go together."""

from typing import Final

from sidecar.analysis.findings.endings import EmptyReplies, Looping, bad_endings
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
from sidecar.analysis.findings.long_contexts import LongContexts, long_contexts
from sidecar.analysis.findings.mismatch import Mismatch, mismatch
from sidecar.analysis.findings.not_speculating import NotSpeculating, not_speculating
from sidecar.analysis.findings.number_of_tokens import (
    TooFewTokens,
    TooManyTokens,
    number_of_tokens,
)
from sidecar.analysis.findings.one_engine import OneEngine, one_engine
from sidecar.analysis.findings.prefix_cache import PrefixCache, prefix_cache
from sidecar.analysis.findings.room import Room, room
from sidecar.analysis.findings.situation import Situation

KINDS: Final[tuple[type[Finding], ...]] = (
    GreedyDrafting,
    TooManyTokens,
    TooFewTokens,
    Load,
    LongContexts,
    LongPrompts,
    StructuredOutput,
    ForbiddenDrafts,
    Adapter,
    Sampling,
    OneEngine,
    Mismatch,
    NotSpeculating,
    Looping,
    EmptyReplies,
    PrefixCache,
    Room,
)
CODES: Final = tuple(dict.fromkeys(kind.code for kind in KINDS))
"""The label values of ``specdec_finding``."""


def find(situation: Situation) -> tuple[Finding, ...]:
    """The findings on a model, what to do first first. No two explain the same loss.

    Faults come first: drafts that fit nothing, and outputs that end badly. Then comes how the
    drafts are sampled, since the number of draft tokens and what to route elsewhere follow from
    that; then the others by their cost; then those on the cache and on room, which cost no step.
    Facts without a remedy come last.
    """
    collapse = mismatch(situation)
    if collapse is not None:
        return _known(not_speculating(situation), collapse, *bad_endings(situation))

    greedy = greedy_drafting(situation)
    # An engine's requests may be those of a group. Draft sampling and filters both explain hot
    # requests.
    part = one_engine(situation) or costliest_group(situation, without_sampling=greedy is not None)

    number = load(situation) or long_contexts(situation) or number_of_tokens(situation)
    if number is not None and _follows(number, greedy, part):
        number = None

    losses = sorted(_known(part, number), key=lambda finding: finding.cost, reverse=True)
    found = _known(
        not_speculating(situation),
        *bad_endings(situation),
        greedy,
        *losses,
        prefix_cache(situation),
        room(situation),
    )
    return tuple(sorted(found, key=lambda finding: not finding.is_advice))


def _follows(number: Finding, greedy: GreedyDrafting | None, part: Finding | None) -> bool:
    """Whether the number of draft tokens follows from what lowers the acceptance rate.

    That comes first: with it gone, another number is right.
    """
    costs_more = part is not None and part.is_advice and part.cost >= number.cost
    return greedy is not None or costs_more


def _known(*found: Finding | None) -> tuple[Finding, ...]:
    return tuple(finding for finding in found if finding is not None)
