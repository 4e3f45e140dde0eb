"""Plain step times from what an engine without speculation did (docs/speedup.md).

At each load, least squares give the step that prefills nothing, how it grows with the context, and
what prefill adds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, hypot, log2, sqrt
from typing import Final

from sidecar.analysis.speed.plain import (
    CONTEXT_BEYOND,
    MIXED,
    Prefill,
    knee,
    plain_token,
    prefill,
    prefill_weights,
)
from sidecar.analysis.speed.steps import Steps, sum_steps
from sidecar.requests.messages import StepTally
from sidecar.settings.baselines import PlainStepTimes

_SUPPORT: Final = 6  # minimum periods per load
_BLOCKS: Final = 12  # maximum blocks of adjacent periods per load
_FEWEST: Final = 4  # minimum blocks per load
_ROUNDS: Final = 3  # into which a measurement without rounds is divided
_MOST_SIZES: Final = 4
# A column that is so much a combination of others, by the part of its square that is left, cannot
# be told from them.
_DISTINCT: Final = 0.02
_ONE_AT_A_TIME: Final = 1.05
# Relative errors of what is taken from another load: a slope, which grows in proportion to the
# requests, and a prefill's time.
_SCALED: Final = 0.25
_BUSY_MACHINE: Final = 0.05  # relative error for each process per core that was ready to run


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of plain decoding under one load, context and kind of prompts.

    ``pure`` has those of its steps that prefilled nothing, by the plug-in, and ``mixed`` the
    others; None without it.
    ``number`` is the round that it belongs to. ``wanted`` is the number of requests that were sent
    at once; None if nothing was.
    """

    steps: Steps
    pure: StepTally | None = None
    mixed: StepTally | None = None
    number: int = 0
    wanted: int | None = None


