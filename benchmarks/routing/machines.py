"""Machines of the benchmark: a step law, its traffic, and the acceptance of drafts there."""

from dataclasses import dataclass, replace
from typing import Final

from benchmarks.routing.fleet import Mix, chance
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.step_law import H100, LAB, StepLaw

TOKENS: Final = 3
COLD: Final = frozenset({0.0})
HOT: Final = frozenset({1.0})


@dataclass(frozen=True, slots=True)
class Draft:
    """Acceptance of three draft tokens at temperatures 0 and 1."""

    name: str
    cold: float
    hot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A law, its traffic, and what drafts are accepted there."""

    name: str
    law: StepLaw
    mix: Mix
    most_at_once: int
    requests: int  # of a server, so that it is busy for many times as long as a request takes
    drafts: tuple[Draft, ...]

    def options(self, draft: Draft | None, tokens: int = TOKENS) -> SimulatorOptions:
        """A server that speculates with so many tokens of ``draft``, or does not."""
        plain = SimulatorOptions(
            num_speculative_tokens=0,
            prefix_hits=0.0,
            max_num_seqs=self.most_at_once,
            max_num_batched_tokens=8192,
            num_gpu_blocks=10**7,
            law=self.law,
        )
        if draft is None:
            return plain
        return replace(
            plain,
            num_speculative_tokens=tokens,
            cold_acceptance=chance(draft.cold, TOKENS),
            hot_acceptance=chance(draft.hot, TOKENS),
            hot_temperature=1.0,
        )


LAB_CPU: Final = Machine(
    name="the lab's CPU, a draft model",
    law=LAB,
    mix=Mix(cold=0.6, prompt=(20, 200), output=(32, 160)),
    most_at_once=16,
    requests=400,
    drafts=(Draft("greedy", 0.71, 0.40), Draft("sampled", 0.71, 0.74)),
)
H100_8B: Final = Machine(
    name="an 8B model on an H100, EAGLE-3",
    law=H100,
    mix=Mix(cold=0.6, prompt=(100, 900), output=(64, 256)),
    most_at_once=256,
    requests=1000,
    drafts=(Draft("greedy", 0.81, 0.39), Draft("sampled", 0.81, 0.71)),
)
