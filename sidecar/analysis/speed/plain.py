"""Plain decoding: how long the same tokens would have taken without speculation.

It reads a measured baseline: docs/speedup.md has the formulas and their sources.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import hypot, sqrt
from typing import Final

from sidecar.analysis.speed.steps import LOAD_EDGES, LOAD_LABELS, Steps
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes

# factor by which the curve extends past the lowest and highest measured load
_BEYOND: Final = 1.05
# The factor by which it extends past the shortest and the longest measured context.
CONTEXT_BEYOND: Final = 1.5
# As far below the shortest context, in parts of the measured range: a line is safe there.
_BELOW: Final = 0.5
MIXED: Final = 64  # prefill tokens in a step; fewer are hardly noticed
# Prompt tokens per generated token up to which prefill is negligible, where its cost is unknown.
_FEW: Final = 0.2
_FULL: Final = 0.5  # of what steps can prefill; above it, requests wait for room for their prompts
_ONE_CHUNK: Final = 0.5  # of a chunk, up to which a prompt is in one step
_DECODING: Final = 0.5  # of the lowest load, that decode while others prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTime:
    """A time in seconds without speculation.

    ``deviations[j]`` is how far one standard deviation of the j-th independent error moves it. The
    errors are common to all times read from one baseline, so they add up as ``seconds`` does: see
    ``added_up``. ``doubt`` is no error of measurement: the time is known only to within it, because
    the baseline has one context.
    """

    seconds: float
    deviations: tuple[float, ...] = ()
    doubt: float = 0.0

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


def summed(terms: Iterable[tuple[float, PlainTime]]) -> PlainTime:
    """The sum of times, each taken ``count`` times."""
    known = list(terms)
    return PlainTime(
        seconds=sum(count * time.seconds for count, time in known),
        deviations=added_up((count, time.deviations) for count, time in known),
        doubt=sum(abs(count) * time.doubt for count, time in known),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainWork:
    """What plain decoding would have done with the same requests, as many at once.

    It takes ``steps`` engine steps, in which ``decodes`` of the ``at_once`` requests decode on
    average. ``mixed`` of the steps prefill as well, ``tokens`` prompt tokens each, which attend to
    ``context`` tokens each.
    """

    steps: float
    at_once: float
    decodes: float
    mixed: float = 0.0
    tokens: float = 0.0
    context: float = 0.0


def plain_work(steps: Steps, chunk_tokens: float | None = None) -> PlainWork:
    """The engine steps that plain decoding would have needed for a period's requests.

    They begin their prompts independently of each other, so a step prefills none with the
    probability (1 - q) ** at_once, where q is a request's share of steps in which it prefills. A
    step prefills at most ``chunk_tokens``, so longer prompts take several, and prompts wait for
    each other.
    """
    if not steps.first_tokens:
        return PlainWork(
            steps=steps.generated / steps.running, at_once=steps.running, decodes=steps.running
        )

    output = steps.generated / steps.first_tokens
    computed = steps.plain_prompt_tokens / steps.first_tokens
    cached = (steps.cached_tokens + steps.dropped_tokens) / steps.first_tokens
    chunks = computed / chunk_tokens if chunk_tokens is not None else 0.0
    at_once = _at_once(steps, chunk_tokens)
    rate = _requests_per_step(at_once, output, chunks)
    engine_steps = steps.first_tokens / rate
    work = PlainWork(steps=engine_steps, at_once=at_once, decodes=rate * (output - 1))
    if not computed:
        return work

    share = min(rate * _prefill_steps(chunks) / at_once, 1.0)
    mixed = max(1 - (1 - share) ** at_once, min(rate * chunks, 1.0))
    return replace(
        work,
        mixed=engine_steps * mixed,
        tokens=computed * rate / mixed,
        context=cached + computed / 2,
    )


def _at_once(steps: Steps, chunk_tokens: float | None) -> float:
    """The requests that the engine had, those too that got nothing from a step.

    These are in the midst of a long prompt or, where steps are full of prompts, wait for it. By
    Little's law: the time that all requests spent there / the time that passed.
    """
    if chunk_tokens is None:
        return steps.running
    seconds = steps.seconds + steps.prefill_seconds
    if steps.plain_prompt_tokens > _FULL * chunk_tokens * steps.engine_steps:
        seconds += steps.queue_seconds
    return max(seconds / steps.engine_seconds, steps.running)


def _requests_per_step(at_once: float, output: float, chunks: float) -> float:
    """How many of ``at_once`` requests a plain step finishes, if each is followed by another.

    Each takes ``output`` - 1 steps, and those of its prefill. These are longer where a step
    prefills at most 1 / ``chunks`` of a prompt, as at a server that serves one after the other: a
    mean wait of rate · chunks² ÷ 2 (1 - rate · chunks) in an M/D/1 queue, of which nobody waits for
    itself. Then at_once = rate · (output - 1 + prefill + wait) is quadratic in the rate.
    """
    alone = output - 1 + _prefill_steps(chunks)
    others = max(1 - 1 / at_once, 0.0)
    middle = alone + at_once * chunks
    product = 2 * alone * chunks - others * chunks**2
    return 2 * at_once / (middle + sqrt(max(middle**2 - 2 * at_once * product, 0.0)))


def _prefill_steps(chunks: float) -> float:
    """The steps of one prompt's prefill; its last chunk is half full on average."""
    return max(1.0, chunks + 0.5) if chunks > _ONE_CHUNK else 1.0


