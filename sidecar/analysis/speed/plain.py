"""Plain decoding: how long steps would have taken without speculation.

S0(b) is fitted from a measured baseline.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil, hypot, log2, sqrt
from typing import Final

from sidecar.analysis.speed.steps import LOAD_EDGES, LOAD_LABELS, Steps, sum_steps
from sidecar.settings.baselines import PlainStepTimes

# factor by which the outer segments extend past the lowest and highest measured load
_BEYOND: Final = 1.05
_ALIKE: Final = 1.5  # highest ratio of two prompt shares that count as equal
_FEW: Final = 0.2  # prompt tokens per generated token up to which prefill is negligible


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """S0 in seconds.

    ``deviations[j]`` is how far one standard deviation of the j-th independent error moves S0. The
    errors are common to all steps timed by one curve, so they add up as ``seconds`` does: see
    ``added_up``.
    """

    seconds: float
    deviations: tuple[float, ...]

    @property
    def error(self) -> float:
        """The standard error in seconds."""
        return hypot(*self.deviations)


def added_up(terms: Iterable[tuple[float, Sequence[float]]]) -> tuple[float, ...]:
    """The deviations of a sum of times, from each term's count and deviations.

    Missing deviations are 0.
    """
    scaled = ([count * one for one in deviations] for count, deviations in terms)
    return tuple(sum(column) for column in zip_longest(*scaled, fillvalue=0.0))


def scatter(off: Sequence[float]) -> float:
    """The standard error of a sum.

    ``off`` is how far each of its parts, at least two, is from what it should be. For parts a - R
    b, it is the standard error of the ratio R of the sums of a and b, times the sum of b (Cochran,
    Sampling Techniques, 2.11).
    """
    return sqrt(sum([one**2 for one in off]) * len(off) / (len(off) - 1))


def covers(times: PlainStepTimes, running: float) -> bool:
    """Whether the load is among those measured, with a tolerance of ``_BEYOND`` at both ends."""
    return times.running[0] / _BEYOND <= running <= times.running[-1] * _BEYOND


def plain_step(times: PlainStepTimes, running: float) -> PlainStep | None:
    """S0 at a load; None beyond the measured loads."""
    return line(times, running) if covers(times, running) else None


def line(times: PlainStepTimes, running: float) -> PlainStep:
    """S0 at any load: straight segments between the measured loads.

    The outer segments extend as far as needed.
    """
    shares = _shares(running, times.running)
    deviations = times.deviations or tuple((error,) for error in times.errors)
    return PlainStep(
        seconds=sum(share * times.seconds[knot] for knot, share in shares.items()),
        deviations=added_up((share, deviations[knot]) for knot, share in shares.items()),
    )


def by_load(times: PlainStepTimes) -> dict[str, float]:
    """S0 in the middle of each load in ``steps.LOAD_LABELS``; unmeasured loads are missing."""
    lows = (1, *(edge + 1 for edge in LOAD_EDGES))
    middles = {
        label: (low + high) / 2
        for label, low, high in zip(LOAD_LABELS, lows, LOAD_EDGES, strict=False)
    }
    found = {label: plain_step(times, middle) for label, middle in middles.items()}
    return {label: step.seconds for label, step in found.items() if step is not None}


def beside(
    times: PlainStepTimes | None, running: float
) -> tuple[float | None, float | None, float | None]:
    """Plain decoding at a load; None where unknown.

    S0, mean seconds to the first token, and an engine's tokens per second.
    """
    if times is None or (step := plain_step(times, running)) is None:
        return None, None, None
    return step.seconds, _first_token(times, running), running / step.seconds


def _first_token(times: PlainStepTimes, running: float) -> float | None:
    first, shares = times.first_token_seconds, _shares(running, times.running)
    return sum(share * first[knot] for knot, share in shares.items()) if first else None


def are_prompts_alike(times: PlainStepTimes, steps: Steps) -> bool:
    """Whether plain steps with the same prompts would include about as much prefill.

    They are compared with the plain steps that were measured.
    """
    share = min(max(times.prompt_share, steps.least_prompt_share), steps.prompt_share)
    low, high = sorted((times.prompt_share, share))
    return high <= max(_ALIKE * low, _FEW)


def _shares(running: float, knots: Sequence[float]) -> dict[int, float]:
    """The weights of the knots in the curve's value at a load; their sum is 1."""
    if len(knots) == 1:
        return {0: 1.0}
    right = min(max(bisect_right(knots, running), 1), len(knots) - 1)
    share = (running - knots[right - 1]) / (knots[right] - knots[right - 1])
    return {right - 1: 1 - share, right: share}


