"""Acceptance over a window, and what a judgement is based on: recently and over an hour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.certainty.past import Past
from sidecar.analysis.speed.speedup import Speedup
from sidecar.analysis.speed.steps import StepCosts
from sidecar.engine.merge import sum_by_position
from sidecar.engine.methods import drafts_by_token, follows_a_schedule
from sidecar.requests.messages import Speculation

# standard errors, about 95 %: a difference that is claimed is larger, and ± shows as many
CONFIDENCE: Final = 2.0
# the smallest difference between two acceptance rates that a user would act on
_FLATTERS: Final = 0.05
# draft tokens that a model drafts token by token; in the field it is 3 to 7
_MOST_BY_TOKEN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The tokens drafted and accepted in a window of ``seconds``.

    ``requests`` counts those that began or ended in it, or are running, none twice: at least so
    many; None if unknown. ``drafts`` counts verification steps of speculating requests,
    ``accepted_per_position[p]`` the steps that accepted the draft token at position p, and
    ``drafted_per_position[p]`` the steps that had one: empty without the plug-in, since vLLM does
    not export it. ``share`` is the fraction of the model's draft tokens.
    """

    seconds: float = 0.0
    requests: float | None = None
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    accepted_per_position: tuple[float, ...] = ()
    drafted_per_position: tuple[float, ...] = ()
    share: float = 1.0

    @property
    def rate(self) -> float | None:
        """Accepted / drafted, 0 to 1; None without drafts.

        A page rendered between two updates may show more accepted than drafted.
        """
        return min(self.accepted_tokens / self.draft_tokens, 1.0) if self.draft_tokens > 0 else None

    @property
    def length(self) -> float | None:
        """Tokens per verification step, the bonus token included; None if no step was counted."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts > 0 else None

    @property
    def position_rates(self) -> tuple[float, ...]:
        """Accepted / drafted at each draft position, 0 to 1.

        Without ``drafted_per_position``, it is the share of all drafts that accepted the token at
        this position, so it also falls when drafts get shorter.
        """
        positions = len(self.accepted_per_position)
        drafted_at = self.drafted_per_position or (self.drafts,) * positions

        rates = []
        for accepted, drafted in zip(self.accepted_per_position, drafted_at, strict=False):
            if drafted > 0:
                rates.append(min(accepted / drafted, 1.0))
        return tuple(rates)


NO_DRAFTS: Final = Acceptance()
SYNTHETIC: Final = "synthetic"
"""The ``rejection_sample_method`` that accepts at a set rate, for benchmarks."""


def sum_windows(acceptances: Sequence[Acceptance]) -> Acceptance:
    """Merges windows that end at the same moment.

    Takes the longest ``seconds``, sums the rest, averages nothing.
    """
    if len(acceptances) == 1:
        return acceptances[0]

    counts = [part.requests for part in acceptances]
    requests = None
    if counts and None not in counts:
        requests = sum(count for count in counts if count is not None)

    return Acceptance(
        seconds=max((part.seconds for part in acceptances), default=0.0),
        requests=requests,
        drafts=sum(part.drafts for part in acceptances),
        draft_tokens=sum(part.draft_tokens for part in acceptances),
        accepted_tokens=sum(part.accepted_tokens for part in acceptances),
        accepted_per_position=sum_by_position(
            [(part.drafts, part.accepted_per_position) for part in acceptances]
        ),
        drafted_per_position=sum_by_position(
            [(part.drafts, part.drafted_per_position) for part in acceptances]
        ),
        share=min(sum(part.share for part in acceptances), 1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loops:
    """What repetition loops, which are easy to draft, do to the acceptance rate.

    All is of the requests that finished in the window: ``rate`` is the acceptance rate of the
    loops, ``share`` their share of the draft tokens, ``whole`` the rate of all, ``without`` that of
    the others; None if there are none.
    """

    rate: float
    share: float
    whole: float
    without: float | None

    @property
    def flatter(self) -> bool:
        """Whether the rate is so much lower without them that a user would decide otherwise."""
        return self.without is None or self.whole - self.without >= _FLATTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a judgement is based on: the speculation of a model, a temperature or an engine.

    ``window`` is over the sliding window, ``hour`` over the last hour, or as much of it as is
    known; ``past`` is what decides whether a rate is certain, None if only the window is known.
    ``speedup`` is plain time per token / actual; None without a baseline. ``speculation`` is
    how the engine drafts; None if neither the plug-in nor a setting tells. ``is_data_parallel``:
    vLLM has several engines for the model. ``runs_v2``: on model runner V2; None if unknown.
    ``emitted_share`` is the share of the accepted tokens that requests got: vLLM also counts those
    after a stop inside a draft (vLLM issue 56101). None if it is not known. ``running`` is how many
    requests run in a step of the window; None if unknown. ``loops``: None unless
    they hold a share of the draft tokens that matters.
    """

    window: Acceptance = NO_DRAFTS
    hour: Acceptance = NO_DRAFTS
    past: Past | None = None
    speedup: Speedup | None = None
    costs: StepCosts | None = None
    costs_by_load: Mapping[int, StepCosts] = field(default_factory=dict)
    speculation: Speculation | None = None
    is_data_parallel: bool = False
    runs_v2: bool | None = None
    emitted_share: float | None = None
    running: float | None = None
    loops: Loops | None = None

    @property
    def is_adaptive(self) -> bool:
        """Whether vLLM's acceptance counters include draft tokens that were never verified."""
        return self.speculation is not None and self.speculation.adaptive_verification

    @property
    def is_synthetic(self) -> bool:
        """Whether vLLM accepts draft tokens at a set rate: then acceptance and time say nothing."""
        return self.speculation is not None and is_synthetic(self.speculation)

    @property
    def has_schedule(self) -> bool:
        """Whether the number of draft tokens follows a schedule by batch size."""
        return self.speculation is not None and self.speculation.per_batch_size

    @property
    def is_ruled(self) -> bool:
        """Whether the rule of thumb on the acceptance rate applies.

        If nothing is known of the method, it does up to a number of draft tokens that models draft
        token by token: more are drafted in one pass, or by no model.
        """
        if self.speculation is not None:
            return is_ruled(self.speculation)
        longest = max(self.window, self.hour, key=lambda window: window.drafts)
        return len(longest.accepted_per_position) <= _MOST_BY_TOKEN

    @property
    def can_schedule(self) -> bool:
        """Whether vLLM is known to let the number of draft tokens follow the batch size."""
        if self.speculation is None or self.is_data_parallel:
            return False
        return follows_a_schedule(self.speculation.method, runner_v2=self.runs_v2)


def is_ruled(speculation: Speculation) -> bool:
    """Whether the rule of thumb on the acceptance rate applies to this way of speculating."""
    by_token = drafts_by_token(speculation.method, in_parallel=speculation.parallel_drafting)
    return by_token and not speculation.adaptive_verification and not is_synthetic(speculation)


def is_synthetic(speculation: Speculation) -> bool:
    """Whether draft tokens are accepted at a set rate, whatever the model says (vLLM 0.32 on)."""
    return speculation.rejection_sample_method == SYNTHETIC
