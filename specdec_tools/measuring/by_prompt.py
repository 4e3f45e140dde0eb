"""The error of an acceptance rate or length, which follows from how prompts differ.

Each round of a level sends the same prompts, and greedy replies to one are the same each time. So a
prompt counts once, however often it was answered. Two sweeps that sent the same prompts are
compared prompt by prompt: how hard a prompt is to draft for then meets both.

By the jackknife (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 11): the value
without one prompt, for each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.metrics import Interval, difference, estimate, relative_change
from specdec_tools.measuring.sweep_result import LevelResult


@dataclass(frozen=True, slots=True)
class _Ratio:
    """``start`` plus accepted tokens divided by those that ``divisor`` counts."""

    start: float
    divisor: Callable[[Sample], int]


_RATIOS: Final[Mapping[str, _Ratio]] = {
    "acceptance": _Ratio(0.0, lambda sample: sample.draft_tokens),
    "length": _Ratio(1.0, lambda sample: sample.drafts or 0),
}


@dataclass(frozen=True, slots=True)
class PromptValues:
    """``value`` of all prompts, and what it is without each of them, by the prompt's number.

    ``without`` is empty if the replies do not have vLLM's own numbers, if a prompt is unknown, or
    if all that was drafted was for one prompt.
    """

    value: float
    without: Mapping[int, float]

    def interval(self, confidence: float) -> Interval | None:
        """The value with its error."""
        return _jackknife(self.value, list(self.without.values()), confidence)


def prompt_values(metric: str, value: float | None, level: LevelResult) -> PromptValues | None:
    """A level's acceptance or length, known to be ``value``, prompt by prompt."""
    if value is None:
        return None

    ratio = _RATIOS[metric]
    accepted: dict[int, int] = {}
    divisors: dict[int, int] = {}
    for sample in level.whole.samples:
        if sample.drafts is None:
            continue
        if sample.prompt is None:
            return PromptValues(value, {})
        accepted[sample.prompt] = accepted.get(sample.prompt, 0) + sample.accepted_tokens
        divisors[sample.prompt] = divisors.get(sample.prompt, 0) + ratio.divisor(sample)

    all_accepted = sum(accepted.values())
    all_divisors = sum(divisors.values())
    if all_divisors in divisors.values():
        return PromptValues(value, {})

    without = {}
    for prompt, divisor in divisors.items():
        rate = (all_accepted - accepted[prompt]) / (all_divisors - divisor)
        without[prompt] = ratio.start + rate

    return PromptValues(value, without)


def change_by_prompt(
    before: PromptValues | None, after: PromptValues | None, confidence: float
) -> tuple[Interval | None, Interval | None]:
    """After / before - 1, and after - before, with their errors.

    Paired if both have the same prompts.
    """
    if before is None or after is None:
        return None, None

    if before.without.keys() != after.without.keys() or before.value <= 0:
        first = before.interval(confidence)
        second = after.interval(confidence)
        return relative_change(first, second), difference(first, second)

    pairs = [(old, after.without[prompt]) for prompt, old in before.without.items()]
    change = None
    if all(old > 0 for old, _ in pairs):
        ratios = [new / old - 1 for old, new in pairs]
        change = _jackknife(after.value / before.value - 1, ratios, confidence)

    gap = _jackknife(after.value - before.value, [new - old for old, new in pairs], confidence)
    return change, gap if gap is not None and gap.error is not None else None


def _jackknife(value: float, without: Sequence[float], confidence: float) -> Interval | None:
    """The value, with the error that follows from its values without one prompt."""
    prompts = len(without)
    pseudo = [prompts * value - (prompts - 1) * one for one in without]
    return estimate(value, pseudo, confidence)
