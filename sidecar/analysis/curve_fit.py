"""S0(b) from a measurement: the mean step at each load (docs/speedup.md)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import log2
from typing import Final

from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.scatter import blocks, scatter
from sidecar.analysis.steps import Steps, joined

_SUPPORT: Final = 6  # periods that a load needs
_BLOCKS: Final = 12  # of the periods at a load
_STEADY: Final = 0.3  # requests that begin in a period / running: above it, prefills meet few decoding requests
_SIGNIFICANT: Final = 3.0  # standard errors by which the cost of a prompt token must differ from 0
_SAME: Final = 1e-9  # relative variance of what differs by rounding alone
_SHARP: Final = 0.05  # standard error / S0 up to which a curve of the engine's own steps is used

_Groups = list[list[Steps]]


def fit(periods: Sequence[Steps]) -> PlainCurve | None:
    """The curve through short periods of plain decoding, in chronological order; None if they are too few.

    At the mean load of each group of periods it is their seconds / their steps, so it reproduces the time measured.
    """
    groups = _by_load(periods)
    if not groups:
        return None
    loads = tuple(
        sum(one.running * one.decode_steps for one in group) / joined(*group).decode_steps for group in groups
    )
    means = PlainCurve(
        running=loads,
        seconds=tuple(joined(*group).step_seconds for group in groups),
        deviations=((),) * len(groups),
        prompt_share=joined(*periods).prompt_share,
    )
    errors = [_error(means, group) for group in groups]
    means = replace(
        means,
        deviations=tuple(tuple(error * (i == j) for j in range(len(errors))) for i, error in enumerate(errors)),
        prompt_seconds=_prompt_seconds(means, groups),
    )
    return means if len(groups) == 1 else _stretched(means, groups)


def _by_load(periods: Sequence[Steps]) -> _Groups:
    """Those around each power of two, where they are enough; by half octaves if a single one has them all."""
    found: _Groups = []
    for parts in (1, 2):
        groups: dict[int, list[Steps]] = defaultdict(list)
        for one in periods:
            groups[round(parts * log2(one.running))].append(one)
        several = [groups[key] for key in sorted(groups) if len(groups[key]) >= _SUPPORT]
        if len(several) > 1:
            return several
        found = found or several
    return found


def _error(means: PlainCurve, group: Sequence[Steps]) -> float:
    off = [
        sum(one.seconds - one.decode_steps * means.line(one.running).seconds for one in few)
        for few in blocks(group, _BLOCKS)
    ]
    return scatter(off) / joined(*group).decode_steps


def _stretched(means: PlainCurve, groups: _Groups) -> PlainCurve:
    """The same with its outer lines extended to the lowest and highest load that was measured."""
    low, high = min(one.running for one in groups[0]), max(one.running for one in groups[-1])
    knots = (low, *means.running[1:-1], high)
    steps = [means.line(load) for load in knots]
    return replace(
        means,
        running=knots,
        seconds=tuple(one.seconds for one in steps),
        deviations=tuple(one.deviations for one in steps),
    )


def _prompt_seconds(means: PlainCurve, groups: _Groups) -> float | None:
    """The cost of a prompt token to every other request, from steady periods; None if not significantly above 0.

    While one request prefills, the b - 1 others wait: S grows by cost x prompt tokens per generated token x (b - 1).
    If many requests begin together, few wait for their prefills. Only periods of the same load are compared.
    """
    parts: list[tuple[float, float]] = []  # of each block: sums of w x y and w x x, both off the mean of their load
    size = 0.0
    for group in groups:
        steady = [one for one in group if one.first_tokens <= max(_STEADY * one.running, 1.0)]
        if len(steady) < _SUPPORT:
            continue
        weights = [one.decode_steps for one in steady]
        waits = [one.prompt_share * max(one.running - 1, 0.0) for one in steady]
        off = [one.step_seconds - means.line(one.running).seconds for one in steady]
        size += sum(weight * one**2 for weight, one in zip(weights, waits, strict=True))
        terms = list(zip(weights, _centred(waits, weights), _centred(off, weights), strict=True))
        parts += [
            (sum(w * x * y for w, x, y in few), sum(w * x * x for w, x, _ in few)) for few in blocks(terms, _BLOCKS)
        ]
    spread = sum(square for _, square in parts)
    if spread <= _SAME * size:
        return None
    cost = sum(product for product, _ in parts) / spread
    error = scatter([product - cost * square for product, square in parts]) / spread
    return cost if cost > _SIGNIFICANT * error else None


def _centred(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    mean = sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
    return [value - mean for value in values]


def fit_undrafted(periods: Sequence[Steps]) -> PlainCurve | None:
    """What an engine that speculates would take without drafts, from periods that drafted nothing; None if unclear.

    More than one token a step was drafted, even if vLLM's page counts no draft yet, as a slow API process does.
    """
    curve = fit([one for one in periods if one.draft_tokens == 0 and one.tokens <= one.decode_steps])
    if curve is None:
        return None
    is_sharp = all(error <= _SHARP * seconds for seconds, error in zip(curve.seconds, curve.errors, strict=True))
    return curve if is_sharp else None
