"""Decoding as vLLM's counters or the plug-in time it (docs/speedup.md).

It is in seconds and tokens per engine step, by load.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
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
    EAGLE and its like drop the last block of what a request finds. ``first_token_seconds`` is the
    time from arrival to first token, summed over requests.
    """

    seconds: float
    decode_steps: float
    engine_steps: float
    tokens: float
    first_tokens: float = 0.0
    prompt_tokens: float = 0.0
    dropped_tokens: float = 0.0
    drafts: float = 0.0
    draft_tokens: float = 0.0
    first_token_seconds: float = 0.0

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
    def tokens_per_second(self) -> float:
        """Tokens that the engine generates in a second in which it has something to do."""
        return (self.tokens + self.first_tokens) / (self.engine_steps * self.step_seconds)

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
        return self.prompt_tokens / (self.tokens + self.first_tokens)

    @property
    def least_prompt_share(self) -> float:
        """``prompt_share`` without ``dropped_tokens``.

        Plain decoding would compute at least so much for the same prompts.
        """
        return (self.prompt_tokens - self.dropped_tokens) / (self.tokens + self.first_tokens)


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


def counted_steps(grown: Mapping[Counter, float], block: int = 0) -> Steps | None:
    """What an engine decoded according to vLLM's counters.

    None if nothing, or if vLLM does not export them. ``block`` is the size of a block of its KV
    cache in tokens, 0 if unknown.
    """
    if not grown.keys() >= _NEEDED or grown[Counter.DECODE_STEPS] <= 0 or grown[Counter.STEPS] <= 0:
        return None

    first, generated = grown[Counter.FIRST_TOKENS], grown[Counter.GENERATION_TOKENS]
    if generated <= first or grown[Counter.DECODE_SECONDS] <= 0:
        return None

    return Steps(
        seconds=grown[Counter.DECODE_SECONDS],
        decode_steps=grown[Counter.DECODE_STEPS],
        engine_steps=grown[Counter.STEPS],
        tokens=generated - first,
        first_tokens=first,
        first_token_seconds=grown.get(Counter.TTFT_SECONDS, 0.0),
        **_prompts_and_drafts(grown, block),
    )


def reported_steps(
    tally: StepTally, grown: Mapping[Counter, float], block: int = 0
) -> Steps | None:
    """What an engine decoded by the plug-in's count of steps; None if nothing.

    The prompts and drafts are vLLM's.
    """
    if tally.steps <= 0 or tally.decodes <= 0 or tally.request_seconds <= 0 or tally.tokens <= 0:
        return None
    return Steps(
        seconds=tally.request_seconds,
        decode_steps=tally.decodes,
        engine_steps=tally.steps,
        tokens=tally.tokens,
        **_prompts_and_drafts(grown, block),
    )


def _prompts_and_drafts(grown: Mapping[Counter, float], block: int) -> dict[str, float]:
    computed = max(
        grown.get(Counter.PROMPT_TOKENS, 0.0) - grown.get(Counter.PREFIX_CACHE_HITS, 0.0), 0.0
    )
    return {
        "prompt_tokens": computed,
        "dropped_tokens": min(grown.get(Counter.FIRST_TOKENS, 0.0) * block, computed),
        "drafts": grown.get(Counter.DRAFTS, 0.0),
        "draft_tokens": grown.get(Counter.DRAFT_TOKENS, 0.0),
    }


class StepCheck:
    """Decides whether vLLM's inter-token latency has one observation per step or per token.

    It should have one per step. If it has one per token, its sum and count do not measure steps.
    """

    def __init__(self) -> None:
        self.per_token: bool | None = None  # None while too little was accepted to tell
        self._extra = self._accepted = self._drafts = self._tokens = 0.0

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
            self._extra = self._accepted = self._drafts = self._tokens = 0.0


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