_SUPPORT: Final = 6  # minimum periods per load
_BLOCKS: Final = 12  # maximum blocks of adjacent periods per load

_Groups = list[list[Steps]]


def fit(periods: Sequence[Steps]) -> PlainStepTimes | None:
    """The curve through short periods of plain decoding; None if they do not determine one.

    The periods are in chronological order. At the mean load of each group of periods, the curve is
    their seconds / their steps, so it reproduces the measured time.
    """
    groups = _by_load(periods)
    if not groups:
        return None
    curve = _curve(groups, sum_steps(*periods).prompt_share)
    # It may have an impossible step time, such as one below 0 extrapolated from two similar loads.
    return curve if curve.problem() is None else None


def _curve(groups: _Groups, prompt_share: float) -> PlainStepTimes:
    loads = tuple(
        sum(one.running * one.decode_steps for one in group) / sum_steps(*group).decode_steps
        for group in groups
    )
    seconds = tuple(sum_steps(*group).step_seconds for group in groups)

    means = PlainStepTimes(running=loads, seconds=seconds, errors=(0.0,) * len(groups))
    errors = [_error(means, group) for group in groups]
    independent = (
        tuple(error * (i == j) for j in range(len(errors))) for i, error in enumerate(errors)
    )
    steps = [
        PlainStep(seconds=one, deviations=row)
        for one, row in zip(seconds, independent, strict=True)
    ]

    curve = replace(_through(loads, steps, prompt_share), first_token_seconds=_first_tokens(groups))
    if len(groups) > 1:
        # The outer segments extend to the lowest and the highest measured load.
        lowest = min(one.running for one in groups[0])
        highest = max(one.running for one in groups[-1])
        knots = (lowest, *loads[1:-1], highest)
        first = [_first_token(curve, load) for load in knots]
        curve = replace(
            _through(knots, [line(curve, load) for load in knots], prompt_share),
            # Extrapolated from steep times, it may fall below 0.
            first_token_seconds=tuple(max(0.0, one) for one in first if one is not None),
        )
    return curve


def _first_tokens(groups: _Groups) -> tuple[float, ...]:
    """The mean time to first token of each group; empty if a group has none."""
    sums = [sum_steps(*group) for group in groups]
    if not all(one.first_tokens and one.first_token_seconds for one in sums):
        return ()
    return tuple(one.first_token_seconds / one.first_tokens for one in sums)


def _through(
    loads: Sequence[float], steps: Sequence[PlainStep], prompt_share: float
) -> PlainStepTimes:
    return PlainStepTimes(
        running=tuple(loads),
        seconds=tuple(one.seconds for one in steps),
        errors=tuple(one.error for one in steps),
        deviations=tuple(one.deviations for one in steps),
        prompt_share=prompt_share,
    )


def _by_load(periods: Sequence[Steps]) -> _Groups:
    """The periods grouped by the nearest power of two, without groups that are too small."""
    groups: dict[int, list[Steps]] = defaultdict(list)
    for one in periods:
        groups[round(log2(one.running))].append(one)
    return [groups[key] for key in sorted(groups) if len(groups[key]) >= _SUPPORT]


def _error(means: PlainStepTimes, group: Sequence[Steps]) -> float:
    off = [one.seconds - one.decode_steps * line(means, one.running).seconds for one in group]
    size = ceil(len(off) / _BLOCKS)
    blocks = [sum(off[start : start + size]) for start in range(0, len(off), size)]
    return scatter(blocks) / sum_steps(*group).decode_steps


_COVERED: Final = 0.8  # share of the steps whose plain time must be known
_PRUNE: Final = 64  # minimum number of readings to drop at once


class DecodeClock:
    """Cumulative steps and plain times at each poll; bounded in time.

    With them, a request takes only two look-ups.
    """

    def __init__(self, history: float) -> None:
        """``history`` is in the clock's seconds."""
        self._history = history
        self._times: list[float] = []
        self._rows: list[tuple[float, ...]] = []  # cumulative sums of ``_row``

    def add(
        self, start: float, end: float, engines: Sequence[tuple[Steps, PlainStep | None]]
    ) -> None:
        """Adds what the model's engines decoded between two polls.

        A gap or a clock set back restarts the history.
        """
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
        """The mean plain step from ``start`` to ``end``.

        None if it is unknown for too many of the steps.
        """
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
    """What a decode step adds to the sums.

    It is 1 and, if its plain time is known, 1, that time and its deviations.
    """
    return (1.0,) if plain is None else (1.0, 1.0, plain.seconds, *plain.deviations)