def uncovered(times: PlainStepTimes, steps: Steps) -> Withheld | None:
    """Why the baseline does not tell what these steps would have taken; None if it does."""
    work = plain_work(steps, times.chunk_tokens)
    least = times.running[0] / _BEYOND
    most = times.running[-1] * _BEYOND
    if work.at_once < least or not _DECODING * least <= work.decodes <= most:
        return Withheld.LOAD
    if not times.contexts or steps.context is None:
        return Withheld.CONTEXT

    low, high = context_range(times, work.decodes)
    shortest = min(low / CONTEXT_BEYOND, low - _BELOW * (high - low))
    if not shortest <= steps.context <= high * CONTEXT_BEYOND:
        return Withheld.CONTEXT

    is_priced = bool(times.prefill_tokens) or steps.plain_prompt_tokens <= _FEW * steps.generated
    return None if is_priced else Withheld.CONTEXT


def plain_token(times: PlainStepTimes, steps: Steps) -> PlainTime | None:
    """Plain seconds per token, of a request that takes part in the same steps.

    It includes all prefill, as ``Steps.request_seconds`` does. None beyond what was measured.
    """
    if uncovered(times, steps) is not None:
        return None
    work = plain_work(steps, times.chunk_tokens)
    step = step_time(times, work.decodes, steps.context)
    total = summed([(work.steps, step), (work.mixed, prefill_time(times, work))])
    return summed([(steps.running / steps.generated, total)])


def plain_wait(times: PlainStepTimes, steps: Steps) -> PlainTime | None:
    """Plain seconds from one step to the next, as a decoding request waits for them.

    This is what ``Steps.step_seconds`` would be: a request does not decode while it prefills.
    None beyond what was measured.
    """
    if uncovered(times, steps) is not None:
        return None
    work = plain_work(steps, times.chunk_tokens)
    others = max(1 - 1 / work.at_once, 0.0)
    step = step_time(times, work.decodes, steps.context)
    extra = prefill_time(times, work)
    return summed([(1.0, step), (others * work.mixed / work.steps, extra)])


def covers(times: PlainStepTimes, running: float) -> bool:
    """Whether the load is among those measured, with a tolerance of ``_BEYOND`` at both ends."""
    return times.running[0] / _BEYOND <= running <= times.running[-1] * _BEYOND


def context_range(times: PlainStepTimes, running: float) -> tuple[float, float]:
    """The shortest and the longest context measured at about this load."""
    parts = shares(_within(times, running), times.running)
    ranges = times.context_ranges or tuple((one, one) for one in times.contexts)
    low = sum(share * ranges[knot][0] for knot, share in parts.items())
    high = sum(share * ranges[knot][1] for knot, share in parts.items())
    return low, high


def _within(times: PlainStepTimes, running: float) -> float:
    return min(max(running, times.running[0]), times.running[-1])


def step_time(times: PlainStepTimes, running: float, context: float | None = None) -> PlainTime:
    """S0: a step that prefills nothing, at any load and context.

    Straight segments between the measured loads; the outer ones extend as far as needed. Without
    ``context``, it is that at which each load was measured.
    """
    return summed(
        (share, _at_load(times, knot, context))
        for knot, share in shares(running, times.running).items()
    )


def _at_load(times: PlainStepTimes, knot: int, context: float | None) -> PlainTime:
    seconds = times.seconds[knot]
    own = times.deviations[knot] if times.deviations else (times.errors[knot],)
    width = max(map(len, times.deviations), default=1)
    # One column for the drift, one for each deviation, then one for each load's slope.
    deviations = [times.drift * seconds, *own, *(0.0,) * (width - len(own))]
    if context is None or not times.contexts:
        return PlainTime(seconds=seconds, deviations=tuple(deviations))

    further = context - times.contexts[knot]
    if times.slopes:
        slopes = [0.0] * len(times.running)
        slopes[knot] = further * times.slope_errors[knot]
        return PlainTime(
            seconds=max(seconds + further * times.slopes[knot], 0.0),
            deviations=(*deviations, *slopes),
        )

    # Between no growth at all and growth in proportion to the context.
    half = seconds * (context / times.contexts[knot] - 1) / 2
    return PlainTime(seconds=seconds + half, deviations=tuple(deviations), doubt=abs(half))


