"""Acceptance from counter growth over a window: of one engine, and of several together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from sidecar.engine.names import SPECULATION
from sidecar.engine.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The tokens drafted and accepted in a window; it has a ``rate`` if ``draft_tokens`` is positive.

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
        """Tokens per verification step, the bonus token included; None if no step was counted."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts > 0 else None

    @property
    def position_rates(self) -> tuple[float, ...]:
        """The share of steps that accepted each draft position, 0 to 1."""
        return tuple(min(accepted / self.drafts, 1.0) for accepted in self.positions) if self.drafts > 0 else ()


def over_engines(acceptances: Sequence[Acceptance]) -> Acceptance:
    """The acceptance of one or more engines together, each weighted by what it drafted."""
    return Acceptance(
        drafts=sum(one.drafts for one in acceptances),
        draft_tokens=sum(one.draft_tokens for one in acceptances),
        accepted_tokens=sum(one.accepted_tokens for one in acceptances),
        positions=tuple(map(sum, zip_longest(*(one.positions for one in acceptances), fillvalue=0.0))),
    )


def window_acceptance(timeline: Timeline, start: float, end: float) -> Acceptance | None:
    """The acceptance between two moments; None if nothing was drafted or vLLM has no such counters."""
    drafts, draft_tokens, accepted_tokens = (timeline.growth(counter, start, end) for counter in SPECULATION)
    if drafts is None or draft_tokens is None or accepted_tokens is None or draft_tokens <= 0:
        return None
    return Acceptance(drafts, draft_tokens, accepted_tokens, timeline.positions_growth(start, end))
