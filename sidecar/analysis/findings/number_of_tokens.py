"""``too_many_tokens`` and ``too_few_tokens``: another number of draft tokens would be better."""

from dataclasses import dataclass
from typing import ClassVar

from sidecar.analysis.advice import Direction, TokensAdvice
from sidecar.analysis.findings.finding import Finding
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


def number_of_tokens(situation: Situation) -> NumberOfTokens | None:
    """What the model's advice on the number of tokens amounts to."""
    advice = situation.model.advice
    if advice is None or advice.tokens is None:
        return None

    tokens = advice.tokens
    cost = 0.0
    if tokens.best_seconds is not None and tokens.now_seconds is not None:
        cost = 1 - tokens.best_seconds / tokens.now_seconds

    if tokens.direction is Direction.MORE:
        return TooFewTokens(tokens=tokens, cost=cost)
    return TooManyTokens(tokens=tokens, cost=cost)
