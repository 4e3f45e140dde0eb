"""Decoding as the plug-in times it (docs/speedup.md).

It is in seconds and tokens per engine step, by load.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from sidecar.analysis.split.life import LifeSteps
from sidecar.engine.names import Counter

LOAD_EDGES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # requests running, inclusive


class Steps(NamedTuple):
    """What an engine decoded over a period; ``decode_steps`` and ``engine_steps`` are positive.

    A decode step is one request's part in one engine step. ``seconds`` is the time between the
    output events of a request, summed over requests. ``tokens`` are those from decode steps,
    without each request's first one. ``prompt_tokens`` are those computed, without those found in
    the prefix cache. Plain decoding may have found up to ``dropped_tokens`` of them there, since
    EAGLE and its like drop the last block of what a request finds. ``cached_tokens`` were found
    there. ``first_token_seconds`` is the time from arrival to first token, summed over requests,
    ``queue_seconds`` the part of it until they were scheduled, and ``prefill_seconds`` the rest.
    ``engine_seconds`` is the wall time of all steps, of those that only prefill too.
    ``context_tokens`` sums, over the ``context_steps`` decode steps for which it is known, the
    tokens that the request holds in the KV cache.
    """

    seconds: float
    decode_steps: float
    engine_steps: float
    tokens: float
    first_tokens: float = 0.0
    prompt_tokens: float = 0.0
    dropped_tokens: float = 0.0
    cached_tokens: float = 0.0
    drafts: float = 0.0
    draft_tokens: float = 0.0
    first_token_seconds: float = 0.0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    engine_seconds: float = 0.0
    context_tokens: float = 0.0
    context_steps: float = 0.0

    @property
    def generated(self) -> float:
        """All tokens, each request's first one included."""
        return self.tokens + self.first_tokens

    @property
    def context(self) -> float | None:
        """The tokens that a decoding request holds, on average; None if unknown."""
        return self.context_tokens / self.context_steps if self.context_steps else None

    @property
    def request_seconds(self) -> float:
        """The wall time of all steps, summed over the requests that were in them."""
        return self.running * self.engine_seconds

    @property
    def step_seconds(self) -> float:
        """S: how long a running request waits from one engine step to the next.

        This includes steps that also prefill.
        """
        return self.seconds / self.decode_steps

    @property
    def running(self) -> float:
        """b: requests to which an engine step gave tokens.

        This includes those in the step that ends their prefill.
        """
        return (self.decode_steps + self.first_tokens) / self.engine_steps

    @property
    def decoding(self) -> float:
        """Requests that decode in an engine step, without those whose prefill ends in it."""
        return self.decode_steps / self.engine_steps

    @property
    def tokens_per_second(self) -> float:
        """Tokens that the engine generates in a second in which it has something to do."""
        return self.generated / self.engine_seconds

    @property
    def tokens_per_step(self) -> float:
        """L: 1 where nothing is drafted; excludes tokens cut off at a request's end."""
        return self.tokens / self.decode_steps

    @property
    def drafted_share(self) -> float:
        """The fraction of decode steps that have a draft, 0 to 1."""
        return min(self.drafts / self.decode_steps, 1.0)

    @property
    def drafted(self) -> float:
        """Tokens per draft; 0 without drafts."""
        return self.draft_tokens / self.drafts if self.drafts else 0.0

    @property
    def plain_prompt_tokens(self) -> float:
        """The prompt tokens that plain decoding would have computed for the same prompts."""
        return max(self.prompt_tokens - self.dropped_tokens, 0.0)


