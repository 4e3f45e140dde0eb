"""Plain decoding: how long the same tokens would have taken without speculation.

It reads a measured baseline: docs/speedup.md has the formulas and their sources.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import hypot, inf, sqrt
from typing import Final

from sidecar.analysis.speed.scatter import Z, student
from sidecar.analysis.speed.steps import LOAD_EDGES, LOAD_LABELS, Steps
from sidecar.analysis.speed.withheld import Withheld
from sidecar.settings.baselines import PlainStepTimes, StepLaw

# factor by which the curve extends past the lowest and highest measured load
_BEYOND: Final = 1.05
# The factor by which it extends past the shortest and the longest measured context.
CONTEXT_BEYOND: Final = 1.5
# As far below the shortest context, in parts of the measured range: a line is safe there.
_BELOW: Final = 0.5
MIXED: Final = 64  # prefill tokens in a step; fewer are hardly noticed
_FEWEST_ROUNDS: Final = 2
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
    if steps.context is None:
        return Withheld.CONTEXT

    low, high = times.context_range
    shortest = min(low / CONTEXT_BEYOND, low - _BELOW * (high - low))
    if not shortest <= steps.context <= high * CONTEXT_BEYOND:
        return Withheld.CONTEXT

    has_few = steps.plain_prompt_tokens <= _FEW * steps.generated
    is_priced = times.prefill_seconds is not None
    return None if is_priced or has_few else Withheld.CONTEXT


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


def step_time(times: PlainStepTimes, running: float, context: float | None = None) -> PlainTime:
    """S0: a step that prefills nothing, at any load and context.

    Without ``context``, it is that of the baseline.
    """
    further = 0.0 if context is None else context - times.context
    parts = shares(running, times.running)

    def seconds(law: StepLaw) -> float:
        levels = _levels(law, further)
        return sum(share * levels[place] for place, share in parts.items())

    time = _by_law(times, seconds)
    if times.context_seconds:
        return time
    # Between no growth at all and growth in proportion to the context.
    half = time.seconds * further / times.context / 2
    return replace(time, seconds=time.seconds + half, doubt=abs(half))


def prefill_time(times: PlainStepTimes, work: PlainWork) -> PlainTime:
    """What prefill adds to a step that has any; 0 where it was not measured."""
    if times.prefill_seconds is None:
        return PlainTime(seconds=0.0)

    filled = work.decodes + work.tokens if times.by_tokens else work.decodes
    before = level_shares(times.running, work.decodes)
    after = level_shares(times.running, filled)

    def seconds(law: StepLaw) -> float:
        levels = _levels(law, -times.context)
        level = sum(share * levels[place] for place, share in after)
        level -= sum(share * levels[place] for place, share in before)
        tokens = beyond(law.hidden_tokens, work.decodes, work.tokens)
        attention = law.attention_seconds * work.tokens * work.context
        return level + (law.prefill_seconds or 0.0) * tokens + attention

    return _by_law(times, seconds)


def beyond(hidden: float, decodes: float, tokens: float) -> float:
    """The tokens of prompts that take time, in a step in which so many requests decode."""
    return max(decodes + tokens - hidden, 0.0) - max(decodes - hidden, 0.0)


def level_shares(running: Sequence[float], filled: float) -> Sequence[tuple[int, float]]:
    """The shares of the loads' levels in a step's, which is no higher than the highest load's."""
    within = min(max(filled, running[0]), running[-1])
    return tuple(shares(within, running).items())


def _levels(law: StepLaw, further: float) -> Sequence[float]:
    """A step without prefill at each load, if its requests hold so many tokens more."""
    if not law.context_seconds:
        return law.seconds
    each = zip(law.seconds, law.context_seconds, strict=True)
    return [seconds + further * more for seconds, more in each]


def _by_law(times: PlainStepTimes, seconds: Callable[[StepLaw], float]) -> PlainTime:
    """A time by the law, with the drift and how each round moves it.

    The errors are those of the jackknife over rounds. These are few, so each is scaled by Student's
    quantile over that of many.
    """
    value = max(seconds(times), 0.0)
    drift = times.drift * value
    rounds = len(times.rounds)
    if rounds < _FEWEST_ROUNDS:
        return PlainTime(seconds=value, deviations=(drift,))

    others = [seconds(law) for law in times.rounds]
    mean = sum(others) / rounds
    scale = sqrt((rounds - 1) / rounds) * student(rounds - 1) / Z
    return PlainTime(
        seconds=value, deviations=(drift, *(scale * (other - mean) for other in others))
    )


def uncertainty(times: PlainStepTimes) -> float:
    """The largest relative standard error of S0 at the loads and contexts measured."""
    steps = [
        step_time(times, load, context) for load in times.running for context in times.context_range
    ]
    return max(step.error / step.seconds if step.seconds else inf for step in steps)


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
