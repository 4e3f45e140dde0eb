"""Decoding as vLLM's own counters time it: seconds per engine step and tokens per step, by load (docs/speedup.md)."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sidecar.engine.names import Counter
from sidecar.engine.timeline import Timeline

LOAD_EDGES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # requests running, inclusive
_PERIOD: Final = 0.9  # seconds: one, less the polls' jitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What an engine decoded over a period; ``decode_steps`` and ``engine_steps`` are positive.

    A decode step is one request's part in one engine step. ``seconds`` is the time between the output events of a
    request, summed over requests. ``tokens`` are those from decode steps, without each request's first one.
    ``prompt_tokens`` are those computed, without those found in the prefix cache.
    """

    seconds: float
    decode_steps: float
    engine_steps: float
    tokens: float
    first_tokens: float = 0.0
    prompt_tokens: float = 0.0
    drafts: float = 0.0
    draft_tokens: float = 0.0

    @property
    def step_seconds(self) -> float:
        """S: how long a running request waits from one engine step to the next, steps that also prefill included."""
        return self.seconds / self.decode_steps

    @property
    def running(self) -> float:
        """b: requests to which an engine step gave tokens, including those in the step that ends their prefill."""
        return (self.decode_steps + self.first_tokens) / self.engine_steps

    @property
    def length(self) -> float:
        """L: tokens per decode step, so 1 without speculation; excludes tokens cut off at a request's end."""
        return self.tokens / self.decode_steps

    @property
    def prompt_share(self) -> float:
        """Prompt tokens computed per generated token: how much prefill S includes."""
        return self.prompt_tokens / (self.tokens + self.first_tokens)


def steps_between(timeline: Timeline, start: float, end: float) -> Steps | None:
    """What one engine decoded between two moments; None if it decoded nothing or vLLM does not export the counters."""
    grown = {counter: timeline.growth(counter, start, end) for counter in _NEEDED}
    known = {counter: value for counter, value in grown.items() if value is not None}
    if len(known) < len(_NEEDED) or known[Counter.DECODE_STEPS] <= 0 or known[Counter.STEPS] <= 0:
        return None
    first, generated = known[Counter.FIRST_TOKENS], known[Counter.GENERATION_TOKENS]
    if generated <= first or known[Counter.DECODE_SECONDS] <= 0:
        return None
    prompt = timeline.growth(Counter.PROMPT_TOKENS, start, end) or 0.0
    cached = timeline.growth(Counter.PREFIX_CACHE_HITS, start, end) or 0.0
    return Steps(
        seconds=known[Counter.DECODE_SECONDS],
        decode_steps=known[Counter.DECODE_STEPS],
        engine_steps=known[Counter.STEPS],
        tokens=generated - first,
        first_tokens=first,
        prompt_tokens=max(prompt - cached, 0.0),
        drafts=timeline.growth(Counter.DRAFTS, start, end) or 0.0,
        draft_tokens=timeline.growth(Counter.DRAFT_TOKENS, start, end) or 0.0,
    )


_NEEDED: Final = (
    Counter.DECODE_SECONDS,
    Counter.DECODE_STEPS,
    Counter.STEPS,
    Counter.FIRST_TOKENS,
    Counter.GENERATION_TOKENS,
)


def joined(one: Steps, other: Steps) -> Steps:
    """Two periods as one: everything is summed, nothing is averaged."""
    return Steps(
        seconds=one.seconds + other.seconds,
        decode_steps=one.decode_steps + other.decode_steps,
        engine_steps=one.engine_steps + other.engine_steps,
        tokens=one.tokens + other.tokens,
        first_tokens=one.first_tokens + other.first_tokens,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        drafts=one.drafts + other.drafts,
        draft_tokens=one.draft_tokens + other.draft_tokens,
    )


class Periods:
    """Joins what polls saw into periods long enough to fit a curve to: a step's time varies with its prompts."""

    def __init__(self) -> None:
        self._pending: Steps | None = None
        self._begun = self._ended = 0.0

    def add(self, start: float, end: float, steps: Steps) -> list[Steps]:
        """Adds what was decoded from ``start`` to ``end``; returns the period that this completes, if any."""
        if self._pending is None or start != self._ended:
            self._pending, self._begun = steps, start
        else:
            self._pending = joined(self._pending, steps)
        self._ended = end
        if end - self._begun < _PERIOD:
            return []
        whole, self._pending = self._pending, None
        return [whole]


def load_label(running: float) -> str:
    """The value of the label ``running`` for this number of requests: 1, 2, 3-4, 5-8, …, 257+."""
    return LOAD_LABELS[bisect_left(LOAD_EDGES, round(running))]


LOAD_LABELS: Final = (
    "1",
    *(f"{low + 1}-{high}" if high > low + 1 else str(high) for low, high in pairwise(LOAD_EDGES)),
    f"{LOAD_EDGES[-1] + 1}+",
)
