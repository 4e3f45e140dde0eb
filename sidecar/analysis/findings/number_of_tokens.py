"""``too_many_tokens`` and ``too_few_tokens``: another number of draft tokens would be better."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.advice import Direction, TokensAdvice
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.load import LOAD
from sidecar.analysis.findings.long_contexts import LONG_CONTEXTS
from sidecar.analysis.findings.room import is_short_of_room
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOfTokens(Finding):
    """The better number of draft tokens, by time if that is known, else by acceptance."""

    tokens: TokensAdvice


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyTokens(NumberOfTokens):
    """Fewer draft tokens, or none, would be better."""

    code: ClassVar[str] = "too_many_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewTokens(NumberOfTokens):
    """More draft tokens would be better."""

    code: ClassVar[str] = "too_few_tokens"


def too_many_tokens(situation: Situation) -> Iterator[TooManyTokens]:
    """The model's advice on the number of tokens, if it asks for fewer."""
    tokens = _advised_tokens(situation)
    if tokens is not None and tokens.direction is not Direction.MORE:
        yield TooManyTokens(tokens=tokens, cost=_cost(tokens))


def too_few_tokens(situation: Situation) -> Iterator[TooFewTokens]:
    """The model's advice on the number of tokens, if it asks for more.

    Not where repetition loops matter: these are easy to draft, so they ask for more than other text
    can use. Nor while requests wait for room, which more draft tokens would take.
    """
    has_loops = situation.model.judgement.evidence.loops is not None
    if has_loops or is_short_of_room(situation.model):
        return

    tokens = _advised_tokens(situation)
    if tokens is not None and tokens.direction is Direction.MORE:
        yield TooFewTokens(tokens=tokens, cost=_cost(tokens))


def _advised_tokens(situation: Situation) -> TokensAdvice | None:
    advice = situation.model.advice
    return None if advice is None else advice.tokens


def _cost(tokens: TokensAdvice) -> float:
    if tokens.best_seconds is None or tokens.now_seconds is None:
        return 0.0
    return 1 - tokens.best_seconds / tokens.now_seconds


_SAME_LOSS: Final = (LOAD, LONG_CONTEXTS)
RULES: Final = (
    FindingRule(kind=TooManyTokens, gate=too_many_tokens, place=Place.NUMBER, unless=_SAME_LOSS),
    FindingRule(kind=TooFewTokens, gate=too_few_tokens, place=Place.NUMBER, unless=_SAME_LOSS),
)
