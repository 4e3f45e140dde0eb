"""How far a window's speedup may be from that of the same traffic on this machine in the long run.

Three things move it. Requests differ: the unit is the request, and what has finished tells by how
much. The machine's speed wanders: blocks of five minutes tell by how much more than requests do
they differ, over as long as the window (batch means). And what lasts longer than is known of
this pod is assumed. docs/speedup.md has what it covers.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, sqrt
from typing import Final, NamedTuple

from sidecar.analysis.certainty.sums import squares_off

_REQUESTS_VARY: Final = 0.25  # relative, until it is known: acceptance rates that differ by 0.15
_REQUESTS_ASSUMED: Final = 10.0  # the weight of that, in requests
_REMEMBERED: Final = 1000.0  # requests; one that is so many ago counts 1/e
_FEWEST: Final = 5.0  # requests

_BLOCK: Final = 300.0  # seconds
_MOST: Final = 96  # blocks: eight hours with traffic
_STRETCHES: Final = 4  # to be compared, at least
_OVERLAP: Final = 1.5  # overlapping stretches tell as much as so many times those that do not
Z: Final = 1.96

# Noise that outlasts what is known of a pod: relative, and after how many blocks half is left.
_LASTING: Final = 0.05
_LEARNT: Final = 6.0

_CHANGES: Final = (2, 4, 8, 16)  # blocks, both halves of which differ from all before them
_CLEARLY: Final = 5.0  # errors by which each half does


class RequestSpread:
    """How much the speedups of single requests differ, from those that have finished.

    Constant in memory.
    """

    def __init__(self) -> None:
        self._requests = 0.0
        self._plain = 0.0
        self._actual = 0.0
        self._squares = (0.0, 0.0, 0.0)  # of plain, of both multiplied, of actual

    def add(self, plain: float, actual: float) -> None:
        """Takes in a request's seconds by plain decoding and in fact."""
        kept = 1 - 1 / _REMEMBERED
        self._requests = kept * self._requests + 1
        self._plain = kept * self._plain + plain
        self._actual = kept * self._actual + actual

        new = (plain * plain, plain * actual, actual * actual)
        known, both, other = (kept * old + one for old, one in zip(self._squares, new, strict=True))
        self._squares = (known, both, other)

    @property
    def variance(self) -> float:
        """The relative variance of the speedup of n requests, times n."""
        known = 0.0
        if self._plain > 0 and self._actual > 0:
            off = squares_off(self._plain / self._actual, *self._squares)
            known = self._requests**2 * off / self._plain**2

        assumed = _REQUESTS_ASSUMED * _REQUESTS_VARY**2
        return (assumed + known) / (_REQUESTS_ASSUMED + self._requests)


class Times(NamedTuple):
    """Totals, or their growth; ``plain`` and ``actual`` in request-seconds."""

    plain: float = 0.0
    actual: float = 0.0
    requests: float = 0.0

    @property
    def ratio(self) -> float:
        """The speedup."""
        return self.plain / self.actual

    def since(self, before: "Times") -> "Times":
        """What has grown."""
        return Times(*(b - a for a, b in zip(before, self, strict=True)))


@dataclass(slots=True)
class _Block:
    """Five minutes from ``begun`` on; ``level`` is the number of clear changes before it."""

    begun: float
    times: Times
    level: int


