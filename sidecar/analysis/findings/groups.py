"""Findings on a group of requests that accepts less at the same temperatures.

They are ``long_prompts``, ``structured_output``, ``adapter`` and ``sampling``. A group that accepts
less and still gains is a fact, unless another draft could gain more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import ClassVar, Final

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.greedy_drafting import GREEDY_DRAFTING
from sidecar.analysis.findings.long_requests import LONG_REQUESTS
from sidecar.analysis.findings.one_engine import ONE_ENGINE
from sidecar.analysis.findings.rates import (
    LowerAcceptance,
    break_even_acceptance,
    cost_of,
    is_below,
)
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.request_count import RequestCount
from sidecar.analysis.split.tallies import NO_ADAPTER, GroupReport
from sidecar.requests.messages import FinishedRequest
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


def long_prompts(situation: Situation) -> Iterator[GroupAcceptsLess]:
    """The finding on each of the longest ranges of prompts that accept less."""
    lengths = [
        group
        for group in situation.model.groups
        if group.by == Table.PROMPT_TOKENS and group.difference is not None
    ]
    # no longer prompts accept more
    longest = takewhile(lambda group: group.accepts_less, reversed(lengths[1:]))
    return _accepting_less(LongPrompts, longest, situation)


def structured_output(situation: Situation) -> Iterator[GroupAcceptsLess]:
    """The finding on structured output; see ``ForbiddenDrafts`` for such without any draft."""
    structured = [
        group
        for group in situation.model.groups
        if group.by == Table.OUTPUT and group.group == _STRUCTURED
    ]
    return _accepting_less(StructuredOutput, structured, situation)


def adapter(situation: Situation) -> Iterator[GroupAcceptsLess]:
    """The finding on each adapter whose name is known."""
    named = [
        group
        for group in situation.model.groups
        if group.by == Table.ADAPTER and group.group not in {NO_ADAPTER, OTHER}
    ]
    return _accepting_less(Adapter, named, situation)


def sampling(situation: Situation) -> Iterator[GroupAcceptsLess]:
    """The findings on filters and on penalties."""
    shaped = [
        group
        for group in situation.model.groups
        if group.by == Table.SAMPLING and group.group in {"filtered", "penalties"}
    ]
    return _accepting_less(Sampling, shaped, situation)


def _accepting_less(
    kind: type[GroupAcceptsLess], groups: Iterable[GroupReport], situation: Situation
) -> Iterator[GroupAcceptsLess]:
    """A finding on each of the ``groups`` that accepts clearly less than the others."""
    model = situation.model
    break_even = break_even_acceptance(situation)
    for group in groups:
        difference = group.difference
        if difference is None or not difference.is_clearly_lower:
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
        yield replace(finding, is_advice=is_advice)


def _undrafted_tokens(request: FinishedRequest) -> int:
    """What a structured request decoded without any draft; an answer of one token is not meant."""
    if not request.structured or request.drafts:
        return 0
    return request.decoded_tokens


UNDRAFTED_TOKENS: Final = RequestCount(_undrafted_tokens)


def forbidden_drafts(situation: Situation) -> Iterator[ForbiddenDrafts]:
    """The finding, if structured output decoded much without a draft."""
    groups = situation.model.groups
    is_undrafted = any(part.without_drafts for part in groups if part.group == _STRUCTURED)
    tokens = situation.counts.get(UNDRAFTED_TOKENS, 0)
    if tokens < _ENOUGH_TOKENS or not is_undrafted:
        return

    window = situation.model.judgement.evidence.window
    length = window.length or 1.0
    share = tokens / (tokens + window.drafts * length)
    cost = share * (1 - 1 / length)
    is_advice = cost >= situation.thresholds.worthwhile
    yield ForbiddenDrafts(acceptance=window.rate, cost=cost, is_advice=is_advice)


def _rule(
    kind: type[Finding],
    gate: Callable[[Situation], Iterable[Finding]],
    *,
    unless: tuple[FindingRule, ...] = (),
    counts: tuple[RequestCount, ...] = (),
) -> FindingRule:
    """A rule on a group of finished requests, which may all be one engine's."""
    return FindingRule(
        kind=kind,
        gate=gate,
        place=Place.PART,
        unless=(ONE_ENGINE, *unless),
        counts=counts,
        of_requests=True,
    )


RULES: Final = (
    _rule(StructuredOutput, structured_output),
    _rule(ForbiddenDrafts, forbidden_drafts, counts=(UNDRAFTED_TOKENS,)),
    # Draft sampling and filters both explain hot requests.
    _rule(Sampling, sampling, unless=(GREEDY_DRAFTING,)),
    _rule(Adapter, adapter),
    _rule(LongPrompts, long_prompts, unless=(LONG_REQUESTS,)),
)