def prefill_time(times: PlainStepTimes, work: PlainWork) -> PlainTime:
    """What prefill adds to a step that has any; 0 where it was not measured."""
    if not times.prefill_tokens or not work.tokens:
        return PlainTime(seconds=0.0)
    parts = shares(_within(times, work.decodes), times.running)
    terms = [(share, _prefill_at(times, knot, work.tokens)) for knot, share in parts.items()]
    return summed([*terms, (work.tokens * work.context, _attention(times))])


def _prefill_at(times: PlainStepTimes, knot: int, tokens: float) -> PlainTime:
    sizes = times.prefill_tokens[knot]
    seconds = times.prefill_seconds[knot]
    weights = prefill_weights(tokens, sizes, knee(sizes, seconds))
    value = max(sum(weight * seconds[place] for place, weight in weights.items()), 0.0)
    errors = times.prefill_errors[knot]

    # After the columns of ``_at_load``: one for each load.
    before = 1 + max(map(len, times.deviations), default=1) + len(times.running)
    columns = [0.0] * (before + len(times.running))
    columns[before + knot] = hypot(*(weight * errors[place] for place, weight in weights.items()))
    columns[0] = times.drift * value
    return PlainTime(seconds=value, deviations=tuple(columns))


def _attention(times: PlainStepTimes) -> PlainTime:
    """Of one prompt token, for each token to which it attends."""
    # After the columns of ``_prefill_at``.
    before = 1 + max(map(len, times.deviations), default=1) + 2 * len(times.running)
    columns = [0.0] * before
    columns[0] = times.drift * times.attention_seconds
    return PlainTime(seconds=times.attention_seconds, deviations=(*columns, times.attention_error))


def knee(sizes: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Up to how many tokens prefill is hidden, as on a GPU that waits for its weights meanwhile.

    It is where the line through the first two sizes meets 0; None if that is below ``MIXED``.
    """
    if len(sizes) == 1:
        return None

    low, high, *_ = sizes
    seconds_at_low, seconds_at_high, *_ = seconds
    if seconds_at_high <= seconds_at_low:
        return None

    found = low - seconds_at_low * (high - low) / (seconds_at_high - seconds_at_low)
    return found if found > MIXED else None


def prefill_weights(
    tokens: float, sizes: Sequence[float], hidden: float | None
) -> Mapping[int, float]:
    """The weights of what each of ``sizes`` adds to a step, in what ``tokens`` add.

    Straight segments between the sizes; the last one extends, and so does the first one, downwards
    to ``MIXED`` or to ``hidden``, below which nothing is added. From ``MIXED`` to 0 it falls to 0.
    """
    if not sizes:
        return {}
    if len(sizes) == 1:
        return {0: tokens / sizes[0]}

    low, high, *_ = sizes
    if tokens >= low:
        return shares(tokens, sizes)

    if hidden is not None:
        beyond = max(tokens - hidden, 0.0)
        return {0: beyond / (low - hidden) if beyond else 0.0}

    further = (low - max(tokens, MIXED)) / (high - low)
    part = min(tokens / MIXED, 1.0)
    return {0: part * (1 + further), 1: -part * further}


def by_load(times: PlainStepTimes) -> dict[str, float]:
    """S0 in the middle of each load in ``steps.LOAD_LABELS``; unmeasured loads are missing."""
    *bounded, _ = LOAD_LABELS  # the last load has no upper edge
    seconds = {}
    below = 0
    for label, edge in zip(bounded, LOAD_EDGES, strict=True):
        middle = (below + 1 + edge) / 2
        if covers(times, middle):
            seconds[label] = step_time(times, middle).seconds
        below = edge
    return seconds


@dataclass(frozen=True, slots=True)
class Beside:
    """Plain decoding beside what an engine did at a load; None where it is unknown.

    The seconds that a decoding request waits for a step, the mean seconds to the first token, and
    an engine's tokens per second.
    """

    wait_seconds: float | None = None
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None


def beside(times: PlainStepTimes | None, steps: Steps) -> Beside:
    """Plain decoding under the same load, contexts and prompts."""
    if times is None or (wait := plain_wait(times, steps)) is None:
        return Beside()
    token = plain_token(times, steps)
    speed = steps.running / token.seconds if token is not None and token.seconds else None
    return Beside(wait.seconds, first_token(times, steps.running), speed)


def first_token(times: PlainStepTimes, running: float) -> float | None:
    """The mean time to the first token at a load; None if it was not measured."""
    if not times.first_token_seconds:
        return None
    parts = shares(running, times.running)
    return sum(share * times.first_token_seconds[knot] for knot, share in parts.items())


def shares(value: float, knots: Sequence[float]) -> Mapping[int, float]:
    """The weights of the knots in a curve's value; their sum is 1."""
    if len(knots) == 1:
        return {0: 1.0}
    right = min(max(bisect_right(knots, value), 1), len(knots) - 1)
    share = (value - knots[right - 1]) / (knots[right] - knots[right - 1])
    return {right - 1: 1 - share, right: share}
