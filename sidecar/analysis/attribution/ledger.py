"""What requests brought into each window, held against what vLLM counted there.

A request's quantities are spread over its windows in proportion to the steps made in them. That takes two entries a
request, not one a window: a rate that begins to hold, and ceases to, as the windows are closed in order.
"""

import math
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from sidecar.analysis.attribution.window import Clock, Window, Windows


class Slot(IntEnum):
    """A quantity that requests bring; from ``BUCKETS`` on two a bucket, ``spare_slot`` and ``accepted_slot``."""

    REQUESTS = 0  # choices, which is what vLLM runs
    TOKENS = 1  # completion tokens
    EMITTED = 2  # those not accepted: steps, the first one included, less the overhang (``Growth.emitted``)
    KNOWN_DRAFTS = 3  # of requests that carry vLLM's own numbers
    KNOWN_ACCEPTED = 4
    STEPS = 5  # steps after the first, of requests whose numbers are inferred
    STAY = 6  # from start to end, by the STEPS clock
    EVENTS = 7  # events after the first, of streamed requests
    EVENT_REQUESTS = 8
    EVENT_STEPS = 9  # the STEPS clock from the first event to the end
    EVENT_SHARED = 10  # the SHARED clock over the same time
    WITNESSED = 11  # ``Method.wait`` of requests whose steps are known
    WITNESSES = 12
    SILENT = 13  # from being taken up to the end, by the clock in use, of requests whose first token no one saw
    SILENT_REQUESTS = 14
    SILENT_EMITTED = 15
    SILENT_OVERHANG = 16
    WITNESSED_SQUARES = 17  # for the variance of the wait
    BUCKETS = 18


def spare_slot(bucket: int) -> int:
    """Steps that need not have drafted, so far as a bucket's accepted tokens tell, of inferred requests."""
    return Slot.BUCKETS + 2 * bucket


def accepted_slot(bucket: int) -> int:
    """Accepted tokens of a bucket's inferred requests."""
    return Slot.BUCKETS + 2 * bucket + 1


class Count(IntEnum):
    """What vLLM counted in the windows closed so far."""

    DRAFTS = 0
    DRAFT_TOKENS = 1
    ACCEPTED = 2
    GENERATED = 3
    EMITTED = 4
    STEPS = 5
    WINDOWS = 6
    FULL = 7  # windows at whose end requests waited; where vLLM does not tell, those that ran as many as the fullest
    BUSY = 8  # windows with steps, and with at least 5 of them where vLLM does not tell who waits
    CHANGED = 9  # how many steps more or less windows had than at the rate of the one before
    NEIGHBOURS = 10  # windows with steps that followed on such ones


_LEAST_STEPS: Final = 5
_LATELY: Final = 10.0  # seconds: a queue builds up within that


