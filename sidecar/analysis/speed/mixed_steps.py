"""What prefill adds to a plain step, from the steps that the plug-in counted as mixed.

A step takes in the tokens of prompts beside one token of each request that decodes. A GPU does so
while it reads its weights, up to a number of tokens; beyond it, each takes the same time. Besides,
each attends to the tokens before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.speed.least_squares import Equation, Measured, jackknife, least_squares
from sidecar.analysis.speed.plain import MIXED

_TOKEN: Final = "token"  # noqa: S105 - not a password
_ATTENTION: Final = "attention"
_STEP: Final = "step"
# The numbers of tokens that may be hidden, to choose from.
_HIDDEN: Final = tuple(round(16 * 1.2**power) for power in range(32))
# A law with one more unknown has to leave so much less unexplained.
_BETTER: Final = 0.9
_WIDE: Final = 1.25  # factor above what is hidden, of the fewest tokens of which the time is stated


@dataclass(frozen=True, slots=True)
class MixedSteps:
    """The mean of ``weight`` steps in which ``decodes`` requests decode, and prompts prefill.

    ``seconds`` is what prefill adds to the step, ``tokens`` is its prompt tokens, and ``context``
    what each of these attends to.
    """

    seconds: float
    decodes: float
    tokens: float
    context: float
    weight: float


@dataclass(frozen=True, slots=True)
class PrefillLaw:
    """Seconds of prefill: ``step``, then ``token`` for each one beyond what is hidden.

    Besides, ``attention`` for each token and each other to which it attends. A step takes in
    ``hidden`` tokens at no cost, those of the requests that decode among them.
    """

    hidden: float
    step: float = 0.0
    token: float = 0.0
    attention: float = 0.0

    def seconds(self, decodes: float, tokens: float) -> float:
        """What ``tokens`` add to a step in which so many requests decode, but for attention."""
        part = min(tokens / MIXED, 1.0)
        return part * self.step + self.token * _beyond(self.hidden, decodes, tokens)


def _beyond(hidden: float, decodes: float, tokens: float) -> float:
    """The prompt tokens that take time."""
    return max(decodes + tokens - hidden, 0.0) - max(decodes - hidden, 0.0)


def prefill_law(found: Sequence[MixedSteps]) -> PrefillLaw | None:
    """The law that explains the steps best; None if none does."""
    best = None
    for candidate in _candidates(found):
        law, left = candidate
        if best is None or left < _BETTER * best[1] or (best[0].hidden and left < best[1]):
            best = law, left
    return None if best is None else best[0]


def _candidates(found: Sequence[MixedSteps]) -> Sequence[tuple[PrefillLaw, float]]:
    """Laws and what each leaves unexplained, the simplest first."""
    laws = [_fitted(found, 0.0, (_TOKEN, _ATTENTION))]
    if len({round(one.tokens / MIXED) for one in found}) > 1:
        laws += [
            _fitted(found, 0.0, (_TOKEN, _STEP, _ATTENTION)),
            *(_fitted(found, float(hidden), (_TOKEN, _ATTENTION)) for hidden in _HIDDEN),
        ]
    return [(law, _unexplained(law, found)) for law in laws if law is not None]


def _fitted(found: Sequence[MixedSteps], hidden: float, names: Sequence[str]) -> PrefillLaw | None:
    rows = [
        Equation(
            seconds=one.seconds,
            parts={
                _TOKEN: _beyond(hidden, one.decodes, one.tokens),
                _STEP: 1.0,
                _ATTENTION: one.tokens * one.context,
            },
            weight=one.weight,
        )
        for one in found
    ]

    values = least_squares(rows, names)
    possible = tuple(name for name in names if name == _TOKEN or values.get(name, 0.0) >= 0)
    if len(possible) < len(names):
        return _fitted(found, hidden, possible)  # nothing takes less time than none
    if values.get(_TOKEN, 0.0) <= 0:
        return None

    return PrefillLaw(hidden, **values)


def _unexplained(law: PrefillLaw, found: Sequence[MixedSteps]) -> float:
    off = (
        one.seconds
        - law.seconds(one.decodes, one.tokens)
        - law.attention * one.tokens * one.context
        for one in found
    )
    return sum(one.weight * error**2 for one, error in zip(found, off, strict=True))


@dataclass(frozen=True, slots=True)
class PrefillTimes:
    """The law's times: at each load, by tokens; then those of attention."""

    by_load: Sequence[dict[float, Measured]]
    attention: Measured


def prefill_times(found: Sequence[MixedSteps], loads: Sequence[float]) -> PrefillTimes | None:
    """What prefill adds at each of the ``loads``, with errors; None if it is not known."""
    law = prefill_law(found)
    if law is None:
        return None

    sizes = [_sizes(found, max(law.hidden - load, 0.0)) for load in loads]
    names = (_TOKEN, _STEP, _ATTENTION) if law.step else (_TOKEN, _ATTENTION)

    def stated(some: Sequence[MixedSteps]) -> dict[str, float]:
        other = _fitted(some, law.hidden, names)
        if other is None:
            return {}
        times = {
            f"{load} {tokens}": other.seconds(load, tokens)
            for load, row in zip(loads, sizes, strict=True)
            for tokens in row
        }
        return {**times, _ATTENTION: other.attention}

    values = stated(found)
    errors = jackknife(found, stated, values)
    by_load = [
        {
            tokens: Measured(
                values[f"{load} {tokens}"],
                errors.get(f"{load} {tokens}", values[f"{load} {tokens}"]),
            )
            for tokens in row
        }
        for load, row in zip(loads, sizes, strict=True)
    ]
    attention = Measured(values[_ATTENTION], errors.get(_ATTENTION, values[_ATTENTION]))
    return PrefillTimes(by_load, attention)


def _sizes(found: Sequence[MixedSteps], hidden: float) -> list[float]:
    """The fewest and the most tokens measured, or more, so that some of both take time."""
    fewest = max(min(one.tokens for one in found), _WIDE * hidden, float(MIXED))
    most = max(*(one.tokens for one in found), 2 * fewest)
    return [round(fewest, 1), round(most, 1)]
