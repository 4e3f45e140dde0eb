"""Findings on a group of requests that accepts less at the same temperatures.

They are ``long_prompts``, ``structured_output``, ``adapter`` and ``sampling``. A group that accepts
less and still gains is a fact, unless another draft could gain more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar, Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rates import (
    LowerAcceptance,
    break_even_acceptance,
    cost_of,
    is_below,
)
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.report import ModelReport
from sidecar.analysis.split.tallies import NO_ADAPTER, GroupReport
from sidecar.requests.tables import OTHER, Table

_ENOUGH_TOKENS: Final = 1000  # decoded without a draft
_STRUCTURED: Final = "structured"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAcceptsLess(LowerAcceptance):
    """A group's requests accept less than the others at the same temperatures."""

    group: str


def is_advised(finding: GroupAcceptsLess, worthwhile: float) -> bool:
    """Whether to change anything: the group loses, or another draft or request could gain.

    No draft knows a grammar, so structured output that gains has nothing to change.
    """
    if isinstance(finding, StructuredOutput):
        return finding.loses
    return finding.loses or finding.cost >= worthwhile


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompts(GroupAcceptsLess):
    """The longest prompts accept less; ``group`` is their range of tokens."""

    code: ClassVar[str] = "long_prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput(GroupAcceptsLess):
    """Requests with structured output accept less."""

    code: ClassVar[str] = "structured_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter(GroupAcceptsLess):
    """Requests with an adapter accept less; ``group`` is its name."""

    code: ClassVar[str] = "adapter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(GroupAcceptsLess):
    """Requests with filters or penalties accept less."""

    code: ClassVar[str] = "sampling"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForbiddenDrafts(Finding):
    """Structured output whose grammar forbids every draft token, so that vLLM counts none.

    ``acceptance`` is the acceptance rate of all requests.
    """

    code: ClassVar[str] = StructuredOutput.code
    acceptance: float | None


def costliest_group(
    situation: Situation, *, without_sampling: bool
) -> GroupAcceptsLess | ForbiddenDrafts | None:
    """The most expensive of the groups that accept less; groups may share requests.

    One with something to change comes before one without.
    """
    model = situation.model
    break_even = break_even_acceptance(situation)
    found: list[GroupAcceptsLess | ForbiddenDrafts] = []
    for group, kind in _candidates(model):
        difference = group.difference
        if difference is None or not difference.is_clearly_lower:
            continue
        if without_sampling and kind is Sampling:
            continue
        finding = kind(
            group=group.group,
            rate=difference.rate,
            others=difference.others,
            error=difference.error,
            loses=is_below(difference.rate, break_even),
            break_even=break_even,
            cost=cost_of(difference, model),
        )
        is_advice = is_advised(finding, situation.thresholds.worthwhile)
        found.append(replace(finding, is_advice=is_advice))

    forbidden = _forbidden_drafts(situation)
    if forbidden is not None:
        found.append(forbidden)
    return max(found, key=lambda finding: (finding.is_advice, finding.cost), default=None)


def _candidates(model: ModelReport) -> Iterator[tuple[GroupReport, type[GroupAcceptsLess]]]:
    """The groups whose lower acceptance would have a known cause, with the finding on it."""
    for group in model.groups:
        match group.by, group.group:
            case Table.OUTPUT, "structured":
                yield group, StructuredOutput
            case Table.SAMPLING, "filtered" | "penalties":
                yield group, Sampling
            case Table.ADAPTER, name if name not in {NO_ADAPTER, OTHER}:
                yield group, Adapter

    lengths = [
        group
        for group in model.groups
        if group.by == Table.PROMPT_TOKENS and group.difference is not None
    ]
    # no longer prompts accept more
    for group in takewhile(lambda group: group.accepts_less, reversed(lengths[1:])):
        yield group, LongPrompts


def _forbidden_drafts(situation: Situation) -> ForbiddenDrafts | None:
    """The finding, if structured output decoded much without a draft.

    Answers of one token are not meant.
    """
    groups = situation.model.groups
    is_undrafted = any(part.without_drafts for part in groups if part.group == _STRUCTURED)
    tokens = situation.forbidden
    if tokens < _ENOUGH_TOKENS or not is_undrafted:
        return None

    window = situation.model.judgement.evidence.window
    length = window.length or 1.0
    share = tokens / (tokens + window.drafts * length)
    cost = share * (1 - 1 / length)
    is_advice = cost >= situation.thresholds.worthwhile
    return ForbiddenDrafts(acceptance=window.rate, cost=cost, is_advice=is_advice)
