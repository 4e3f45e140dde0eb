"""What the lives that count have tallied under one label: their sum, and its growth over sliding windows."""

from dataclasses import replace
from operator import sub

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance
from sidecar.engine.window import HOUR, GrowthWindow
from sidecar.requests.tally import NOTHING, Tally


class LiveTally:
    """``total`` is the sum over the lives of the current process of vLLM, so it starts again at 0 when vLLM does.

    The windows keep their own growth, which includes nothing from before this sidecar was listening.
    """

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self.total = NOTHING
        self._grown = NOTHING
        self._window, self._hour = GrowthWindow(window, sub), GrowthWindow(HOUR, sub)

    def grow(self, growth: Tally) -> None:
        """Adds growth to the windows."""
        self._grown += growth

    def mark(self, at: float) -> None:
        """Timestamps the growth so far with ``at``, a poll's time."""
        self._window.append(at, self._grown)
        self._hour.append(at, self._grown)

    @property
    def window(self) -> Acceptance:
        """Over the sliding window; the caller sets its share."""
        return _acceptance(self._window)

    @property
    def hour(self) -> Acceptance:
        """Over the last hour, or as much of it as is known."""
        return _acceptance(self._hour)


def _acceptance(window: GrowthWindow[Tally]) -> Acceptance:
    growth = window.growth
    if growth is None:
        return replace(NO_DRAFTS, requests=0)
    return Acceptance(
        seconds=window.seconds,
        requests=growth.requests,
        drafts=growth.drafts,
        draft_tokens=growth.draft_tokens,
        accepted_tokens=growth.accepted_tokens,
        drafted_per_position=growth.drafted_at,
        accepted_per_position=growth.accepted_at,
    )
