"""Acceptance from counter growth: of one window, one engine."""

from dataclasses import dataclass

from sidecar.engine.names import Counter
from sidecar.engine.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was drafted and accepted in a window that drafted: ``draft_tokens`` is more than 0.

    ``drafts`` counts verification steps of speculating requests; ``positions[p]`` the steps that accepted the
    draft token at position p.
    """

    drafts: float
    draft_tokens: float
    accepted_tokens: float
    positions: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Accepted / drafted, 0 to 1. A page rendered between two updates may show more accepted than drafted."""
        return min(self.accepted_tokens / self.draft_tokens, 1.0)

    @property
    def length(self) -> float | None:
        """Tokens per verification step, the bonus token included; None where no step was counted."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts > 0 else None

    @property
    def position_rates(self) -> tuple[float, ...]:
        """For each draft position the share of steps that accepted it, 0 to 1."""
        return tuple(min(accepted / self.drafts, 1.0) for accepted in self.positions) if self.drafts > 0 else ()


def window_acceptance(timeline: Timeline, start: float, end: float) -> Acceptance | None:
    """The acceptance between two moments; None where nothing was drafted or vLLM does not tell."""
    grown = [timeline.growth(counter, start, end) for counter in _COUNTERS]
    drafts, draft_tokens, accepted_tokens = grown
    if drafts is None or draft_tokens is None or accepted_tokens is None or draft_tokens <= 0:
        return None
    return Acceptance(drafts, draft_tokens, accepted_tokens, timeline.positions_growth(start, end))


_COUNTERS = (Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)
