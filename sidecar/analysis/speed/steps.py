"""Decoding as vLLM's counters or the plug-in time it (docs/speedup.md).

It is in seconds and tokens per engine step, by load.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf
from typing import Final, NamedTuple

from sidecar.engine.names import Counter
from sidecar.requests.messages import StepTally

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
    def prompt_share(self) -> float:
        """Prompt tokens computed per generated token: how much prefill S includes."""
        return self.prompt_tokens / self.generated

    @property
    def plain_prompt_tokens(self) -> float:
        """The prompt tokens that plain decoding would have computed for the same prompts."""
        return max(self.prompt_tokens - self.dropped_tokens, 0.0)

    def holding(self, context: float | None) -> "Steps":
        """The same with this mean context; unknown if it is None."""
        if context is None:
            return self._replace(context_tokens=0.0, context_steps=0.0)
        return self._replace(
            context_tokens=context * self.decode_steps, context_steps=self.decode_steps
        )


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
class Interval:
    """What else is known of an engine between two polls.

    ``seconds`` is the time between them. ``is_busy``: requests ran at both. ``prefill_seconds`` is
    how long a request takes from being scheduled to its first token, on average; None if unknown.
    ``queue_seconds`` is how long it waited before, on average; 0 if unknown.
    ``block`` is the size of a block of the KV cache in tokens, 0 if unknown, and ``drops_block``
    the share of the requests with a prefix-cache hit that compute the last block of it again,
    because the engine speculates.
    """

    seconds: float = inf
    is_busy: bool = False
    prefill_seconds: float | None = None
    queue_seconds: float = 0.0
    block: int = 0
    drops_block: float = 1.0


_USUAL: Final = Interval()


def counted_steps(grown: Mapping[Counter, float], interval: Interval = _USUAL) -> Steps | None:
    """What an engine decoded according to vLLM's counters.

    None if nothing, or if vLLM does not export them.
    """
    if not grown.keys() >= _NEEDED or grown[Counter.DECODE_STEPS] <= 0 or grown[Counter.STEPS] <= 0:
        return None

    first = grown[Counter.FIRST_TOKENS]
    generated = grown[Counter.GENERATION_TOKENS]
    if generated <= first or grown[Counter.DECODE_SECONDS] <= 0:
        return None

    steps = Steps(
        seconds=grown[Counter.DECODE_SECONDS],
        decode_steps=grown[Counter.DECODE_STEPS],
        engine_steps=grown[Counter.STEPS],
        tokens=generated - first,
        first_tokens=first,
        first_token_seconds=grown.get(Counter.TTFT_SECONDS, 0.0),
        **_prompts_and_drafts(grown, interval),
    )
    return _timed(steps, interval)


class StepClock:
    """Relates what an engine's counters say to the time between polls.

    With one request at a time, a prefill moves no counter until it ends, and its first token may
    come without any decoding. So such polls belong to the next ones with steps, and these may count
    more step time than passed since the one before.
    """

    def __init__(self) -> None:
        self._passed = 0.0  # since the last poll with steps
        self._grown: Mapping[Counter, float] = {}  # since then
        self._owed = 0.0  # step time that had not passed yet

    def counted(self, grown: Mapping[Counter, float], interval: Interval) -> Steps | None:
        """See ``counted_steps``; takes one poll after the other."""
        if not interval.is_busy:
            self._forget()
            return counted_steps(grown, interval)

        passed = self._passed + interval.seconds
        total = {name: more + self._grown.get(name, 0.0) for name, more in grown.items()}
        steps = counted_steps(total, interval)
        if steps is None:
            self._passed = passed
            self._grown = total
            return None
        if _alone(steps.running) < _MOSTLY:
            self._forget()
            return counted_steps(grown, interval)

        all_steps = _engine_seconds(steps, replace(interval, seconds=inf)) + self._owed
        seconds = min(all_steps, passed)
        self._forget()
        self._owed = min(all_steps - seconds, _MOST_OWED)
        return steps._replace(engine_seconds=seconds)

    def _forget(self) -> None:
        self._passed = 0.0
        self._grown = {}
        self._owed = 0.0


def reported_steps(
    tally: StepTally, grown: Mapping[Counter, float], interval: Interval = _USUAL
) -> Steps | None:
    """What an engine decoded by the plug-in's count of steps; None if nothing.

    The prompts and drafts are vLLM's.
    """
    if tally.steps <= 0 or tally.decodes <= 0 or tally.request_seconds <= 0 or tally.tokens <= 0:
        return None

    # The plug-in counts the steps in which any request decodes.
    first = grown.get(Counter.FIRST_TOKENS, 0.0)
    alone = first * _alone(tally.decodes / tally.steps)
    steps = Steps(
        seconds=tally.request_seconds,
        decode_steps=tally.decodes,
        engine_steps=tally.steps + alone,
        tokens=tally.tokens,
        first_tokens=first,
        first_token_seconds=grown.get(Counter.TTFT_SECONDS, 0.0),
        **_prompts_and_drafts(grown, interval),
    )
    return _timed(steps, interval)


def _timed(steps: Steps, interval: Interval) -> Steps:
    """The same with the times of all steps, and of prefill."""
    prefill = interval.prefill_seconds
    if prefill is None:
        prefill = steps.step_seconds
    timed = steps._replace(
        prefill_seconds=prefill * steps.first_tokens,
        queue_seconds=interval.queue_seconds * steps.first_tokens,
    )
    return timed._replace(engine_seconds=_engine_seconds(timed, interval))


def _alone(running: float) -> float:
    """The share of prefills during which no other request decodes.

    1 with one request at a time. With independent arrivals it falls about as the probability that
    nobody else is there.
    """
    return exp(-2 * max(running - 1, 0.0))


def _engine_seconds(steps: Steps, interval: Interval) -> float:
    """The wall time of an engine's steps, of those that only prefill too.

    vLLM does not export it. It is at least that of the steps in which any request decodes, and at
    most that plus all time in prefill, which is what an engine does that always has requests. If
    the load varied, it is the time as the requests saw it: longer steps have more of them.
    """
    every = steps.prefill_seconds
    alone = _alone(steps.running)
    decoding = steps.engine_steps - alone * steps.first_tokens
    least = decoding * steps.step_seconds
    wall = least + alone * every
    if interval.is_busy and alone < _MOSTLY:
        least = steps.engine_steps * steps.step_seconds
        wall = least + every
    return max(min(wall, interval.seconds), least)


_MOST_OWED: Final = 600.0  # seconds
_MOSTLY: Final = 0.9  # requests that come one at a time leave gaps, even if each poll meets one


def _prompts_and_drafts(grown: Mapping[Counter, float], interval: Interval) -> dict[str, float]:
    hits = grown.get(Counter.PREFIX_CACHE_HITS, 0.0)
    computed = max(grown.get(Counter.PROMPT_TOKENS, 0.0) - hits, 0.0)
    # A request without a hit drops nothing, and each hit is of a block at least.
    with_hits = grown.get(Counter.FIRST_TOKENS, 0.0)
    if interval.block:
        with_hits = min(with_hits, hits / interval.block)

    dropped = with_hits * interval.block * interval.drops_block
    return {
        "prompt_tokens": computed,
        "dropped_tokens": min(dropped, computed),
        "cached_tokens": hits,
        "drafts": grown.get(Counter.DRAFTS, 0.0),
        "draft_tokens": grown.get(Counter.DRAFT_TOKENS, 0.0),
    }


class StepCheck:
    """Decides whether vLLM's inter-token latency has one observation per step or per token.

    It should have one per step. If it has one per token, its sum and count do not measure steps.
    """

    def __init__(self) -> None:
        self.per_token: bool | None = None  # None while too little was accepted to tell
        self._extra = 0.0
        self._accepted = 0.0
        self._drafts = 0.0
        self._tokens = 0.0

    @property
    def trusts_page(self) -> bool:
        """Whether the page's counters may be taken for steps.

        Once tokens are accepted, only if the counters were found to count steps.
        """
        return self.per_token is False or (self.per_token is None and not self._accepted)

    def add(self, grown: Mapping[Counter, float]) -> None:
        """Takes in what one engine's counters grew by between two polls."""
        if not grown.keys() >= _NEEDED | {Counter.ACCEPTED_TOKENS, Counter.DRAFTS}:
            return

        tokens = grown[Counter.GENERATION_TOKENS] - grown[Counter.FIRST_TOKENS]
        self._tokens += tokens
        self._extra += tokens - grown[Counter.DECODE_STEPS]
        self._accepted += grown[Counter.ACCEPTED_TOKENS]
        self._drafts += grown[Counter.DRAFTS]

        if self._accepted >= _TELLING:
            # If each draft's step gave one token because the others were cut off, both ways of
            # counting are the same.
            lacks_extra = self._extra < _NONE * self._accepted
            self.per_token = lacks_extra and self._tokens > _CUT_OFF * self._drafts
            self._extra = 0.0
            self._accepted = 0.0
            self._drafts = 0.0
            self._tokens = 0.0


_TELLING: Final = 30  # accepted tokens
# extra tokens / accepted tokens below which ITL is per token; 1 if per step and nothing is cut off
_NONE: Final = 0.1
_CUT_OFF: Final = 1.1
_NEEDED: Final = {
    Counter.DECODE_SECONDS,
    Counter.DECODE_STEPS,
    Counter.STEPS,
    Counter.FIRST_TOKENS,
    Counter.GENERATION_TOKENS,
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
