"""What the KV cache of an engine, or of several, did and holds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from sidecar.engine.names import Counter


@dataclass(frozen=True, slots=True)
class CacheWindow:
    """What the KV cache did over latency_window; NaN: not known.

    Of ``queries`` in the prefix cache it had ``hits``.
    """

    requests: float = math.nan  # that got their first token
    prompt_tokens: float = math.nan
    generated_tokens: float = math.nan
    queries: float = math.nan
    hits: float = math.nan
    preemptions: float = math.nan

    @classmethod
    def of(cls, grown: Mapping[Counter, float]) -> Self:
        """From the growth of an engine's counters."""
        return cls(
            requests=grown.get(Counter.FIRST_TOKENS, math.nan),
            prompt_tokens=grown.get(Counter.PROMPT_TOKENS, math.nan),
            generated_tokens=grown.get(Counter.GENERATION_TOKENS, math.nan),
            queries=grown.get(Counter.PREFIX_CACHE_QUERIES, math.nan),
            hits=grown.get(Counter.PREFIX_CACHE_HITS, math.nan),
            preemptions=grown.get(Counter.PREEMPTIONS, math.nan),
        )

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
    """Those of several engines together; nothing is known of none."""
    several: Sequence[CacheWindow] = list(caches)
    if not several:
        return CacheWindow()
    return CacheWindow(
        **{
            field.name: sum(getattr(cache, field.name) for cache in several)
            for field in fields(CacheWindow)
        }
    )


def mean_capacity(capacities: Iterable[int | None]) -> int | None:
    """The tokens that an engine's KV cache holds, on average; None if no engine says.

    vLLM's page may say 0, which does not count.
    """
    known = [capacity for capacity in capacities if capacity]
    return sum(known) // len(known) if known else None
