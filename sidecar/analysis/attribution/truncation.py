"""Tokens that a request's last step accepted past its end.

vLLM counts every accepted draft token, but truncates the output at its length limit or stop token. So accepted tokens
exceed delivered ones by what the last step had left: from 0 to the number drafted. A longer step is more likely to
contain the end, as in any renewal process.
"""

from functools import lru_cache
from typing import Final

_GRID: Final = 100  # parts of a draft token: finer than any estimate, and bounds the cache


def truncated_tokens(mean: float, draft_length: float, draft_share: float) -> float:
    """Tokens expected past the end, if steps that draft accept ``mean`` of ``draft_length`` tokens.

    ``draft_share`` is the share of steps that draft, 0 to 1. A step of 1 + a tokens contains the end with a
    probability proportional to its length and then has a, ..., 1 or 0 tokens left, hence E[a (a + 1) / 2] / E[1 + a].
    """
    most = max(round(draft_length), 1)
    mean = min(max(mean, 0.0), most)
    return draft_share * _pairs(round(mean * _GRID), most) / (1 + draft_share * mean)


@lru_cache(maxsize=8192)
def _pairs(mean: int, most: int) -> float:
    """E[a (a + 1) / 2] for the accepted tokens a of a step, at most ``most``; ``mean`` is E[a] in parts of a token.

    Each token is accepted with the same chance p and the first rejection ends the step: E[a] = p + p² + ... + p^most.
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
