"""Groups of requests by something other than temperature, and which of them have a lower acceptance rate."""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from typing import Final

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance, together
from sidecar.analysis.live_totals import LiveTotals
from sidecar.analysis.report import GroupReport
from sidecar.requests.messages import OTHER, AdapterTotals, GroupTotals, OutputTotals, PromptTotals
from sidecar.settings import Settings

PROMPT, OUTPUT, ADAPTER = "prompt_tokens", "output", "adapter"
PROMPT_LABELS: Final = ("0-512", "512-2k", "2k-8k", "8k-32k", "32k+")
_PROMPT_EDGES: Final = (9, 11, 13, 15)  # the highest exponent of each but the last: 512 is 2**9
_OUTPUT_LABELS: Final = ("free", "structured")
_MOST_ADAPTERS: Final = 16
_NO_ADAPTER: Final = "none"
_CLEARLY: Final = 0.05  # a group accepts less if its acceptance rate is this far below that of the others
_CONFIDENCE: Final = 2.0  # and also below it by this many standard errors


class Groups:
    """One model's requests by group; every prompt length and output format exists from the start."""

    def __init__(self, settings: Settings, overflow: Tally[str]) -> None:
        """``overflow`` is as in ``ModelState``; an adapter that became "other" counts each time it grows."""
        self._window = settings.latency_window
        self._names_adapters = settings.plugin.adapters
        known = [(PROMPT, label) for label in PROMPT_LABELS] + [(OUTPUT, label) for label in _OUTPUT_LABELS]
        self._totals = {key: LiveTotals(self._window) for key in known}
        self._overflow = overflow

    def add(self, row: GroupTotals, growth: Sequence[int], *, recent: bool) -> None:
        """Adds a row's growth; see ``LiveTotals.add``."""
        if (key := self._key(row)) is not None:
            self._totals.setdefault(key, LiveTotals(self._window)).add(growth, recent=recent)

    def mark(self, at: float) -> None:
        """See ``LiveTotals.mark``."""
        for totals in self._totals.values():
            totals.mark(at)

    def _key(self, row: GroupTotals) -> tuple[str, str] | None:
        match row:
            case PromptTotals():
                return PROMPT, PROMPT_LABELS[bisect_left(_PROMPT_EDGES, row.key)]
            case OutputTotals():
                return OUTPUT, row.key
            case AdapterTotals():
                return self._adapter(row.key or _NO_ADAPTER) if self._names_adapters else None

    def _adapter(self, name: str) -> tuple[str, str]:
        named = [group for by, group in self._totals if by == ADAPTER]
        if name not in named and name != OTHER and len(named) >= _MOST_ADAPTERS:
            self._overflow["group"] += 1
            return ADAPTER, OTHER
        return ADAPTER, name

    def reports(self, min_requests: int, *, fresh: bool) -> tuple[GroupReport, ...]:
        """Every group; one with fewer than ``min_requests`` requests in the window is never flagged.

        The windows are empty unless the last poll is ``fresh``.
        """
        return tuple(one for by in (PROMPT, OUTPUT, ADAPTER) for one in self._of(by, min_requests, fresh=fresh))

    def _of(self, by: str, min_requests: int, *, fresh: bool) -> Iterator[GroupReport]:
        groups = {group: one for (kind, group), one in self._totals.items() if kind == by}
        windows = {group: totals.window if fresh else NO_DRAFTS for group, totals in groups.items()}
        drafted = sum(window.draft_tokens for window in windows.values())
        for group, totals in groups.items():
            window = replace(windows[group], share=windows[group].draft_tokens / drafted if drafted else 0.0)
            apart, error = _difference(window, together([one for name, one in windows.items() if name != group]))
            counts, is_enough = totals.counts, (window.requests or 0) >= min_requests
            yield GroupReport(
                by=by,
                group=group,
                requests=counts[0],
                drafts=counts[4],
                draft_tokens=counts[5],
                accepted_tokens=counts[6],
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
