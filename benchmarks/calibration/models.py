"""Language models as tables of chance: what servers put out for the calibration of ``fidelity``.

A model's distribution after a beginning is drawn by the beginning's name, so it needs no memory. A
server's numerics add a normal variable to each logit, the same one whenever the beginning returns,
as other shapes of a matrix do. Nothing here is the product's.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Final

WORDS: Final = 10
"""Size of the vocabulary."""
_FEWER: Final = 60  # distributions that are kept of each server, in thousands

Beginning = tuple[int, ...]


@lru_cache(maxsize=200_000)
def _exact(seed: int, prompt: int, beginning: Beginning) -> list[float]:
    random = Random(f"{seed} {prompt} {beginning}")
    sharpness = random.uniform(0.6, 3.5)  # from open questions to nearly certain words
    logits = [-sharpness * math.log(place + 1) + random.gauss(0, 0.5) for place in range(WORDS)]
    random.shuffle(logits)
    return logits


Fault = Callable[[int, Beginning, list[float]], list[float]]
"""Makes wrong weights of right ones, for a prompt's number and a beginning."""


@dataclass
class Model:
    """``seed`` decides all distributions; ``numerics`` is a standard deviation in nat.

    ``server`` names whose numerics they are. ``fault`` changes the weights.
    """

    seed: int
    server: str = "exact"
    numerics: float = 0.0
    fault: Fault | None = None
    _kept: dict[tuple[int, Beginning], list[float]] = field(default_factory=dict)

    def weights(self, prompt: int, beginning: Beginning) -> list[float]:
        """The weights of the next token; they need not sum to 1."""
        key = (prompt, beginning)
        found = self._kept.get(key)
        if found is None:
            found = self._made(prompt, beginning)
            if len(self._kept) < _FEWER * 1000:
                self._kept[key] = found
        return found

    def logits(self, prompt: int, beginning: Beginning) -> list[float]:
        """Of each token, with this server's numerics."""
        exact = _exact(self.seed, prompt, beginning)
        if not self.numerics:
            return exact
        moved = Random(f"{self.server} {self.seed} {prompt} {beginning}")
        return [logit + moved.gauss(0, self.numerics) for logit in exact]

    def _made(self, prompt: int, beginning: Beginning) -> list[float]:
        weights = [math.exp(logit) for logit in self.logits(prompt, beginning)]
        return weights if self.fault is None else self.fault(prompt, beginning, weights)

    def samples(self, random: Random, prompt: int, number: int, length: int) -> list[Beginning]:
        """So many outputs: all that share a beginning are continued together."""
        outputs: Mapping[Beginning, int] = {(): number}
        for _ in range(length):
            longer: dict[Beginning, int] = defaultdict(int)
            for beginning, times in outputs.items():
                weights = self.weights(prompt, beginning)
                for token in random.choices(range(WORDS), weights, k=times):
                    longer[(*beginning, token)] += 1
            outputs = longer
        return [output for output, times in outputs.items() for _ in range(times)]


def moved_at(position: int | None, change: float, prompt: int | None = None) -> Fault:
    """Token 0 is put out more often by ``change``, at the expense of all others alike.

    At one position, from 1, or at all; of one prompt or all.
    """

    def fault(number: int, beginning: Beginning, weights: list[float]) -> list[float]:
        is_here = position is None or len(beginning) + 1 == position
        if not beginning or not is_here or prompt not in (None, number):
            return weights

        whole = sum(weights)
        share = weights[0] / whole
        more = min(change, 1 - share)
        left = (1 - share - more) / (1 - share)
        wrong = [left * weight / whole for weight in weights]
        wrong[0] = share + more
        return wrong

    return fault


def replaced(share: float) -> Fault:
    """The likeliest token becomes the least likely one, in this share of its times."""

    def fault(_number: int, beginning: Beginning, weights: list[float]) -> list[float]:
        if not beginning:
            return weights
        wrong = list(weights)
        top = max(range(WORDS), key=weights.__getitem__)
        least = min(range(WORDS), key=weights.__getitem__)
        wrong[top] -= share * weights[top]
        wrong[least] += share * weights[top]
        return wrong

    return fault
