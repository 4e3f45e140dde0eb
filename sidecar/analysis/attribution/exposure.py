"""What requests account for in each window, to compare with what vLLM counted there.

A request's amounts are spread over its windows in proportion to the steps made in them. That takes two entries per
request, not one per window: a rate that starts with one window and stops with another, added up as windows are
closed in order.
"""

import math
from collections.abc import Callable, Mapping
from enum import IntEnum

from sidecar.analysis.attribution.windows import Growth, Window, Windows


class Amount(IntEnum):
    """A quantity that requests account for; from ``BUCKETS`` on, each bucket's optional steps and accepted tokens."""

    REQUESTS = 0  # choices, each of which vLLM runs as a request
    TOKENS = 1  # completion tokens
    EMITTED = 2  # tokens that are not accepted drafts, as in ``Growth.emitted``
    EXACT_DRAFTS = 3  # of requests with vLLM's own numbers
    EXACT_ACCEPTED = 4
    STEPS = 5  # verification steps of inferred requests
    CLOCKED = 6  # requests whose steps the clock gives from their arrival on
    CLOCKED_STEPS = 7  # the clock from their arrival to their end, less truncated tokens
    CLOCKED_EMITTED = 8
    BUCKETS = 9


def optional_steps(bucket: int) -> int:
    """Steps of a bucket's inferred requests beyond those needed to draft their accepted tokens."""
    return Amount.BUCKETS + 2 * bucket


def accepted_tokens(bucket: int) -> int:
    """Accepted tokens of a bucket's inferred requests."""
    return Amount.BUCKETS + 2 * bucket + 1


class Exposures:
    """Sums over the closed windows, fading with a time constant of ``memory`` seconds.

    ``sums`` is what requests account for, ``counted`` what vLLM counted in the same windows.
    """

    def __init__(self, windows: Windows, buckets: int, memory: float) -> None:
        self._windows = windows
        self._memory = memory
        self._rates = [0.0] * (Amount.BUCKETS + 2 * buckets)
        self._closed_until = -math.inf
        self.sums = [0.0] * len(self._rates)
        self.counted = Growth(drafts=0.0, draft_tokens=0.0, accepted=0.0, generated=0.0, steps=None)

    def spread(self, amounts: Mapping[int, float], start: float, end: float) -> None:
        """Spreads a request's amounts from ``start`` to ``end``; windows already closed do not change."""
        first, last = self._windows.at(start), self._windows.at(end)
        if first is None or last is None:
            return
        steps = last.clock(end) - first.clock(start)
        if first is last or steps <= 0:
            _enter(last, amounts, 1.0)
            return
        _enter(first, amounts, (first.after.steps - first.clock(start)) / steps)
        _enter(last, amounts, (last.clock(end) - last.before.steps) / steps)
        begin = self._windows.at(max(first.end, self._closed_until))
        if begin is None or begin.end >= last.end:
            return
        for index, amount in amounts.items():
            rate = amount / steps
            begin.rates[index] = begin.rates.get(index, 0.0) + rate
            last.rates[index] = last.rates.get(index, 0.0) - rate

    def close(self, until: float, observe: Callable[[Window, list[float]], None]) -> None:
        """Closes the windows that end by ``until``; ``observe`` gets each with the amounts of its requests."""
        for window in self._windows.ending_after(self._closed_until):
            if window.end > until:
                break
            self._close(window, observe)

    def _close(self, window: Window, observe: Callable[[Window, list[float]], None]) -> None:
        window.closed = True
        self._closed_until = window.end
        for index, rate in window.rates.items():
            self._rates[index] += rate
        amounts = [rate * window.steps for rate in self._rates]
        for index, amount in window.amounts.items():
            amounts[index] += amount
        window.amounts, window.rates = {}, {}
        if window.restarted:
            return
        keep = math.exp(-window.seconds / self._memory)
        old, new = self.counted, window.growth
        self.sums = [total * keep + amount for total, amount in zip(self.sums, amounts, strict=True)]
        self.counted = Growth(
            drafts=old.drafts * keep + new.drafts,
            draft_tokens=old.draft_tokens * keep + new.draft_tokens,
            accepted=old.accepted * keep + new.accepted,
            generated=old.generated * keep + new.generated,
            steps=None,
        )
        observe(window, amounts)


def _enter(window: Window, amounts: Mapping[int, float], share: float) -> None:
    if not window.closed:
        for index, amount in amounts.items():
            window.amounts[index] = window.amounts.get(index, 0.0) + amount * share