class Ledger:
    """Sums over the closed windows, faded with a time constant of ``memory`` seconds."""

    def __init__(self, windows: Windows, buckets: int, memory: float) -> None:
        self._windows = windows
        self._memory = memory
        self._size = Slot.BUCKETS + 2 * buckets
        self._rates = [0.0] * self._size
        self._next = 0.0  # the end of the newest closed window
        self._from = 0.0  # windows that start earlier do not count
        self.sums = [0.0] * self._size
        self.counts = [0.0] * len(Count)
        self._rate: float | None = None  # steps a second of the window before, in the time with requests
        self.most_running = 0.0  # requests at once, while others waited; faded
        self.waiting = 0.0  # steps that requests waited in, over the last seconds
        self.stayed = 0.0  # steps that they were there for in all
        self.arrivals = 0.0  # requests in the same time

    def spread(self, amounts: Mapping[int, float], start: float, end: float) -> None:
        """Spreads a request's quantities over the windows from ``start`` to ``end``; closed ones stay as they are."""
        found = self._windows.covering(start, end)
        if found is None:
            return
        first, last = (self._windows.at(index) for index in found)
        total = self._windows.steps(Clock.STEPS, found, start, end)
        if first is last or total <= 0:
            _enter(last, amounts, 1.0)
            return
        _enter(first, amounts, first.clock[0] * (1 - first.share_before(start)) / total)
        _enter(last, amounts, last.clock[0] * last.share_before(end) / total)
        begin = next((window for window in self._windows.between(found[0] + 1, found[1]) if not window.closed), None)
        if begin is None or begin is last:
            return
        for slot, amount in amounts.items():
            rate = amount / total
            begin.rates[slot] = begin.rates.get(slot, 0.0) + rate
            last.rates[slot] = last.rates.get(slot, 0.0) - rate

    def opened(self, window: Window) -> None:
        """Takes in how many requests run and wait at the end of a new window, which is known before it is closed."""
        running, waiting = window.queue or (0.0, 0.0)
        if window.broken:
            self.most_running = 0.0  # a vLLM that began anew may run another number
        if waiting > 0:
            self._ran(running, window.seconds)

    def _ran(self, running: float, seconds: float) -> None:
        # An exact maximum would hold on to what was before for ever.
        fade = (1 - math.exp(-seconds / self._memory)) / 4
        self.most_running = max(self.most_running * (1 - fade), running)

    def restart(self, at: float) -> None:
        """Forgets all sums but ``most_running``; the windows that start before ``at`` do not count any more."""
        self._from = at
        self.sums = [0.0] * self._size
        self.counts = [0.0] * len(Count)
        self.waiting = self.stayed = self.arrivals = 0.0

    def close(self, until: float, observe: Callable[[Window, list[float]], None]) -> None:
        """Closes the windows that end by ``until``; ``observe`` gets each one with what requests brought into it."""
        for window in self._windows.ending_after(self._next):
            if window.end > until:
                break
            self._close(window, observe)

    def _close(self, window: Window, observe: Callable[[Window, list[float]], None]) -> None:
        window.closed = True
        self._next = window.end
        for slot, rate in window.rates.items():
            self._rates[slot] += rate
        clock = window.clock[0]
        brought = [rate * clock for rate in self._rates]
        for slot, value in window.values.items():
            brought[slot] += value
        window.values, window.rates = {}, {}
        if not window.broken and window.start >= self._from:
            self._add(window, brought)
            observe(window, brought)

    def _add(self, window: Window, brought: list[float]) -> None:
        keep = math.exp(-window.seconds / self._memory)
        growth = window.growth
        steps = growth.steps or 0.0
        busy, full = self._occupied(window, steps)
        # Where none wait, a request's time and its steps differ by how the steps were spread over the window alone.
        waited = brought[Slot.STAY] - growth.emitted if full else 0.0
        changed, neighbours = self._changed(window)
        lately = math.exp(-window.seconds / _LATELY)
        self.waiting = self.waiting * lately + waited
        self.stayed = self.stayed * lately + growth.emitted + waited
        self.arrivals = self.arrivals * lately + brought[Slot.REQUESTS]
        counted = (
            growth.drafts,
            growth.draft_tokens,
            growth.accepted,
            growth.generated,
            growth.emitted,
            steps,
            1.0,
            float(full),
            float(busy),
            changed,
            neighbours,
        )
        self.sums = [total * keep + value for total, value in zip(self.sums, brought, strict=True)]
        self.counts = [total * keep + value for total, value in zip(self.counts, counted, strict=True)]

    def _occupied(self, window: Window, steps: float) -> tuple[bool, bool]:
        """Whether a window counts at all, and whether requests had to wait in it."""
        if window.queue is not None:
            return steps > 0, steps > 0 and window.queue[1] > 0
        busy = steps >= _LEAST_STEPS
        running = window.growth.emitted / steps if busy else 0.0
        self._ran(running, window.seconds)
        return busy, busy and running > self.most_running * 0.9

    def _changed(self, window: Window) -> tuple[float, float]:
        before, busy, steps = self._rate, window.busy_seconds, window.clock[Clock.STEPS]
        self._rate = steps / busy if steps > 0 and busy > 0 else None
        if before is None or self._rate is None:
            return 0.0, 0.0
        return abs(self._rate - before) * busy, 1.0


def _enter(window: Window, amounts: Mapping[int, float], share: float) -> None:
    if window.closed:
        return
    for slot, amount in amounts.items():
        window.values[slot] = window.values.get(slot, 0.0) + amount * share
