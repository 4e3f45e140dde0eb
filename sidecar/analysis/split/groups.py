"""Groups of requests by something other than temperature, and which of them have a lower acceptance rate."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from math import sqrt
from typing import Final

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance, together
from sidecar.analysis.report import GroupReport
from sidecar.analysis.split.labels import OUTPUT_LABELS, PROMPT_LABELS, LiveTally
from sidecar.requests.messages import Table

_GROUPED: Final = (Table.PROMPT_TOKENS, Table.OUTPUT, Table.ADAPTER)
_CLEARLY: Final = 0.05  # a group accepts less if its acceptance rate is this far below that of the others
_CONFIDENCE: Final = 2.0  # and also below it by this many standard errors


class Groups:
    """One model's requests by group; every prompt length and output format exists from the start."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self._window = window
        labels = {Table.PROMPT_TOKENS: PROMPT_LABELS, Table.OUTPUT: OUTPUT_LABELS, Table.ADAPTER: ()}
        self.tallies = {by: {label: LiveTally(window) for label in labels[by]} for by in _GROUPED}

    def tally(self, by: Table, group: str) -> LiveTally:
        """A group's tally, new on first use."""
        groups = self.tallies[by]
        if group not in groups:
            groups[group] = LiveTally(self._window)
        return groups[group]

    def keep_adapters(self, names: Collection[str]) -> None:
        """Forgets all other adapters: those of a process of vLLM that has ended."""
        adapters = self.tallies[Table.ADAPTER]
        self.tallies[Table.ADAPTER] = {name: tally for name, tally in adapters.items() if name in names}

    def reports(self, min_requests: int, *, fresh: bool) -> tuple[GroupReport, ...]:
        """Every group; one with fewer than ``min_requests`` requests in the window is never flagged.

        The windows are empty unless the last poll is ``fresh``.
        """
        return tuple(group for by in _GROUPED for group in self._of(by, min_requests, fresh=fresh))

    def _of(self, by: Table, min_requests: int, *, fresh: bool) -> Iterator[GroupReport]:
        windows = {group: tally.window if fresh else NO_DRAFTS for group, tally in self.tallies[by].items()}
        drafted = sum(window.draft_tokens for window in windows.values())
        for group, tally in self.tallies[by].items():
            window = replace(windows[group], share=windows[group].draft_tokens / drafted if drafted else 0.0)
            apart, error = _difference(window, together([one for name, one in windows.items() if name != group]))
            is_enough = (window.requests or 0) >= min_requests
            yield GroupReport(
                by=by,
                group=group,
                tally=tally.total,
                window=window,
                difference=apart,
                error=error,
                accepts_less=apart is not None
                and error is not None
                and is_enough
                and apart < -_CLEARLY
                and apart + _CONFIDENCE * error < 0,
                without_drafts=is_enough and drafted > 0 and window.draft_tokens == 0,
            )


def _difference(part: Acceptance, others: Acceptance) -> tuple[float, float] | tuple[None, None]:
    """How far the acceptance rate of ``part`` lies above that of ``others``, with its standard error.

    The error assumes that a request accepts all or nothing, so that its correlated tokens count once.
    """
    own, rest = part.rate, others.rate
    if own is None or rest is None or not part.requests or not others.requests:
        return None, None
    return own - rest, sqrt(own * (1 - own) / part.requests + rest * (1 - rest) / others.requests)
