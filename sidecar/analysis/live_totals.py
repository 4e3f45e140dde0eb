"""Totals that the plug-in reports for a temperature or a group: since the engine started, and over sliding windows."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from sidecar.analysis.acceptance import Acceptance
from sidecar.engine.window import HOUR, GrowthWindow
from sidecar.requests.messages import GroupTotals, TemperatureTotals

_OUTCOMES: Final = 4
DRAFTED_AT, ACCEPTED_AT = slice(_OUTCOMES + 3, None, 2), slice(_OUTCOMES + 4, None, 2)  # of ``Counts``, by position

Counts = tuple[int, ...]
"""Finished requests by outcome, drafts, draft tokens, accepted tokens; then drafted and accepted at each position."""


def temperature_counts(row: TemperatureTotals) -> Counts:
    """The counts in a temperature's row."""
    pairs = zip_longest(row.drafted_at, row.accepted_at, fillvalue=0)
    speculation = (row.drafts, row.draft_tokens, row.accepted_tokens)
    return (*row.requests, *speculation, *(count for pair in pairs for count in pair))


def group_counts(row: GroupTotals) -> Counts:
    """The counts in a group's row, which does not distinguish requests by outcome."""
    return (row.requests, 0, 0, 0, row.drafts, row.draft_tokens, row.accepted_tokens)


class LiveTotals:
    """Totals that never fall: they start at the plug-in's, add its growth, and continue when an engine restarts."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._before: list[int] = [0] * (_OUTCOMES + 3)  # counted before this sidecar listened
        self._grown: list[int] = [0] * (_OUTCOMES + 3)
        self._window, self._hour = GrowthWindow(window), GrowthWindow(HOUR)

    def add(self, growth: Sequence[int], *, recent: bool) -> None:
        """Adds what was counted since the last call; unless it is ``recent``, no window includes it."""
        to = self._grown if recent else self._before
        to += [0] * (len(growth) - len(to))
        for index, count in enumerate(growth):
            to[index] += count

    def mark(self, at: float) -> None:
        """Timestamps the totals with ``at``, a poll's time."""
        grown = tuple(self._grown)
        self._window.append(at, grown)
        self._hour.append(at, grown)

    @property
    def counts(self) -> Counts:
        """The totals so far."""
        return tuple(before + grown for before, grown in zip_longest(self._before, self._grown, fillvalue=0))

    @property
    def window(self) -> Acceptance:
        """Over the sliding window; the caller sets its share."""
        return _acceptance(self._window)

    @property
    def hour(self) -> Acceptance:
        """Over the last hour, or as much of it as is known."""
        return _acceptance(self._hour)


def _acceptance(window: GrowthWindow) -> Acceptance:
    grown = window.growth
    if not grown:
        return Acceptance(requests=0)
    drafts, draft_tokens, accepted_tokens = grown[_OUTCOMES : _OUTCOMES + 3]
    return Acceptance(
        seconds=window.seconds,
        requests=sum(grown[:_OUTCOMES]),
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted_tokens,
        drafted_per_position=grown[DRAFTED_AT],
        accepted_per_position=grown[ACCEPTED_AT],
    )
