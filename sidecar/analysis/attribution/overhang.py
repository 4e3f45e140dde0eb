"""Tokens that a request's last step accepted past its end.

vLLM counts every accepted draft token, but cuts a request's output at its length limit or stop token. So the tokens
counted as accepted exceed those delivered by what the last step had over: between 0 and the number drafted. A longer
step is the likelier one to hold the end, as in any renewal process, hence the expectation below.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

_GRID: Final = 100  # parts of a draft token: precise enough, and bounds the cache


def expected_overhang(mean: float, drafted: float, share: float, spread: float = 1.0) -> float:
    """Tokens expected past the end, where steps that draft accept ``mean`` of ``drafted`` tokens.

    ``share`` is the share of steps that draft, 0 to 1; ``spread`` corrects the assumed distribution (``spread_of``).
    """
    most = max(round(drafted), 1)
    mean = min(max(mean, 0.0), most)
    pairs = min(_geometric_pairs(round(mean * _GRID), most) * spread, mean * (most + 1) / 2)
    return share * pairs / (1 + share * mean)


def spread_of(accepted_per_position: Sequence[float], drafts: float) -> float:
    """How an engine's steps spread, against the distribution assumed: 1 the same, more where it is all or nothing.

    ``accepted_per_position`` and ``drafts`` are the growth of vLLM's counters over the same time.
    """
    accepted = sum(accepted_per_position)
    if drafts <= 0 or accepted <= 0:
        return 1.0
    pairs = sum((position + 1) * tokens for position, tokens in enumerate(accepted_per_position)) / drafts
    assumed = _geometric_pairs(round(accepted / drafts * _GRID), len(accepted_per_position))
    return min(max(pairs / assumed, 0.5), 2.0) if assumed > 0 else 1.0


@lru_cache(maxsize=8192)
def _geometric_pairs(mean: int, most: int) -> float:
    """The expectation of a(a + 1) / 2 for the accepted tokens a of a step, at most ``most``, that stop at random.

    Each token is accepted with the same chance, the first refusal ends the step; ``mean`` is in parts of a token.
    """
    target = mean / _GRID
    if target >= most:
        return most * (most + 1) / 2
    low, high = 0.0, 1.0
    for _ in range(30):
        chance = (low + high) / 2
        if sum(chance**position for position in range(1, most + 1)) < target:
            low = chance
        else:
            high = chance
    return sum(position * low**position for position in range(1, most + 1))