def blocks_of(periods: Sequence[Steps]) -> list[Block]:
    """Blocks of the periods between polls of a vLLM that serves whatever traffic there is.

    The periods are in chronological order.
    """
    rounds = {id(one): place * _ROUNDS // len(periods) for place, one in enumerate(periods)}
    groups: dict[int, list[Steps]] = defaultdict(list)
    for one in periods:
        groups[round(log2(one.running))].append(one)

    blocks = []
    for group in groups.values():
        if len(group) < _SUPPORT:
            continue
        size = ceil(len(group) / _BLOCKS)
        for start in range(0, len(group), size):
            part = group[start : start + size]
            blocks.append(Block(sum_steps(*part), number=rounds[id(part[0])]))
    return blocks


def fit(blocks: Sequence[Block], machine_load: float | None = None) -> PlainStepTimes | None:
    """The times that reproduce the blocks; None if they do not determine any.

    ``machine_load``: see ``PlainStepTimes``.
    """
    groups: dict[float, list[Block]] = defaultdict(list)
    for block in blocks:
        groups[block.wanted or 2.0 ** round(log2(block.steps.running))].append(block)
    chunk_tokens = _chunk(blocks)
    enough = [groups[key] for key in sorted(groups) if len(groups[key]) >= _FEWEST]
    designs = [_Design.of(group, chunk_tokens) for group in enough]
    if any(block.wanted is None for block in blocks):
        designs = _with_one_prefill(designs, enough)

    loads: list[_Load] = []
    for design, group in zip(designs, enough, strict=True):
        load = _Load.of(group, design)
        if load is not None and (not loads or load.running > loads[-1].running):
            loads.append(load)
    if not loads:
        return None

    times = replace(_together(loads, blocks), chunk_tokens=chunk_tokens)
    drift = hypot(_drift(times, blocks), _BUSY_MACHINE * (machine_load or 0.0))
    times = replace(times, drift=min(drift, 1.0), machine_load=machine_load)
    # Least squares may give an impossible time, such as one below 0.
    return times if times.problem() is None else None


@dataclass(frozen=True, slots=True)
class _Measured:
    """A value and its standard error; ``error`` is infinite where one cannot be stated."""

    value: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What is known at one load; ``slope`` and ``prefill`` are None or empty if they are not."""

    running: float
    context: float | None
    contexts: tuple[float, float] | None  # the shortest and the longest
    seconds: _Measured
    slope: _Measured | None
    prefill: Mapping[float, _Measured]  # by tokens
    first_token_seconds: float | None

    @classmethod
    def of(cls, blocks: Sequence[Block], design: "_Design") -> "_Load | None":
        total = sum_steps(*(block.steps for block in blocks))
        fitted = design.fitted(blocks)
        if fitted is None or fitted[_LEVEL] <= 0:
            return None

        errors = _jackknife(blocks, design.fitted, fitted)
        values = {
            name: _Measured(value, errors[name]) for name, value in fitted.items() if name in errors
        }
        is_timed = min(total.first_tokens, total.first_token_seconds) > 0
        return cls(
            running=_mean_running(blocks),
            context=design.context,
            contexts=design.contexts,
            seconds=values[_LEVEL],
            slope=values.get(_SLOPE),
            prefill=design.known_prefill(values),
            first_token_seconds=(
                total.first_token_seconds / total.first_tokens if is_timed else None
            ),
        )


_LEVEL: Final = "level"
_SLOPE: Final = "slope"


def _mean_running(blocks: Sequence[Block]) -> float:
    """The load of the steps whose time is known without prefill, else of all."""
    pure = [block.pure for block in blocks if block.pure is not None and block.pure.steps]
    if pure:
        return sum(one.decodes for one in pure) / sum(one.steps for one in pure)
    steps = [block.steps for block in blocks]
    return sum(one.running * one.decode_steps for one in steps) / sum_steps(*steps).decode_steps


@dataclass(frozen=True, slots=True)
class _Row:
    """One equation: the mean time of ``weight`` steps, and how each unknown contributes to it."""

    seconds: float
    parts: Mapping[str, float]
    weight: float


@dataclass(frozen=True, slots=True)
class _Design:
    """The unknowns at one load, and the equations for them.

    A step of mean context c that prefills nothing takes level + slope · (c - ``context``). Prefill
    adds a value at each of ``sizes`` (tokens), and a part of them in between.
    """

    context: float | None
    contexts: tuple[float, float] | None
    sizes: tuple[float, ...]
    chunk_tokens: float | None
    each: _Measured | None = None  # if known, what a token of prefill adds

    @classmethod
    def of(cls, blocks: Sequence[Block], chunk_tokens: float | None) -> "_Design":
        known = [block.steps for block in blocks if block.steps.context_steps]
        total = sum_steps(*known) if known else None
        contexts = sorted(one.context or 0.0 for one in known)
        return cls(
            context=total.context if total is not None else None,
            contexts=(contexts[0], contexts[-1]) if contexts else None,
            sizes=_sizes([prefill(block.steps, chunk_tokens) for block in blocks]),
            chunk_tokens=chunk_tokens,
        )

    @property
    def has_slope(self) -> bool:
        """Whether the contexts differ enough."""
        return self.contexts is not None and self.contexts[1] > CONTEXT_BEYOND * self.contexts[0]

    def fitted(self, blocks: Sequence[Block]) -> dict[str, float] | None:
        """The unknowns by name; those that the blocks do not tell apart are missing."""
        names = [_LEVEL, *([_SLOPE] if self.has_slope else [])]
        if self.each is not None:
            return self._solved(blocks, names, None)
        names += map(str, reversed(self.sizes))
        found = self._solved(blocks, names, None)
        # Where prefill is hidden follows from the values, and they from where it is hidden.
        if found is not None and all(str(size) in found for size in self.sizes[:2]) and self.sizes:
            hidden = knee(self.sizes, [found.get(str(size), 0.0) for size in self.sizes])
            found = self._solved(blocks, names, hidden)
        return found

    def _solved(
        self, blocks: Sequence[Block], names: Sequence[str], hidden: float | None
    ) -> dict[str, float] | None:
        rows = [row for block in blocks for row in self._rows(block, hidden)]
        return _least_squares(rows, names)

    def _rows(self, block: Block, hidden: float | None) -> Iterator[_Row]:
        steps, pure = block.steps, block.pure
        work = prefill(steps, self.chunk_tokens)
        known = 0.0 if self.each is None else self.each.value * work.tokens * work.mixed
        yield _Row(
            seconds=(steps.engine_seconds - known) / work.steps,
            parts=self._step(steps.context) | self._prefill(work, hidden),
            weight=work.steps,
        )
        if pure is not None and pure.steps and pure.decodes:
            yield _Row(
                seconds=pure.seconds / pure.steps,
                parts=self._step(pure.context_tokens / pure.decodes),
                weight=pure.steps,
            )
        elif steps.running <= _ONE_AT_A_TIME:  # it never decodes beside a prefill
            yield _Row(
                seconds=steps.step_seconds,
                parts=self._step(steps.context),
                weight=steps.decode_steps,
            )

    def known_prefill(self, values: Mapping[str, _Measured]) -> dict[float, _Measured]:
        """What prefill adds at each of ``sizes``, as far as it is known."""
        if self.each is not None:
            return {
                size: _Measured(self.each.value * size, self.each.error * size)
                for size in self.sizes
            }
        return {
            size: _Measured(max(values[str(size)].value, 0.0), values[str(size)].error)
            for size in self.sizes
            if str(size) in values
        }

    def _step(self, context: float | None) -> dict[str, float]:
        parts = {_LEVEL: 1.0}
        if self.has_slope and context is not None and self.context is not None:
            parts[_SLOPE] = context - self.context
        return parts

    def _prefill(self, work: Prefill, hidden: float | None) -> dict[str, float]:
        """How the values at ``sizes`` contribute to a mean step."""
        if self.each is not None:
            return {}
        share = work.mixed / work.steps
        weights = prefill_weights(work.tokens, self.sizes, hidden)
        return {str(self.sizes[place]): share * weight for place, weight in weights.items()}


def _with_one_prefill(
    designs: Sequence[_Design], groups: Sequence[Sequence[Block]]
) -> list[_Design]:
    """The designs with one time for a token of prefill, from all loads together.

    Traffic that is only watched hardly varies at one load, so each by itself would tell little.
    """
    found = []
    for design, group in zip(designs, groups, strict=True):
        tokens = _mean_tokens([prefill(block.steps, design.chunk_tokens) for block in group])
        single = replace(design, sizes=(tokens,) if tokens else ())
        values = single.fitted(group) or {}
        errors = _jackknife(group, single.fitted, values)
        if tokens and errors.get(str(tokens)):
            found.append((values[str(tokens)] / tokens, errors[str(tokens)] / tokens))

    weight = sum(1 / error**2 for _, error in found)
    if not weight:
        return [replace(design, sizes=()) for design in designs]
    mean = sum(value / error**2 for value, error in found) / weight
    each = _Measured(max(mean, 0.0), sqrt(1 / weight))
    return [replace(design, each=each, sizes=(float(MIXED),)) for design in designs]


def _sizes(works: Sequence[Prefill]) -> tuple[float, ...]:
    """The numbers of tokens at which to measure prefill: one for each length of the prompts."""
    groups: list[list[Prefill]] = []
    for work in sorted(works, key=lambda one: one.tokens):
        if work.tokens < MIXED:
            continue
        if groups and (len(groups) == _MOST_SIZES or work.tokens <= 2 * groups[-1][0].tokens):
            groups[-1].append(work)
        else:
            groups.append([work])
    return tuple(map(_mean_tokens, groups))


def _mean_tokens(works: Sequence[Prefill]) -> float:
    mixed = sum(work.mixed for work in works)
    if not mixed:
        return 0.0
    return round(sum(work.tokens * work.mixed for work in works) / mixed, 1)


def _least_squares(rows: Sequence[_Row], names: Sequence[str]) -> dict[str, float] | None:
    """The unknowns of the weighted equations, without those that others explain as well.

    A name that comes earlier is kept. None if nothing can be told.
    """
    products = {
        (one, other): sum(
            row.weight * row.parts.get(one, 0.0) * row.parts.get(other, 0.0) for row in rows
        )
        for one in names
        for other in names
    }
    right = {
        name: sum(row.weight * row.parts.get(name, 0.0) * row.seconds for row in rows)
        for name in names
    }

    # Gaussian elimination, name by name; a pivot is what earlier names leave of its square.
    left = dict(products)
    pivots = []
    for name in names:
        if left[name, name] <= _DISTINCT * products[name, name]:
            continue
        pivots.append(name)
        for other in names:
            if other in pivots:
                continue
            factor = left[other, name] / left[name, name]
            right[other] -= factor * right[name]
            for column in names:
                left[other, column] -= factor * left[name, column]

    found: dict[str, float] = {}
    for name in reversed(pivots):
        known = sum(left[name, other] * value for other, value in found.items())
        found[name] = (right[name] - known) / left[name, name]
    return found if _LEVEL in found else None


def _jackknife(
    blocks: Sequence[Block],
    estimate: Callable[[Sequence[Block]], Mapping[str, float] | None],
    whole: Mapping[str, float],
) -> dict[str, float]:
    """The standard error of each value, from how it changes when each block is left out.

    Values that depend on a single block are missing.
    """
    others = [
        estimate([*blocks[:place], *blocks[place + 1 :]]) or {} for place in range(len(blocks))
    ]
    errors = {}
    for name in whole:
        values = [other[name] for other in others if name in other]
        if len(values) < len(blocks):
            continue
        mean = sum(values) / len(values)
        spread = sum((value - mean) ** 2 for value in values)
        errors[name] = sqrt(spread * (len(values) - 1) / len(values))
    if _LEVEL in whole and _LEVEL not in errors:
        errors[_LEVEL] = whole[_LEVEL]
    return errors


def _together(loads: Sequence[_Load], blocks: Sequence[Block]) -> PlainStepTimes:
    size = len(loads)
    first = [load.first_token_seconds for load in loads]
    times = PlainStepTimes(
        running=tuple(load.running for load in loads),
        seconds=tuple(load.seconds.value for load in loads),
        errors=tuple(load.seconds.error for load in loads),
        deviations=tuple(
            tuple(load.seconds.error if place == column else 0.0 for column in range(size))
            for place, load in enumerate(loads)
        ),
        prompt_share=sum_steps(*(block.steps for block in blocks)).prompt_share,
        first_token_seconds=tuple(one for one in first if one is not None) if all(first) else (),
    )
    return _with_prefill(_with_contexts(times, loads), loads)


def _with_contexts(times: PlainStepTimes, loads: Sequence[_Load]) -> PlainStepTimes:
    contexts = [load.context for load in loads if load.context is not None]
    ranges = [load.contexts for load in loads if load.contexts is not None]
    if len(contexts) < len(loads) or len(ranges) < len(loads):
        return times

    times = replace(times, contexts=tuple(contexts), context_ranges=tuple(ranges))
    known = [(load.running, load.slope) for load in loads if load.slope is not None]
    if not known:
        return times

    widest = max(ranges, key=lambda found: found[1])
    slopes = [_slope(load, known) for load in loads]
    return replace(
        times,
        slopes=tuple(slope.value for slope in slopes),
        slope_errors=tuple(slope.error for slope in slopes),
        context_ranges=tuple(
            found if load.slope is not None else (found[0], max(found[1], widest[1]))
            for found, load in zip(ranges, loads, strict=True)
        ),
    )


def _slope(load: _Load, known: Sequence[tuple[float, _Measured]]) -> _Measured:
    """A load's own slope, or that of the nearest in proportion to the requests.

    ``known`` has loads and their slopes.
    """
    if load.slope is not None:
        return load.slope
    running, slope = min(known, key=lambda other: abs(log2(other[0] / load.running)))
    factor = load.running / running
    return _Measured(
        slope.value * factor, hypot(slope.error * factor, _SCALED * slope.value * factor)
    )


def _with_prefill(times: PlainStepTimes, loads: Sequence[_Load]) -> PlainStepTimes:
    known = [load for load in loads if load.prefill]
    if not known:
        return times

    rows = []
    for load in loads:
        nearest = min(known, key=lambda other: abs(log2(other.running / load.running)))
        widened = 0.0 if nearest is load else _SCALED
        rows.append(
            [
                (size, found.value, hypot(found.error, widened * found.value))
                for size, found in sorted(nearest.prefill.items())
            ]
        )
    return replace(
        times,
        prefill_tokens=tuple(tuple(size for size, _, _ in row) for row in rows),
        prefill_seconds=tuple(tuple(value for _, value, _ in row) for row in rows),
        prefill_errors=tuple(tuple(error for _, _, error in row) for row in rows),
    )


def _chunk(blocks: Sequence[Block]) -> float | None:
    """The most tokens that a step prefills, as far as prompts took several steps; else None."""
    chunks = []
    for block in blocks:
        mixed, steps = block.mixed, block.steps
        if mixed is None or not mixed.steps or not steps.first_tokens:
            continue
        prompt = steps.prompt_tokens / steps.first_tokens
        parts = round(prompt / (mixed.prefill_tokens / mixed.steps))
        if parts > 1:
            chunks.append(prompt / parts)
    return max(chunks, default=None)


def _drift(times: PlainStepTimes, blocks: Sequence[Block]) -> float:
    """The relative error that all times share: half of how far the rounds differ.

    Of three rounds, the mean's standard error is hardly known, and this is about twice as much.
    """
    ratios = []
    for _, part in groupby(sorted(blocks, key=lambda block: block.number), lambda one: one.number):
        actual = 0.0
        expected = 0.0
        for block in part:
            plain = plain_token(times, block.steps)
            if plain is not None:
                actual += block.steps.request_seconds
                expected += block.steps.generated * plain.seconds
        if expected:
            ratios.append(actual / expected)
    return (max(ratios) - min(ratios)) / 2 if ratios else 0.0
