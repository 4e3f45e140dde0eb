"""Acceptance over a window: of one engine, of several sum_windows, of a temperature or a group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.engine.merge import sum_by_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The tokens drafted and accepted in a window of ``seconds``.

    ``requests`` counts those that began or ended in it and, where known, those still running; None if not counted.
    ``drafts`` counts verification steps of speculating requests, ``accepted_per_position[p]`` the steps that accepted
    the draft token at position p, and ``drafted_per_position[p]`` the steps that had one: empty without the plug-in,
    since vLLM does not export it. ``share`` is the fraction of the model's draft tokens.
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

        Without ``drafted_per_position``, it is the share of all drafts that accepted the token at this position, so it
        also falls when drafts get shorter.
        """
        if self.drafted_per_position:
            both = zip(self.accepted_per_position, self.drafted_per_position, strict=False)
            return tuple(min(accepted / drafted, 1.0) for accepted, drafted in both if drafted > 0)
        if self.drafts <= 0:
            return ()
        return tuple(min(accepted / self.drafts, 1.0) for accepted in self.accepted_per_position)


NO_DRAFTS: Final = Acceptance()


def sum_windows(acceptances: Sequence[Acceptance]) -> Acceptance:
    """Merges windows that end at the same moment: takes the longest ``seconds``, sums the rest, averages nothing."""
    requests = [one.requests for one in acceptances]
    return Acceptance(
        seconds=max((one.seconds for one in acceptances), default=0.0),
        requests=sum(one for one in requests if one is not None) if requests and None not in requests else None,
        drafts=sum(one.drafts for one in acceptances),
        draft_tokens=sum(one.draft_tokens for one in acceptances),
        accepted_tokens=sum(one.accepted_tokens for one in acceptances),
        accepted_per_position=sum_by_position([(one.drafts, one.accepted_per_position) for one in acceptances]),
        drafted_per_position=sum_by_position([(one.drafts, one.drafted_per_position) for one in acceptances]),
        share=min(sum(one.share for one in acceptances), 1.0),
    )
