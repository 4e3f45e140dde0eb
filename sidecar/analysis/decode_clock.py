"""How long one model's decode steps would have taken without speculation, over any period."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from sidecar.analysis.plain_curve import PlainStep, added_up
from sidecar.analysis.steps import Steps

_COVERED: Final = 0.8  # share of the steps whose plain time must be known
_PRUNE: Final = 64  # minimum number of readings to drop at once


class DecodeClock:
    """Cumulative steps and plain times at each poll, so that a request takes only two look-ups; bounded in time."""

    def __init__(self, history: float) -> None:
        """``history`` is in the clock's seconds."""
        self._history = history
        self._times: list[float] = []
        self._rows: list[tuple[float, ...]] = []  # cumulative sums of ``_row``

    def add(self, start: float, end: float, engines: Sequence[tuple[Steps, PlainStep | None]]) -> None:
        """Adds what the model's engines decoded between two polls; a gap or a clock set back restarts the history."""
        if not self._times or start != self._times[-1]:
            self._times, self._rows = [start], [(0.0,) * _FIELDS]
        # Per running request: each of them took part in this many steps.
        running = sum(steps.running for steps, _ in engines)
        grown = [(steps.decode_steps / running, _row(plain)) for steps, plain in engines]
        self._times.append(end)
        self._rows.append(added_up([(1.0, self._rows[-1]), *grown]))
        stale = bisect_right(self._times, end - self._history)
        if stale >= _PRUNE:
            del self._times[:stale], self._rows[:stale]

    def between(self, start: float, end: float) -> PlainStep | None:
        """The mean plain step from ``start`` to ``end``; None if it is unknown for too many of the steps."""
        if not self._times or start < self._times[0] or end <= start:
            return None
        pairs = zip_longest(self._at(start), self._at(end), fillvalue=0.0)
        decode_steps, known, plain, *deviations = [after - before for before, after in pairs]
        if decode_steps <= 0 or known < _COVERED * decode_steps:
            return None
        return PlainStep(seconds=plain / known, deviations=tuple(one / known for one in deviations))

    def _at(self, moment: float) -> tuple[float, ...]:
        right = bisect_right(self._times, moment)
        if right == len(self._times):
            return self._rows[-1]
        share = (moment - self._times[right - 1]) / (self._times[right] - self._times[right - 1])
        pairs = zip_longest(self._rows[right - 1], self._rows[right], fillvalue=0.0)
        return tuple([before + share * (after - before) for before, after in pairs])


_FIELDS: Final = 3


def _row(plain: PlainStep | None) -> tuple[float, ...]:
    """What a decode step adds to the sums: 1 and, if its plain time is known, 1, that time and its deviations."""
    return (1.0,) if plain is None else (1.0, 1.0, plain.seconds, *plain.deviations)
