"""``one_engine``: one of several engines accepts less than the others."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.findings.rates import (
    LowerAcceptance,
    break_even_acceptance,
    cost_of,
    is_below,
)
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEngine(LowerAcceptance):
    """One engine alone accepts less, at the same temperatures and prompt lengths."""

    code: ClassVar[str] = "one_engine"
    engine: str


def one_engine(situation: Situation) -> Iterator[OneEngine]:
    """The finding, if it is exactly one engine that accepts less."""
    model = situation.model
    lower = [
        (engine.key.engine, engine.difference)
        for engine in model.engines
        if engine.difference is not None and engine.difference.is_clearly_lower
    ]
    if len(lower) != 1:
        return

    name, difference = lower[0]
    break_even = break_even_acceptance(situation)
    yield OneEngine(
        engine=name,
        rate=difference.rate,
        others=difference.others,
        error=difference.error,
        loses=is_below(difference.rate, break_even),
        break_even=break_even,
        cost=cost_of(difference, model),
    )


ONE_ENGINE: Final = FindingRule(kind=OneEngine, gate=one_engine, place=Place.PART)
RULES: Final = (ONE_ENGINE,)
