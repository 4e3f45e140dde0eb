"""Plain step times from what an engine without speculation did (docs/speedup.md).

At each load, least squares give the step that prefills nothing, how it grows with the context, and
what prefill adds.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil, hypot, log2, sqrt
from typing import Final

from sidecar.analysis.speed.least_squares import Equation, Measured, jackknife, least_squares
from sidecar.analysis.speed.mixed_steps import (
    MixedSteps,
    PrefillLaw,
    PrefillTimes,
    prefill_law,
    prefill_times,
)
from sidecar.analysis.speed.plain import (
    CONTEXT_BEYOND,
    MIXED,
    PlainWork,
    knee,
    plain_token,
    plain_work,
    prefill_time,
    prefill_weights,
    step_time,
)
from sidecar.analysis.speed.steps import Steps, sum_steps
from sidecar.requests.messages import StepTally
from sidecar.settings.baselines import PlainStepTimes

_SUPPORT: Final = 6  # minimum periods per load
_BLOCKS: Final = 12  # maximum blocks of adjacent periods per load
_FEWEST: Final = 4  # minimum blocks per load
_ROUNDS: Final = 3  # into which a measurement without rounds is divided
_MOST_SIZES: Final = 4
_ONE_AT_A_TIME: Final = 1.05
# Relative errors of what is taken from another load: a slope, which grows in proportion to the
# requests, and a prefill's time.
_SCALED: Final = 0.25
_TURNS: Final = 3
_SEVERAL: Final = 1.5  # steps, from which on a prompt does not fit into one
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

    @property
    def is_counted(self) -> bool:
        """Whether the plug-in counted all its steps in which requests decode."""
        return self.pure is not None or self.mixed is not None

    @property
    def attended(self) -> float:
        """How many tokens a token of a prompt attends to, on average."""
        steps = self.steps
        if not steps.first_tokens:
            return 0.0
        cached = steps.cached_tokens + steps.prompt_tokens / 2
        return cached / steps.first_tokens


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
    if any(block.mixed is not None for block in blocks):
        times = _counted(enough, chunk_tokens)
    else:
        times = _estimated(enough, chunk_tokens)

    if times is None:
        return None

    drift = hypot(_drift(times, blocks), _BUSY_MACHINE * (machine_load or 0.0))
    times = replace(times, drift=min(drift, 1.0), machine_load=machine_load)
    # Least squares may give an impossible time, such as one below 0.
    return times if times.problem() is None else None


def _estimated(
    groups: Sequence[Sequence[Block]], chunk_tokens: float | None
) -> PlainStepTimes | None:
    """From all steps at a load together, some of which prefill."""
    designs = [_Design.of(group, chunk_tokens) for group in groups]
    if any(block.wanted is None for group in groups for block in group):
        designs = _with_one_prefill(designs, groups)
    loads = _loads(groups, designs)
    return _with_prefill(_together(loads, groups, chunk_tokens), loads) if loads else None


def _counted(
    groups: Sequence[Sequence[Block]], chunk_tokens: float | None
) -> PlainStepTimes | None:
    """From the steps that prefill next to nothing, and from the others.

    Either needs the other's times: the first may prefill up to ``MIXED`` tokens.
    """
    times: PlainStepTimes | None = None
    law: PrefillLaw | None = None
    for _ in range(_TURNS):
        designs = [_Design.counted(group, law or PrefillLaw(0.0)) for group in groups]
        loads = _loads(groups, designs)
        if not loads:
            return None
        times = _together(loads, groups, chunk_tokens)
        found = [one for group in groups for one in _mixed_steps(group, times)]
        law = prefill_law(found)
        prefill = prefill_times(found, times.running)
        if prefill is not None:
            times = _with_law(times, prefill)

    return times


def _loads(groups: Sequence[Sequence[Block]], designs: Sequence["_Design"]) -> list["_Load"]:
    loads: list[_Load] = []
    for design, group in zip(designs, groups, strict=True):
        load = _Load.of(group, design)
        if load is not None and (not loads or load.running > loads[-1].running):
            loads.append(load)
    return loads


def _mixed_steps(blocks: Sequence[Block], times: PlainStepTimes) -> Iterator[MixedSteps]:
    """What prefill added to the steps of each block, by the times of steps without it."""
    for block in blocks:
        mixed = block.mixed
        if mixed is None or not mixed.steps or not mixed.decodes:
            continue

        decodes = mixed.decodes / mixed.steps
        context = mixed.context_tokens / mixed.decodes if mixed.context_tokens else None
        seconds = mixed.seconds / mixed.steps
        yield MixedSteps(
            seconds=seconds - step_time(times, decodes, context).seconds,
            decodes=decodes,
            tokens=mixed.prefill_tokens / mixed.steps,
            context=block.attended,
            weight=mixed.steps / seconds**2,
        )


def _with_law(times: PlainStepTimes, prefill: PrefillTimes) -> PlainStepTimes:
    rows = [sorted(row.items()) for row in prefill.by_load]
    return replace(
        times,
        prefill_tokens=tuple(tuple(tokens for tokens, _ in row) for row in rows),
        prefill_seconds=tuple(tuple(found.value for _, found in row) for row in rows),
        prefill_errors=tuple(tuple(found.error for _, found in row) for row in rows),
        attention_seconds=prefill.attention.value,
        attention_error=prefill.attention.error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What is known at one load; ``slope`` and ``prefill`` are None or empty if they are not."""

    running: float
    context: float | None
    contexts: tuple[float, float] | None  # the shortest and the longest
    seconds: Measured
    slope: Measured | None
    prefill: Mapping[float, Measured]  # by tokens
    first_token_seconds: float | None

    @classmethod
    def of(cls, blocks: Sequence[Block], design: "_Design") -> "_Load | None":
        total = sum_steps(*(block.steps for block in blocks))
        fitted = design.fitted(blocks)
        if fitted.get(_LEVEL, 0.0) <= 0:
            return None

        errors = jackknife(blocks, design.fitted, fitted)
        errors.setdefault(_LEVEL, fitted[_LEVEL])
        values = {
            name: Measured(value, errors[name]) for name, value in fitted.items() if name in errors
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
    return sum(one.decoding * one.decode_steps for one in steps) / sum_steps(*steps).decode_steps


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
    each: Measured | None = None  # if known, what a token of prefill adds
    law: PrefillLaw | None = None  # if known, what prefill adds in steps that the plug-in counted

    @classmethod
    def of(cls, blocks: Sequence[Block], chunk_tokens: float | None) -> "_Design":
        """For all steps of the blocks."""
        known = [block.steps for block in blocks if block.steps.context_steps]
        total = sum_steps(*known) if known else None
        contexts = sorted(one.context or 0.0 for one in known)
        return cls(
            context=total.context if total is not None else None,
            contexts=(contexts[0], contexts[-1]) if contexts else None,
            sizes=_sizes([plain_work(block.steps, chunk_tokens) for block in blocks]),
            chunk_tokens=chunk_tokens,
        )

    @classmethod
    def counted(cls, blocks: Sequence[Block], law: PrefillLaw) -> "_Design":
        """For the steps that the plug-in counted as without prefill."""
        known = [
            (block.pure.context_tokens / block.pure.decodes, _weight(block.pure))
            for block in blocks
            if block.pure is not None and block.pure.decodes
        ]

        contexts = sorted(context for context, _ in known)
        # Weighted as in the equations, so that the level there and the slope are independent.
        total = sum(weight for _, weight in known)
        mean = sum(context * weight for context, weight in known) / total if total else None

        return cls(
            context=mean,
            contexts=(contexts[0], contexts[-1]) if contexts else None,
            sizes=(),
            chunk_tokens=None,
            law=law,
        )

    @property
    def has_slope(self) -> bool:
        """Whether the contexts differ enough."""
        return self.contexts is not None and self.contexts[1] > CONTEXT_BEYOND * self.contexts[0]

    def fitted(self, blocks: Sequence[Block]) -> dict[str, float]:
        """The unknowns by name; those that the blocks do not tell apart are missing."""
        names = [_LEVEL, *([_SLOPE] if self.has_slope else [])]
        if self.each is not None or self.law is not None:
            return self._solved(blocks, names, None)

        names += map(str, reversed(self.sizes))
        found = self._solved(blocks, names, None)
        # Where prefill is hidden follows from the values, and they from where it is hidden.
        if self.sizes and all(str(size) in found for size in self.sizes[:2]):
            hidden = knee(self.sizes, [found.get(str(size), 0.0) for size in self.sizes])
            found = self._solved(blocks, names, hidden)

        return found

    def _solved(
        self, blocks: Sequence[Block], names: Sequence[str], hidden: float | None
    ) -> dict[str, float]:
        rows = [row for block in blocks for row in self._rows(block, hidden)]
        return least_squares(rows, names)

    def _rows(self, block: Block, hidden: float | None) -> Iterator[Equation]:
        steps = block.steps
        if self.law is None:
            yield self._all_steps(steps, hidden)

        if block.pure is not None and block.pure.steps and block.pure.decodes:
            yield self._pure_steps(block.pure)
        elif not block.is_counted and steps.running <= _ONE_AT_A_TIME:
            # It never decodes beside a prefill.
            yield Equation(
                seconds=steps.step_seconds,
                parts=self._step(steps.context),
                weight=steps.decode_steps,
            )

    def _all_steps(self, steps: Steps, hidden: float | None) -> Equation:
        work = plain_work(steps, self.chunk_tokens)
        known = 0.0 if self.each is None else self.each.value * work.tokens * work.mixed
        return Equation(
            seconds=(steps.engine_seconds - known) / work.steps,
            parts=self._step(steps.context) | self._prefill(work, hidden),
            weight=work.steps,
        )

    def _pure_steps(self, pure: StepTally) -> Equation:
        """They may prefill a few tokens."""
        tokens = pure.prefill_tokens / pure.steps
        few = self.law.seconds(pure.decodes / pure.steps, tokens) if self.law is not None else 0.0
        return Equation(
            seconds=pure.seconds / pure.steps - few,
            parts=self._step(pure.context_tokens / pure.decodes),
            weight=pure.steps if self.law is None else _weight(pure),
        )

    def known_prefill(self, values: Mapping[str, Measured]) -> dict[float, Measured]:
        """What prefill adds at each of ``sizes``, as far as it is known."""
        if self.each is not None:
            return {
                size: Measured(self.each.value * size, self.each.error * size)
                for size in self.sizes
            }

        return {
            size: Measured(max(values[str(size)].value, 0.0), values[str(size)].error)
            for size in self.sizes
            if str(size) in values
        }

    def _step(self, context: float | None) -> dict[str, float]:
        parts = {_LEVEL: 1.0}
        if self.has_slope and context is not None and self.context is not None:
            parts[_SLOPE] = context - self.context
        return parts

    def _prefill(self, work: PlainWork, hidden: float | None) -> dict[str, float]:
        """How the values at ``sizes`` contribute to a mean step."""
        if self.each is not None:
            return {}
        share = work.mixed / work.steps
        weights = prefill_weights(work.tokens, self.sizes, hidden)
        return {str(self.sizes[place]): share * weight for place, weight in weights.items()}


def _weight(pure: StepTally) -> float:
    """Of its mean step: what is off is off in proportion to the time."""
    return pure.steps * (pure.steps / pure.seconds) ** 2 if pure.seconds else 0.0


def _with_one_prefill(
    designs: Sequence[_Design], groups: Sequence[Sequence[Block]]
) -> list[_Design]:
    """The designs with one time for a token of prefill, from all loads together.

    Traffic that is only watched hardly varies at one load, so each by itself would tell little.
    """
    found = []
    for design, group in zip(designs, groups, strict=True):
        tokens = _mean_tokens([plain_work(block.steps, design.chunk_tokens) for block in group])
        single = replace(design, sizes=(tokens,) if tokens else ())
        values = single.fitted(group)
        errors = jackknife(group, single.fitted, values)
        if tokens and errors.get(str(tokens)):
            found.append((values[str(tokens)] / tokens, errors[str(tokens)] / tokens))

    weight = sum(1 / error**2 for _, error in found)
    if not weight:
        return [replace(design, sizes=()) for design in designs]

    mean = sum(value / error**2 for value, error in found) / weight
    each = Measured(max(mean, 0.0), sqrt(1 / weight))
    return [replace(design, each=each, sizes=(float(MIXED),)) for design in designs]


def _sizes(works: Sequence[PlainWork]) -> tuple[float, ...]:
    """The numbers of tokens at which to measure prefill: one for each length of the prompts."""
    groups: list[list[PlainWork]] = []
    for work in sorted(works, key=lambda one: one.tokens):
        if work.tokens < MIXED:
            continue
        if groups and (len(groups) == _MOST_SIZES or work.tokens <= 2 * groups[-1][0].tokens):
            groups[-1].append(work)
        else:
            groups.append([work])
    return tuple(map(_mean_tokens, groups))


def _mean_tokens(works: Sequence[PlainWork]) -> float:
    mixed = sum(work.mixed for work in works)
    if not mixed:
        return 0.0
    return round(sum(work.tokens * work.mixed for work in works) / mixed, 1)


def _together(
    loads: Sequence[_Load], groups: Sequence[Sequence[Block]], chunk_tokens: float | None
) -> PlainStepTimes:
    size = len(loads)
    total = sum_steps(*(block.steps for group in groups for block in group))
    first = [load.first_token_seconds for load in loads]

    times = PlainStepTimes(
        running=tuple(load.running for load in loads),
        seconds=tuple(load.seconds.value for load in loads),
        errors=tuple(load.seconds.error for load in loads),
        deviations=tuple(
            tuple(load.seconds.error if place == column else 0.0 for column in range(size))
            for place, load in enumerate(loads)
        ),
        chunk_tokens=chunk_tokens,
        prompt_share=total.prompt_share,
        first_token_seconds=tuple(one for one in first if one is not None) if all(first) else (),
    )

    return _with_contexts(times, loads)


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


def _slope(load: _Load, known: Sequence[tuple[float, Measured]]) -> Measured:
    """A load's own slope, or that of the nearest in proportion to the requests.

    ``known`` has loads and their slopes.
    """
    if load.slope is not None:
        return load.slope
    running, slope = min(known, key=lambda other: abs(log2(other[0] / load.running)))
    factor = load.running / running
    return Measured(
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
        mixed = block.mixed
        steps = block.steps
        if mixed is None or not mixed.steps or not steps.first_tokens:
            continue
        each = mixed.prefill_tokens / mixed.steps
        if steps.prompt_tokens / steps.first_tokens > _SEVERAL * each:
            chunks.append(each)

    return max(chunks, default=None)


def _drift(times: PlainStepTimes, blocks: Sequence[Block]) -> float:
    """The relative error that all times share: half of how far the rounds differ.

    Of three rounds, the mean's standard error is hardly known, and this is about twice as much.
    """
    ratios = []
    for _, part in groupby(sorted(blocks, key=lambda block: block.number), lambda one: one.number):
        pairs = [pair for block in part for pair in _measured_and_expected(times, block)]
        actual = sum(seconds for seconds, _ in pairs)
        expected = sum(seconds for _, seconds in pairs)
        if expected:
            ratios.append(actual / expected)
    return (max(ratios) - min(ratios)) / 2 if ratios else 0.0


def _measured_and_expected(times: PlainStepTimes, block: Block) -> Iterator[tuple[float, float]]:
    """The seconds that parts of a block took, and should have taken."""
    if not block.is_counted:
        plain = plain_token(times, block.steps)
        if plain is not None:
            yield block.steps.request_seconds, block.steps.generated * plain.seconds
        return

    for tally in (block.pure, block.mixed):
        if tally is not None and tally.context_tokens:
            decodes = tally.decodes / tally.steps
            work = PlainWork(
                steps=tally.steps,
                at_once=decodes,
                decodes=decodes,
                mixed=tally.steps,
                tokens=tally.prefill_tokens / tally.steps,
                context=block.attended,
            )
            step = step_time(times, decodes, tally.context_tokens / tally.decodes)
            each = step.seconds + prefill_time(times, work).seconds
            yield tally.seconds, tally.steps * each
