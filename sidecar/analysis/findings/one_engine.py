"""``one_engine``: one of several engines accepts less than the others."""

from dataclasses import dataclass
from typing import ClassVar

from sidecar.analysis.findings.rates import (
    LowerAcceptance,
    break_even_acceptance,
    cost_of,
    is_below,
)
from sidecar.analysis.findings.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class OneEngine(LowerAcceptance):
    """One engine alone accepts less, at the same temperatures and prompt lengths."""

    code: ClassVar[str] = "one_engine"
    engine: str


def one_engine(situation: Situation) -> OneEngine | None:
    """The finding, if it is exactly one engine that accepts less."""
    model = situation.model
    lower = [
        (engine.key.engine, engine.difference)
        for engine in model.engines
        if engine.difference is not None and engine.difference.is_clearly_lower
    ]
    if len(lower) != 1:
        return None

    name, difference = lower[0]
    break_even = break_even_acceptance(situation)
    return OneEngine(
        engine=name,
        rate=difference.rate,
        others=difference.others,
        error=difference.error,
        loses=is_below(difference.rate, break_even),
        break_even=break_even,
        cost=cost_of(difference, model),
    )