class Scatter:
    """What the last eight hours with traffic tell of the error; at most 96 blocks."""

    def __init__(self, spread: RequestSpread) -> None:
        self._spread = spread
        self._blocks: deque[_Block] = deque(maxlen=_MOST)
        self._first = -inf
        self._marked = -inf
        # when the block began that has not ended, with which totals, and those of now
        self._begun = -inf
        self._before = Times()
        self._latest = Times()
        # of all blocks: their sum, and the noise over so many of them
        self._known = Times()
        self._noise: dict[int, float] = {}
        self.changed_at = -inf
        """When the speedup changed clearly for the last time; no window begins before."""

    def mark(self, at: float, totals: Times) -> None:
        """Takes in the totals at ``at``; begins a new block if the clock was set back."""
        if self._first == -inf:
            self._first = at
            self._begun = at
        elif at < self._marked:
            self._first += at - self._marked
            self._begun = at
            self._before = totals
            self.changed_at = -inf

        self._marked = at
        self._latest = totals
        if at - self._begun >= _BLOCK:
            self._end_block(at)

    def _end_block(self, at: float) -> None:
        grown = self._latest.since(self._before)
        begun = self._begun
        self._begun = at
        self._before = self._latest
        if grown.actual <= 0 or grown.plain <= 0:
            return

        level = self._blocks[-1].level if self._blocks else 0
        self._blocks.append(_Block(begun, grown, level))
        self._note_change()
        self._known = _sum([block.times for block in self._blocks])
        self._noise.clear()

    def error(self, actual: float, seconds: float) -> float | None:
        """The relative standard error over ``seconds`` that had so many ``actual`` seconds.

        None if fewer than five requests had them.
        """
        each = self._each
        if actual < _FEWEST * each or not each:
            return None
        noise = self._noise_over(max(round(seconds / _BLOCK), 1))
        return sqrt(self._by_requests(actual) + noise + self._lasting**2)

    @property
    def _lasting(self) -> float:
        return _LASTING / (1 + len(self._blocks) / _LEARNT)

    @property
    def _each(self) -> float:
        """The mean actual seconds of a request; no more than the time since the first mark."""
        now = self._latest.since(self._before)
        actual = self._known.actual + now.actual
        each = actual / max(self._known.requests + now.requests, 1.0)
        return min(each, self._marked - self._first)

    def _by_requests(self, actual: float) -> float:
        return self._spread.variance * self._each / actual

    def _noise_over(self, wanted: int) -> float:
        number = min(wanted, len(self._blocks) // _STRETCHES)
        if number not in self._noise:
            self._noise[number] = self._noise_of(list(self._blocks), number)
        return self._noise[number]

    def _noise_of(self, blocks: Sequence[_Block], number: int) -> float:
        """The relative variance of so many blocks together beyond what requests make of it."""
        if not 1 <= number <= len(blocks) // _STRETCHES:
            return 0.0
        ahead, actual = _ahead(blocks)
        off = [b - a for a, b in zip(ahead, ahead[number:], strict=False)]
        held = [b - a for a, b in zip(actual, actual[number:], strict=False)]
        whole = sum(held)

        stretches = actual[-1] * whole / sum([one**2 for one in held])
        freedom = stretches - 1 - (blocks[-1].level - blocks[0].level)
        if freedom < 1:
            return 0.0

        mean = whole / len(held)
        variance = sum([one**2 for one in off]) / whole * stretches / freedom / mean
        noise = variance - self._by_requests(mean)
        return max(noise, 0.0) * (student(_OVERLAP * freedom) / Z) ** 2

    def _note_change(self) -> None:
        """Whether both halves of the last blocks differ clearly from all blocks before them."""
        blocks = list(self._blocks)
        level = blocks[-1].level
        for number in _CHANGES:
            before = [block for block in blocks[:-number] if block.level == level]
            if len(before) < max(number, _STRETCHES):
                return

            half = number // 2
            noise = self._noise_of(blocks[:-number], min(half, len(before) // _STRETCHES))
            known = _sum([block.times for block in before])
            halves = [blocks[-number:-half], blocks[-half:]]
            beyond = [
                self._beyond(_sum([block.times for block in one]), known, noise) for one in halves
            ]
            if min(beyond) > _CLEARLY or max(beyond) < -_CLEARLY:
                self._begin_level(number)
                return

    def _beyond(self, now: Times, before: Times, noise: float) -> float:
        """By how many errors ``now`` is faster than ``before``."""
        share = now.actual / before.actual
        variance = (self._by_requests(now.actual) + noise) * (1 + share) + self._lasting**2
        return (now.ratio / before.ratio - 1) / sqrt(variance)

    def _begin_level(self, number: int) -> None:
        """Begins with the last blocks, but for the first of them: the change is within it."""
        blocks = list(self._blocks)
        since = blocks[1 - number :]
        for block in since:
            block.level += 1
        self.changed_at = since[0].begun
        self._blocks = deque([*blocks[:-number], *since], maxlen=_MOST)


def _sum(times: Sequence[Times]) -> Times:
    return Times(*map(sum, zip(*times, strict=True)))


def _ahead(blocks: Sequence[_Block]) -> tuple[list[float], list[float]]:
    """By how much plain / ratio exceeds actual, and actual; both summed up.

    The ratio is that of all blocks of a level.
    """
    ratios = {}
    for level in {block.level for block in blocks}:
        ratios[level] = _sum([block.times for block in blocks if block.level == level]).ratio
    off = [block.times.plain / ratios[block.level] - block.times.actual for block in blocks]
    actual = [block.times.actual for block in blocks]
    return list(accumulate(off, initial=0.0)), list(accumulate(actual, initial=0.0))


def student(freedom: float) -> float:
    """The 97.5 % quantile of Student's t (Cornish and Fisher's expansion)."""
    first = (Z**3 + Z) / 4
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96
    return Z + first / freedom + second / freedom**2
