"""How long one model's decode steps took, and would have taken without speculation, over any stretch of time."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.plain_curve import PlainStep
from sidecar.analysis.steps import Steps

_COVERED: Final = 0.8  # share of the steps whose plain time must be known
_PRUNE: Final = 64  # readings dropped together


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean seconds of a step over a stretch of time: actual, and plain with its standard error."""

    actual: float
    plain: PlainStep


class DecodeClock:
    """Cumulative steps and times poll by poll, so that a request's share is two look-ups; bounded in time."""

    def __init__(self, history: float) -> None:
        """``history`` is in the clock's seconds."""
        self._history = history
        self._times: list[float] = []
        self._rows: list[tuple[float, ...]] = []  # sums of the fields that ``add`` grows

    def add(self, start: float, end: float, engines: Iterable[tuple[Steps, PlainStep | None]]) -> None:
        """What the engines of the model decoded between two polls; a gap or a clock set back restarts the history."""
        if not self._times or start != self._times[-1]:
            self._times, self._rows = [start], [(0.0,) * 6]
        decode_steps = running = seconds = known = plain = error = others = 0.0
        for steps, step in engines:
            decode_steps += steps.decode_steps
            running += steps.running
            seconds += steps.seconds
            if step is not None:
                known += steps.decode_steps
                plain += steps.decode_steps * step.seconds
                error += steps.decode_steps * step.error
                others += steps.decode_steps * step.others
        # Per running request: each took part in this many steps.
        scale = 1 / running if running else 0.0
        grown = (decode_steps, seconds, known, plain, error, others)
        self._times.append(end)
        self._rows.append(tuple(total + value * scale for total, value in zip(self._rows[-1], grown, strict=True)))
        stale = bisect_right(self._times, end - self._history)
        if stale >= _PRUNE:
            del self._times[:stale], self._rows[:stale]

    def between(self, start: float, end: float) -> StepTimes | None:
        """The mean over the steps from ``start`` to ``end``; None if unknown, or plain time for too few of them."""
        if not self._times or start < self._times[0] or end <= start:
            return None
        grown = [after - before for before, after in zip(self._at(start), self._at(end), strict=True)]
        decode_steps, seconds, known, plain, error, others = grown
        if decode_steps <= 0 or known < _COVERED * decode_steps:
            return None
        return StepTimes(
            seconds / decode_steps, PlainStep(seconds=plain / known, error=error / known, others=others / known)
        )

    def _at(self, moment: float) -> tuple[float, ...]:
        right = bisect_right(self._times, moment)
        if right == len(self._times):
            return self._rows[-1]
        before, after = self._rows[right - 1], self._rows[right]
        share = (moment - self._times[right - 1]) / (self._times[right] - self._times[right - 1])
        return tuple(low + (high - low) * share for low, high in zip(before, after, strict=True))