NO_DECODING: Final = Steps(*(0.0,) * len(Steps._fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """Seconds of an engine step at one load.

    ``actual`` is with ``drafted`` tokens per draft, ``plain`` with none.
    """

    actual: float
    plain: float
    drafted: float

    def step(self, tokens: int) -> float:
        """Seconds of a step with this number of draft tokens."""
        return self.plain + tokens * (self.actual - self.plain) / self.drafted


def counter_growth(
    before: Mapping[Counter, float], after: Mapping[Counter, float], *, has_restarted: bool
) -> dict[Counter, float]:
    """The growth of one engine's counters between two polls.

    It is since 0 if vLLM has restarted in between.
    """
    start = dict.fromkeys(after, 0.0) if has_restarted else before
    return {
        counter: value - start[counter] for counter, value in after.items() if counter in before
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """What is known of prefill between two polls.

    ``seconds`` is how long a request takes from being scheduled to its first token, on average;
    None if unknown. ``queue_seconds`` is how long it waited before, on average; 0 if unknown.
    ``block`` is the size of a block of the KV cache in tokens, 0 if unknown, and ``drops_block``
    the share of the requests with a prefix-cache hit that compute the last block of it again,
    because the engine speculates.
    """

    seconds: float | None = None
    queue_seconds: float = 0.0
    block: int = 0
    drops_block: float = 1.0


_USUAL: Final = Prefill()


def reported_steps(
    told: LifeSteps, grown: Mapping[Counter, float], prefill: Prefill = _USUAL
) -> Steps | None:
    """What an engine decoded by the plug-in's count of its steps; None if nothing.

    First tokens, prompts and drafts are vLLM's own counters, which have ``grown`` meanwhile.
    """
    decoding = told.decoding
    if min(decoding.steps, decoding.decodes, decoding.request_seconds, decoding.tokens) <= 0:
        return None

    first = grown.get(Counter.FIRST_TOKENS, 0.0)
    # Of the steps that only prefill, those that end a prompt give a token.
    ending = min(told.prefilling.steps, first)
    each = prefill.seconds
    if each is None:
        each = decoding.request_seconds / decoding.decodes

    return Steps(
        seconds=decoding.request_seconds,
        decode_steps=decoding.decodes,
        engine_steps=decoding.steps + ending,
        tokens=decoding.tokens,
        first_tokens=first,
        first_token_seconds=grown.get(Counter.TTFT_SECONDS, 0.0),
        queue_seconds=prefill.queue_seconds * first,
        prefill_seconds=each * first,
        engine_seconds=decoding.seconds + told.prefilling.seconds,
        context_tokens=decoding.context_tokens,
        context_steps=decoding.decodes if decoding.context_tokens else 0,
        **_prompts_and_drafts(grown, prefill),
    )


def _prompts_and_drafts(grown: Mapping[Counter, float], prefill: Prefill) -> dict[str, float]:
    hits = grown.get(Counter.PREFIX_CACHE_HITS, 0.0)
    computed = max(grown.get(Counter.PROMPT_TOKENS, 0.0) - hits, 0.0)
    # A request without a hit drops nothing, and each hit is of a block at least.
    with_hits = grown.get(Counter.FIRST_TOKENS, 0.0)
    if prefill.block:
        with_hits = min(with_hits, hits / prefill.block)

    dropped = with_hits * prefill.block * prefill.drops_block
    return {
        "prompt_tokens": computed,
        "dropped_tokens": min(dropped, computed),
        "cached_tokens": hits,
        "drafts": grown.get(Counter.DRAFTS, 0.0),
        "draft_tokens": grown.get(Counter.DRAFT_TOKENS, 0.0),
    }


def sum_steps(*several: Steps) -> Steps:
    """Several periods as one: everything is summed, nothing is averaged."""
    return Steps(*map(sum, zip(*several, strict=True)))


def load_label(running: float) -> str:
    """The value of the label ``running`` for this number of requests: 1, 2, 3-4, 5-8, …, 257+."""
    return LOAD_LABELS[bisect_left(LOAD_EDGES, round(running))]


LOAD_LABELS: Final = (
    "1",
    *(f"{low + 1}-{high}" if high > low + 1 else str(high) for low, high in pairwise(LOAD_EDGES)),
    f"{LOAD_EDGES[-1] + 1}+",
)
