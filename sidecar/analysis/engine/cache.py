"""What the KV cache of an engine, or of several, did and holds."""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

from sidecar.engine.names import Counter


class CacheWindow(NamedTuple):
    """What the KV cache did over latency_window; NaN: not known.

    Of ``queries`` in the prefix cache it had ``hits``.
    """

    requests: float = math.nan  # that got their first token
    prompt_tokens: float = math.nan
    generated_tokens: float = math.nan
    queries: float = math.nan
    hits: float = math.nan
    preemptions: float = math.nan

    @property
    def hit_ratio(self) -> float | None:
        """Hits / queries, 0 to 1."""
        return _ratio(min(self.hits, self.queries), self.queries)

    @property
    def preemptions_ratio(self) -> float | None:
        """Preemptions / requests."""
        return _ratio(self.preemptions, self.requests)

    @property
    def request_tokens(self) -> float | None:
        """What a request fills at its end, on average."""
        return _ratio(self.prompt_tokens + self.generated_tokens, self.requests)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 and not math.isnan(part) else None


def sum_caches(caches: Iterable[CacheWindow]) -> CacheWindow:
    """Those of several engines together."""
    return CacheWindow(*map(sum, zip(*caches, strict=True)))


CACHE: Final = (
    Counter.FIRST_TOKENS,
    Counter.PROMPT_TOKENS,
    Counter.GENERATION_TOKENS,
    Counter.PREFIX_CACHE_QUERIES,
    Counter.PREFIX_CACHE_HITS,
    Counter.PREEMPTIONS,
)
"""What ``CacheWindow`` has of an engine, in its order."""


def mean_capacity(capacities: Iterable[int | None]) -> int | None:
    """The tokens that an engine's KV cache holds, on average; None if no engine says.

    vLLM's page may say 0, which does not count.
    """
    known = [capacity for capacity in capacities if capacity]
    return sum(known) // len(known) if known else None
