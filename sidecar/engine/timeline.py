"""One engine's counters over the last minutes: growth over any window, values at any moment."""

import math
from array import array
from bisect import bisect_right

from sidecar.engine.continuation import Totals
from sidecar.engine.names import Counter, Gauge

_COLUMNS = {counter: column for column, counter in enumerate(Counter)}
_RUNNING = len(_COLUMNS)
_WAITING = _RUNNING + 1
_FIRST_POSITION = _WAITING + 1
_PRUNE = 64  # readings dropped together, since dropping from the front of a list moves the rest


class Timeline:
    """Bounded history of continued counters (``Continuation``); times must increase.

    Values are interpolated linearly between polls; outside the history there are none. A window that contains a
    restart of vLLM misses what was counted between the last poll before it and the restart.
    """

    def __init__(self, history: float, max_readings: int = 10_000) -> None:
        """Keeps ``history`` seconds and ``max_readings`` polls at most, and up to 64 more between two clean-ups."""
        self._history = history
        self._max = max_readings
        self.times: list[float] = []  # of the readings, oldest first; not to be modified
        self._rows: list[array[float]] = []
        self._restarts: list[float] = []

    def append(self, at: float, totals: Totals) -> None:
        """Adds a reading. One that is not later than the last restarts the history: the clock was set back."""
        if self.times and at <= self.times[-1]:
            self.times, self._rows, self._restarts = [], [], []
        if totals.restarted:
            self._restarts.append(at)
        counters = totals.engine.counters
        row = array("d", (counters.get(counter, math.nan) for counter in Counter))
        gauges = totals.engine.gauges
        row.extend(gauges.get(gauge, math.nan) for gauge in (Gauge.REQUESTS_RUNNING, Gauge.REQUESTS_WAITING))
        row.extend(totals.engine.accepted_per_position)
        self.times.append(at)
        self._rows.append(row)
        self._prune(at - self._history)

    def _prune(self, oldest: float) -> None:
        stale = max(bisect_right(self.times, oldest), len(self.times) - self._max)
        if stale >= _PRUNE:
            del self.times[:stale], self._rows[:stale]
            self._restarts = [at for at in self._restarts if at > self.times[0]]

    def value_at(self, counter: Counter, at: float) -> float | None:
        """The counter's total at a moment; None outside the history, or if vLLM did not export it."""
        return self._interpolate(_COLUMNS[counter], at)

    def growth(self, counter: Counter, start: float, end: float) -> float | None:
        """The counter's growth from ``start`` to ``end``; None if it has no value at one of them."""
        before, after = self.value_at(counter, start), self.value_at(counter, end)
        return None if before is None or after is None else after - before

    def positions_growth(self, start: float, end: float) -> tuple[float, ...]:
        """Accepted tokens by draft position from ``start`` to ``end``; empty if vLLM did not export them."""
        if not self._rows:
            return ()
        grown = []
        for column in range(_FIRST_POSITION, len(self._rows[-1])):
            before, after = self._interpolate(column, start), self._interpolate(column, end)
            if before is None or after is None:
                return ()
            grown.append(after - before)
        return tuple(grown)

    def queue_at(self, at: float) -> tuple[float, float] | None:
        """Requests running and waiting at the last reading up to a moment; None if vLLM did not export them."""
        index = bisect_right(self.times, at) - 1
        if index < 0:
            return None
        running, waiting = self._cell(index, _RUNNING), self._cell(index, _WAITING)
        return None if running is None or waiting is None else (running, waiting)

    def restarted_within(self, start: float, end: float) -> bool:
        """Whether vLLM restarted after ``start`` and not after ``end``."""
        return any(start < at <= end for at in self._restarts)

    def _interpolate(self, column: int, at: float) -> float | None:
        if not self.times or not self.times[0] <= at <= self.times[-1]:
            return None
        right = bisect_right(self.times, at)
        before = self._cell(right - 1, column)
        if right == len(self.times) or before is None or self.times[right - 1] == at:
            return before
        after = self._cell(right, column)
        if after is None:
            return None
        share = (at - self.times[right - 1]) / (self.times[right] - self.times[right - 1])
        return before + (after - before) * share

    def _cell(self, index: int, column: int) -> float | None:
        row = self._rows[index]
        value = row[column] if column < len(row) else math.nan
        return None if math.isnan(value) else value
