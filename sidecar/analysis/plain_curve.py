"""S0(b): seconds per step of the same model without speculation, by the number of requests running."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import hypot, sqrt
from typing import Final

from sidecar.analysis.regression import Observation, Solution, regress
from sidecar.analysis.steps import LOAD_EDGES, LOAD_LABELS, Steps, joined

_BEYOND: Final = 1.05  # how far the outer lines are extended past the lowest and highest measured load
_SUPPORT: Final = 6  # periods that a curve needs, and an inner knot within half an octave
_HALF_OCTAVE: Final = sqrt(2)
_STEADY: Final = 0.3  # requests that begin in a period / running: above it, prefills meet few decoding requests
_SIGNIFICANT: Final = 3.0  # standard errors by which the cost of a prompt token must differ from 0
_ALIKE: Final = 1.5  # ratio of two prompt shares up to which they count as equal if the cost is unknown
_SHARP: Final = 0.05  # standard error / S0 up to which a curve of the engine's own steps is used
_VARIED: Final = 0.1  # standard deviation / mean of the draft tokens per decode step that a regression on them needs
_FEW: Final = 0.2  # prompt tokens per generated token whose cost needs no correction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStep:
    """S0 in seconds, with ``others`` running besides the request itself.

    ``deviations[j]`` is how far the j-th of independent errors, one standard deviation each, moves S0. They are
    common to all steps timed by one curve, so they add up like ``seconds`` does: ``added_up``.
    """

    seconds: float
    deviations: tuple[float, ...]
    others: float

    @property
    def error(self) -> float:
        """The standard error in seconds."""
        return hypot(*self.deviations)


def added_up(terms: Iterable[tuple[float, Sequence[float]]]) -> tuple[float, ...]:
    """The deviations of a sum of times, from each one's number and deviations; missing ones are 0."""
    scaled = ([count * one for one in deviations] for count, deviations in terms)
    return tuple(sum(column) for column in zip_longest(*scaled, fillvalue=0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCurve:
    """Straight lines between knots: with ``running[i]`` requests a step takes ``seconds[i]``.

    ``running`` rises; a single knot is a curve for that load alone. The error of ``seconds[i]`` is ``deviations[i]``,
    as in ``PlainStep``: those of several loads are correlated. ``prompt_share`` is the number of prompt tokens
    computed per generated token while the curve was measured, ``prompt_seconds`` the time that each adds to a step of
    every other request; None if the measurement does not show it.
    """

    running: tuple[float, ...]
    seconds: tuple[float, ...]
    deviations: tuple[tuple[float, ...], ...]
    prompt_share: float
    prompt_seconds: float | None = None

    @property
    def errors(self) -> tuple[float, ...]:
        """The standard error of each of ``seconds``."""
        return tuple(hypot(*row) for row in self.deviations)

    def covers(self, running: float) -> bool:
        """Whether the load was measured."""
        return self.running[0] / _BEYOND <= running <= self.running[-1] * _BEYOND

    def at(self, running: float) -> PlainStep | None:
        """S0 at a load, with prompts like those of the measurement; None beyond the measured loads."""
        if not self.covers(running):
            return None
        shares = _shares(running, self.running)
        return PlainStep(
            seconds=sum(share * self.seconds[knot] for knot, share in shares.items()),
            deviations=added_up((share, self.deviations[knot]) for knot, share in shares.items()),
            others=max(running - 1, 0.0),
        )

    def by_load(self) -> dict[str, float]:
        """S0 in the middle of each load that ``steps.LOAD_LABELS`` names; without those that were not measured."""
        lows = (1, *(edge + 1 for edge in LOAD_EDGES))
        middles = {label: (low + high) / 2 for label, low, high in zip(LOAD_LABELS, lows, LOAD_EDGES, strict=False)}
        found = {label: self.at(middle) for label, middle in middles.items()}
        return {label: step.seconds for label, step in found.items() if step is not None}

    def prompt_excess(self, prompt_share: float) -> float | None:
        """Seconds added to a plain step per other running request at this prompt share.

        None if the prompts are not like those of the measurement and it does not show what a prompt token costs.
        """
        if self.prompt_seconds is not None:
            return self.prompt_seconds * (prompt_share - self.prompt_share)
        low, high = sorted((self.prompt_share, prompt_share))
        return 0.0 if high <= max(_ALIKE * low, _FEW) else None


def fit(periods: Sequence[Steps]) -> PlainCurve | None:
    """The curve through short periods of plain decoding, in chronological order; None if they are too few.

    Weighted least squares of S on b. The weights are decode steps, so the curve reproduces the total time measured.
    """
    return _fit(periods) or _fit(_without_bursts(periods))


def _fit(periods: Sequence[Steps]) -> PlainCurve | None:
    if len(periods) < _SUPPORT:
        return None
    knots = _knots([one.running for one in periods])
    found = regress([_observation(one, _shares(one.running, knots)) for one in periods], len(knots))
    return _curve(periods, knots, found, _prompt_seconds(periods, knots))


def _without_bursts(periods: Sequence[Steps]) -> Sequence[Steps]:
    """Drops the lowest and highest loads that have too few periods to determine the ends of a curve."""
    loads = sorted(one.running for one in periods)
    near = [(low, high) for low, high in zip(loads, loads[_SUPPORT - 1 :], strict=False) if high < low * _HALF_OCTAVE]
    return [one for one in periods if near and near[0][0] <= one.running <= near[-1][1]]


def fit_undrafted(periods: Sequence[Steps]) -> PlainCurve | None:
    """The curve of an engine that speculates: what its steps would take without drafts; None if undetermined.

    It comes from the periods that drafted nothing if they are enough, else it is S at no draft tokens in a regression
    of S on b and on draft tokens per engine step, which requires drafts whose number varies.
    """
    plain = fit([one for one in periods if one.draft_tokens == 0])
    if plain is not None and _is_sharp(plain):
        return plain
    if len(periods) < _SUPPORT or not _drafts_vary(periods):
        return None
    knots = _knots([one.running for one in periods])
    drafted = len(knots)
    rows = [_shares(one.running, knots) | {drafted: one.draft_tokens / one.engine_steps} for one in periods]
    found = regress([_observation(one, row) for one, row in zip(periods, rows, strict=True)], drafted + 1)
    curve = _curve(periods, knots, found)
    return curve if curve is not None and _is_sharp(curve) else None


def _curve(
    periods: Sequence[Steps], knots: tuple[float, ...], found: Solution, prompt_seconds: float | None = None
) -> PlainCurve | None:
    """The curve whose knots have the first of the found values; None if they are not determined."""
    if found.deviations is None:
        return None
    return PlainCurve(
        running=knots,
        seconds=found.values[: len(knots)],
        deviations=found.deviations[: len(knots)],
        prompt_share=joined(*periods).prompt_share,
        prompt_seconds=prompt_seconds,
    )


def _drafts_vary(periods: Sequence[Steps]) -> bool:
    """With a fixed K, draft tokens are a multiple of the load except for rounding, which a regression would fit."""
    steps = [one.decode_steps for one in periods]
    each = [one.draft_tokens / one.decode_steps for one in periods]
    mean = sum(one.draft_tokens for one in periods) / sum(steps)
    variance = sum(weight * (one - mean) ** 2 for weight, one in zip(steps, each, strict=True)) / sum(steps)
    return sqrt(variance) > _VARIED * mean


def _is_sharp(curve: PlainCurve) -> bool:
    return all(error <= _SHARP * seconds for seconds, error in zip(curve.seconds, curve.errors, strict=True))


def _knots(loads: Sequence[float]) -> tuple[float, ...]:
    """The lowest and highest measured load, and the measured powers of two between them."""
    low, high = min(loads), max(loads)
    if high < low * _HALF_OCTAVE:
        return (sum(loads) / len(loads),)
    inner = [
        float(edge)
        for edge in LOAD_EDGES
        if low * _HALF_OCTAVE < edge < high / _HALF_OCTAVE
        and sum(edge / _HALF_OCTAVE <= load < edge * _HALF_OCTAVE for load in loads) >= _SUPPORT
    ]
    return (low, *inner, high)


def _shares(running: float, knots: Sequence[float]) -> dict[int, float]:
    """The weights of the knots in the curve's value at a load; their sum is 1."""
    if len(knots) == 1:
        return {0: 1.0}
    right = min(max(bisect_right(knots, running), 1), len(knots) - 1)
    share = (running - knots[right - 1]) / (knots[right] - knots[right - 1])
    return {right - 1: 1 - share, right: share}


def _prompt_seconds(periods: Sequence[Steps], knots: Sequence[float]) -> float | None:
    """The cost of a prompt token to every other request, from steady periods; None if not significantly above 0.

    While one request prefills, the b - 1 others wait: S grows by cost x prompt tokens per generated token x (b - 1).
    If many requests begin together, few wait for their prefills.
    """
    steady = [one for one in periods if one.first_tokens <= max(_STEADY * one.running, 1.0)]
    if len(steady) < _SUPPORT * len(knots):
        return None
    prompt = len(knots)
    rows = [_shares(one.running, knots) | {prompt: one.prompt_share * max(one.running - 1, 0.0)} for one in steady]
    found = regress([_observation(one, row) for one, row in zip(steady, rows, strict=True)], prompt + 1)
    return found.values[-1] if found.values[-1] > _SIGNIFICANT * found.error(prompt) else None


def _observation(one: Steps, row: Mapping[int, float]) -> Observation:
    return Observation(row, one.step_seconds, one.decode_steps)
