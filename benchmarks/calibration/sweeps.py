"""Sweeps of two servers that take turns, on one machine or on two, of equal speed or not.

Each machine has a speed of its own and wanders from round to round; a round asks both servers in
both orders. Acceptance is that of prompts from templates, which an accepting draft finds alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.comparison import Comparison, compare
from specdec_tools.measuring.sweep_result import LevelResult, Measurement, SweepLevel, SweepResult
from specdec_tools.measuring.templates import template_numbers

_REQUESTS: Final = 16
_SCATTER: Final = 0.1  # of a request's time per token
_TOKENS: Final = 100
_K: Final = 3
_STEPS: Final = 40
_TOPICS: Final = ("history", "chess", "rivers", "bread", "engines")
_FRAMES: Final = (
    "Summarize for a child what is known about {}",
    "List three books that every beginner in {} owns",
    "Translate a short paragraph on {} into plain Spanish",
    "Explain why people disagree when they discuss {}",
    "Write two questions for an examination in {}",
    "Give me the opposite view of most experts on {}",
    "Which mistakes are common among students of {} today",
    "Invent a dialogue of two friends about {} and money",
)


@dataclass(frozen=True)
class Machines:
    """How much slower a machine gets by the round (``wander``), and is anyway (``speed``).

    Shares of a time, as standard deviations. ``is_one``: both servers run on the same one.
    """

    wander: float = 0.0
    speed: float = 0.0
    is_one: bool = False
    rounds: int = 8

    def compared(self, seed: int, slower: float = 0.0, *, swapped: bool = False) -> Comparison:
        """The tested server against the other, which is faster by ``slower``."""
        random = Random(f"machines {seed}")
        speeds = [random.gauss(0, self.speed) for _ in "12"]
        first = self._sweeps(random, speeds, slower)
        second = self._sweeps(random, speeds[::-1], slower) if swapped else None
        return compare(*first, names=("against", "tested"), swapped=second)

    def _sweeps(
        self, random: Random, speeds: Sequence[float], slower: float
    ) -> tuple[SweepResult, SweepResult]:
        levels = list(speeds)
        rounds: tuple[list[Measurement], list[Measurement]] = ([], [])
        for _ in range(self.rounds):
            levels = [level + random.gauss(0, self.wander) for level in levels]
            if self.is_one:
                levels[1] = levels[0]
            for server, level in enumerate(levels):
                time = 0.01 * math.exp(level) * (1 + slower * server)
                rounds[server].append(_round(random, time))
        against, tested = (_result(parts, one_machine=self.is_one) for parts in rounds)
        return against, tested


def _round(random: Random, token: float) -> Measurement:
    samples = []
    for number in range(2 * _REQUESTS):  # both orders
        tpot = token * random.gauss(1, _SCATTER)
        ttft = 5 * token * random.gauss(1, 2 * _SCATTER)
        samples.append(Sample(0.0, ttft, tpot, _TOKENS, prompt=number % _REQUESTS))
    seconds = sum((one.ttft or 0) + _TOKENS * (one.tpot or 0) for one in samples) / 4
    return Measurement(samples=tuple(samples), failed=0, seconds=seconds, others=False)


def _result(rounds: Sequence[Measurement], *, one_machine: bool) -> SweepResult:
    level = LevelResult(level=SweepLevel(0.0, 4), rounds=tuple(rounds))
    return SweepResult(
        model="m",
        prompts="same",
        requests=_REQUESTS,
        endpoint="chat",
        extra_body="{}",
        max_tokens=_TOKENS,
        rounds=len(rounds),
        complete=True,
        fault=None,
        turns="together",
        one_machine=one_machine,
        levels=(level,),
    )


def is_called_different(comparison: Comparison) -> bool:
    """Whether any speed is."""
    return comparison.result in {"faster", "slower", "mixed"}


def acceptance_differs(seed: int, *, better: float = 0.0) -> bool:
    """Of two drafts on five prompts of each template.

    A draft is better or worse at a template by 10 points of its own, and at a prompt by 3 more.
    """
    random = Random(f"templates {seed}")
    prompts = [frame.format(topic) for frame in _FRAMES for topic in _TOPICS]
    numbers = template_numbers(prompts)
    sweeps = []
    for server in range(2):
        rates: list[float] = []
        for _ in _FRAMES:
            template = 0.6 + server * better + random.gauss(0, 0.1)
            rates += [template + random.gauss(0, 0.03) for _ in _TOPICS]
        samples = tuple(
            _reply(random, rate, numbers[prompt])
            for prompt, rate in zip(prompts, rates, strict=True)
        )
        part = Measurement(samples=samples, failed=0, seconds=1.0, others=False)
        sweeps.append(_result([part] * 4, one_machine=True))

    before, after = sweeps
    changes = compare(before, after, names=("before", "after")).changes
    return any(one.metric in {"acceptance", "length"} and one.effect for one in changes)


def _reply(random: Random, rate: float, prompt: int) -> Sample:
    likely = min(max(rate, 0.05), 0.95)
    accepted = sum(random.random() < likely for _ in range(_STEPS * _K))
    histogram = (_STEPS, *[0] * _K)
    return Sample(0.0, 0.1, 0.02, 128, _STEPS, _STEPS * _K, accepted, histogram, prompt)


def more_rounds_decided(seed: int, slower: float) -> bool | None:
    """Whether as many rounds as were said decide; None if none were said, or too many."""
    machines = Machines(wander=0.03, is_one=True)
    first = machines.compared(seed, slower)
    said = list(first.more_rounds.values())
    if not said or said[0] > 300:
        return None
    more = Machines(wander=0.03, is_one=True, rounds=machines.rounds + said[0])
    return not more.compared(seed + 10_000, slower).more_rounds
