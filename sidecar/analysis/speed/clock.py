"""The mean plain time over any stretch of time, from what engines decoded poll by poll."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from sidecar.analysis.speed.plain import PlainTime, added_up
from sidecar.analysis.speed.steps import Steps

_COVERED: Final = 0.8  # share of the tokens whose plain time must be known
_PRUNE: Final = 64  # minimum number of readings to drop at once
_NO_TOKENS: Final = (0.0,) * 5


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time: its mean plain time per token, and what a request's tokens waited for.

    ``prefill_seconds`` is the time per generated token that requests spend in prefill, which the
    time between a request's first and last token lacks.
    """

    plain: PlainTime
    prefill_seconds: float


class DecodeClock:
    """Cumulative tokens and plain times at each poll; bounded in time.

    With them, a request takes only two look-ups.
    """

    def __init__(self, history: float) -> None:
        """``history`` is in the clock's seconds."""
        self._history = history
        self._times: list[float] = []
        self._rows: list[tuple[float, ...]] = []  # cumulative sums of ``_row``

    def add(
        self, start: float, end: float, engines: Sequence[tuple[Steps, PlainTime | None]]
    ) -> None:
        """Adds what the model's engines decoded between two polls.

        A gap or a clock set back restarts the history.
        """
        if not self._times or start != self._times[-1]:
            self._times = [start]
            self._rows = [_NO_TOKENS]

        # Per running request: each of them got so many tokens.
        running = sum(steps.running for steps, _ in engines)
        grown = [(steps.generated / running, _row(steps, plain)) for steps, plain in engines]
        self._times.append(end)
        self._rows.append(added_up([(1.0, self._rows[-1]), *grown]))

        stale = bisect_right(self._times, end - self._history)
        if stale >= _PRUNE:
            del self._times[:stale], self._rows[:stale]

    def between(self, start: float, end: float) -> Stretch | None:
        """The means from ``start`` to ``end``; None if too little of it is known."""
        if not self._times or start < self._times[0] or end <= start:
            return None

        pairs = zip_longest(self._at(start), self._at(end), fillvalue=0.0)
        grown = [after - before for before, after in pairs]
        tokens, known, plain, doubt, prefill, *deviations = grown
        if tokens <= 0 or known < _COVERED * tokens:
            return None

        return Stretch(
            plain=PlainTime(
                seconds=plain / known,
                deviations=tuple(one / known for one in deviations),
                doubt=doubt / known,
            ),
            prefill_seconds=max(prefill / tokens, 0.0),
        )

    def _at(self, moment: float) -> tuple[float, ...]:
        right = bisect_right(self._times, moment)
        if right == len(self._times):
            return self._rows[-1]
        share = (moment - self._times[right - 1]) / (self._times[right] - self._times[right - 1])
        pairs = zip_longest(self._rows[right - 1], self._rows[right], fillvalue=0.0)
        return tuple([before + share * (after - before) for before, after in pairs])


def _row(steps: Steps, plain: PlainTime | None) -> tuple[float, ...]:
    """What a token adds to the sums.

    That is 1 and, if its plain time is known, 1, that time and its doubt; then the time in prefill
    and the deviations.
    """
    prefill = (steps.request_seconds - steps.seconds) / steps.generated
    if plain is None:
        return (1.0, 0.0, 0.0, 0.0, prefill)
    return (1.0, 1.0, plain.seconds, plain.doubt, prefill, *plain.deviations)
