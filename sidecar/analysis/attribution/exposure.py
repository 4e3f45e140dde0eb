"""What requests account for in each window, to compare with what vLLM counted there.

A request's amounts are spread over its windows in proportion to the steps made in them. That takes two entries per
request, not one per window: a rate that starts with one window and stops with another, added up as windows are
closed in order.
"""

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from sidecar.analysis.attribution.windows import Growth, Window, Windows

_EVERY_STEP: Final = 0.97  # drafts per step: 1.00 to 1.08 with a draft model, at most 0.43 with n-gram (recordings)
_ALL_SEEN: Final = 0.97  # of the tokens; windows' edges blur the rest
PARTLY_SEEN: Final = 0.7  # with less, unseen traffic hides the difference being measured


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

    @property
    def seen_share(self) -> float:
        """The share of the generated tokens that went to requests whose token count is known, 0 to 1."""
        share = self.sums[Amount.TOKENS] / self.counted.generated if self.counted.generated > 0 else 0.0
        return 1.0 if share > _ALL_SEEN else share

    @property
    def every_step_drafts(self) -> bool:
        """Whether there are as many drafts as steps after each request's first one.

        A request's first step drafts nothing and its last one emits about half a token less than its step.
        """
        share, emitted = self.seen_share, self.counted.emitted
        firsts = min(self.sums[Amount.REQUESTS] / share if share > 0 else 0.0, emitted / 2)
        return self.counted.drafts > _EVERY_STEP * (emitted - 0.5 * firsts)

    def residual(self, drafts: float) -> float | None:
        """The larger of the relative differences, in drafts and accepted tokens, of requests' sums from the counters.

        Both are compared with the share of the traffic that is seen. None without growth, if much of the traffic is
        not seen, and if some is not and nothing is inferred: unseen traffic may accept more or less.
        """
        seen = self.seen_share
        if seen < PARTLY_SEEN or (seen < 1 and not self.sums[Amount.STEPS]):
            return None
        expected, accepted = self.counted.drafts * seen, self.counted.accepted * seen
        if expected <= 0 or accepted <= 0:
            return None
        found = self.sums[Amount.TOKENS] - self.sums[Amount.EMITTED]
        return max(abs(drafts - expected) / expected, abs(found - accepted) / accepted)

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
