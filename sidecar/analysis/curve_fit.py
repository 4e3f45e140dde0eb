"""Fits S0(b) to a measurement: the mean step time at each load (docs/speedup.md)."""

from collections import defaultdict
from collections.abc import Sequence
from math import ceil, log2
from typing import Final

from pydantic import ValidationError

from sidecar.analysis.plain_curve import PlainStep, line, scatter
from sidecar.analysis.steps import Steps, joined
from sidecar.settings.baselines import PlainStepTimes

_SUPPORT: Final = 6  # minimum periods per load
_BLOCKS: Final = 12  # maximum blocks of adjacent periods per load

_Groups = list[list[Steps]]


def fit(periods: Sequence[Steps]) -> PlainStepTimes | None:
    """The curve through short periods of plain decoding, in chronological order; None if they do not determine one.

    At the mean load of each group of periods, it is their seconds / their steps, so it reproduces the measured time.
    """
    groups = _by_load(periods)
    try:
        return _curve(groups, joined(*periods).prompt_share) if groups else None
    except ValidationError:  # an impossible step time, such as one below 0 extrapolated from two similar loads
        return None


def _curve(groups: _Groups, prompt_share: float) -> PlainStepTimes:
    loads = tuple(
        sum(one.running * one.decode_steps for one in group) / joined(*group).decode_steps for group in groups
    )
    seconds = tuple(joined(*group).step_seconds for group in groups)
    means = PlainStepTimes(running=loads, seconds=seconds, errors=(0.0,) * len(groups))
    errors = [_error(means, group) for group in groups]
    independent = (tuple(error * (i == j) for j in range(len(errors))) for i, error in enumerate(errors))
    steps = [PlainStep(seconds=one, deviations=row) for one, row in zip(seconds, independent, strict=True)]
    curve = _through(loads, steps, prompt_share)
    if len(groups) == 1:
        return curve
    # The outer segments extend to the lowest and the highest measured load.
    knots = (min(one.running for one in groups[0]), *loads[1:-1], max(one.running for one in groups[-1]))
    return _through(knots, [line(curve, load) for load in knots], prompt_share)


def _through(loads: Sequence[float], steps: Sequence[PlainStep], prompt_share: float) -> PlainStepTimes:
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
    return scatter([sum(off[start : start + size]) for start in range(0, len(off), size)]) / joined(*group).decode_steps
