"""Whether speculation pays: plain time per token / actual (docs/speedup.md).

This is computed for an engine, for each temperature and for each context. Actual is the wall time
of all steps, plain the time of as many tokens with the same prompts at the same load and context.
Tokens and seconds are summed over the sliding window and then divided, never averaged.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, inf
from operator import sub
from typing import Final, NamedTuple

from sidecar.analysis.speed.plain import (
    PlainTime,
    added_up,
    beside,
    by_load,
    plain_work,
    step_time,
)
from sidecar.analysis.speed.scatter import RequestSpread, Scatter, Times
from sidecar.analysis.speed.steps import (
    LOAD_EDGES,
    LOAD_LABELS,
    NO_DECODING,
    StepCosts,
    Steps,
    load_label,
    sum_steps,
)
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.windows.growth import HOUR, GrowthWindow, subtract
from sidecar.settings.baselines import PlainStepTimes

_GAP: Final = 1.5  # a window that spans so many times its length has a gap in it
_CERTAIN: Final = 0.015  # relative error by traffic at which a window is long enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """Plain time per token / actual: ``ratio`` ± ``error``, its standard error.

    It is over the last ``seconds``. The error is that of the ratio as the
    one of the same traffic on this machine in the long run (docs/speedup.md). Times are mean
    seconds per token, prefill included. ``doubt`` is how far the ratio may be off because the
    baseline has one context; see ``PlainTime``.
    """

    ratio: float
    error: float
    plain_seconds: float
    actual_seconds: float
    tokens: float
    doubt: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimeTotals:
    """What some tokens took, and would take plain, in seconds; errors as in ``PlainTime``."""

    tokens: float = 0.0
    actual: float = 0.0
    plain: float = 0.0
    requests: float = 0.0
    doubt: float = 0.0
    deviations: tuple[float, ...] = ()

    def __sub__(self, before: "_TimeTotals") -> "_TimeTotals":
        return _TimeTotals(
            tokens=self.tokens - before.tokens,
            actual=self.actual - before.actual,
            plain=self.plain - before.plain,
            requests=self.requests - before.requests,
            doubt=self.doubt - before.doubt,
            deviations=subtract(self.deviations, before.deviations),
        )

    @property
    def reference_error(self) -> float:
        """The standard error of ``plain`` by the baseline's own, which all tokens share."""
        return hypot(*self.deviations, self.doubt / 2)


class MeanTimes(NamedTuple):
    """Mean plain and actual seconds per token, prefill included.

    ``error`` is the relative standard error of plain / actual; None if it is not known.
    """

    plain: float
    actual: float
    error: float | None


class _Window(NamedTuple):
    """What has grown over ``seconds``, and the relative error of its ratio by traffic and noise."""

    seconds: float
    grown: _TimeTotals
    error: float


class SlidingTimes:
    """Plain and actual seconds of the same tokens over a sliding window.

    It is as long as asked for or, while it is too short to be certain, up to an hour.
    """

    def __init__(self, seconds: float, spread: RequestSpread) -> None:
        """``spread`` is how much the requests differ of which these times are."""
        self._lengths = window_lengths(seconds)
        self._totals = _TimeTotals()
        self._shortest = GrowthWindow[_TimeTotals](seconds, sub)
        self._longest = GrowthWindow[_TimeTotals](self._lengths[-1], sub)
        self._scatter = Scatter(spread)
        self._first: float | None = None  # the first poll's time
        self.mark(-inf)

    def add(self, *, tokens: float, plain: PlainTime, actual: float, requests: float) -> None:
        """Adds ``tokens`` that took ``actual`` seconds in total, and ``plain`` each.

        ``requests`` is how many of them were the last, or the first, of a request.
        """
        before = self._totals
        self._totals = _TimeTotals(
            tokens=before.tokens + tokens,
            actual=before.actual + actual,
            plain=before.plain + tokens * plain.seconds,
            requests=before.requests + requests,
            doubt=before.doubt + tokens * plain.doubt,
            deviations=added_up([(1.0, before.deviations), (tokens, plain.deviations)]),
        )

    def mark(self, at: float) -> None:
        """Timestamps everything added so far with ``at``, a poll's time."""
        totals = self._totals
        self._marked = at
        if self._first is None and at > -inf:
            self._first = at
        self._shortest.append(at, totals)
        self._longest.append(at, totals)
        self._scatter.mark(at, Times(totals.plain, totals.actual, totals.requests))

    def read(self) -> Speedup | None:
        """The window that ends now; None if it has too little data."""
        chosen = self._chosen()
        if chosen is None:
            return None

        grown = chosen.grown
        ratio = grown.plain / grown.actual
        return Speedup(
            ratio=ratio,
            error=hypot(ratio * chosen.error, grown.reference_error / grown.actual),
            plain_seconds=grown.plain / grown.tokens,
            actual_seconds=grown.actual / grown.tokens,
            tokens=grown.tokens,
            doubt=grown.doubt / grown.actual,
            seconds=chosen.seconds,
        )

    @property
    def recent(self) -> MeanTimes | None:
        """The mean times over the window that was asked for; None without tokens."""
        grown = self._shortest.growth
        if grown is None or grown.tokens <= 0:
            return None

        error = None
        scatter = self._scatter.error(grown.actual, self._lengths[0])
        if scatter is not None and grown.plain > 0:
            error = hypot(scatter, grown.reference_error / grown.plain)
        return MeanTimes(grown.plain / grown.tokens, grown.actual / grown.tokens, error)

    def _chosen(self) -> _Window | None:
        """The shortest window that is certain enough, or the longest; None if no error is known.

        A clear change shortens all that would begin before it, but for the one that was asked for.
        """
        chosen = None
        changed_at = self._scatter.changed_at
        for seconds in self._lengths:
            window = self._shortest if seconds == self._lengths[0] else self._longest
            begun = window.start(seconds)
            spans_change = chosen is not None and begun.at < changed_at
            if spans_change:
                begun = window.since(changed_at)

            if chosen is not None and -inf < begun.at < self._marked - _GAP * seconds:
                break  # nobody polled for a part of it
            grown = self._totals - begun.totals
            scatter = self._scatter.error(grown.actual, seconds)
            if scatter is not None:
                chosen = _Window(self._span(begun.at), grown, scatter)
            if spans_change or (scatter is not None and scatter <= _CERTAIN):
                break
        return chosen

    def _span(self, begun: float) -> float:
        """The seconds since then, or since the first poll; 0 if the clock was set back."""
        first = self._marked if self._first is None else self._first
        return max(self._marked - max(begun, first), 0.0)


def window_lengths(seconds: float) -> tuple[float, ...]:
    """The window lengths to choose from, shortest first: ``seconds``, doubled up to an hour."""
    lengths = [seconds]
    while 2 * lengths[-1] <= HOUR:
        lengths.append(2 * lengths[-1])
    if lengths[-1] < HOUR:
        lengths.append(HOUR)
    return tuple(lengths)


@dataclass(frozen=True, slots=True)
class Held:
    """A speedup that is withheld by now, and how many seconds ago it was last known."""

    speedup: Speedup
    age: float


class LastKnown:
    """The last speedup that was known, for an hour."""

    def __init__(self) -> None:
        self._last: Speedup | None = None
        self._at = -inf

    def remember(self, speedup: Speedup, at: float) -> None:
        """Takes in a speedup that is known at ``at``, in seconds."""
        self._last = speedup
        self._at = at

    def recall(self, at: float) -> Held | None:
        """What stands in at ``at`` for a speedup that is withheld; None after an hour."""
        if self._last is None or not 0 <= at - self._at <= HOUR:
            return None
        return Held(self._last, at - self._at)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeed:
    """One engine, or all engines of a model together, over the sliding window.

    If ``speedup`` is None, ``withheld`` says why, and ``held`` has the one that was known within
    the hour. ``plain_step_seconds`` is S0, a step that prefills nothing. ``break_even_length`` is
    how many tokens a step must give for speculating to be as fast as plain decoding;
    ``break_even_acceptance`` is the acceptance rate that gives this length, more than 1 if none
    does; all three are None without ``speedup``. ``break_even_error`` is the standard error of that
    rate: at a rate so far from it, the speedup is one of its own standard errors from 1. None if
    too few requests tell.
    """

    steps: Steps | None = None
    speedup: Speedup | None = None
    withheld: Withheld | None = None
    held: Held | None = None
    plain_step_seconds: float | None = None
    break_even_length: float | None = None
    break_even_acceptance: float | None = None
    break_even_error: float | None = None

    @property
    def in_force(self) -> Speedup | None:
        """The speedup that decides: the present one or, while that is withheld, the held one."""
        if self.speedup is None and self.held is not None:
            return self.held.speedup
        return self.speedup

    @property
    def costs(self) -> StepCosts | None:
        """Step times over the window, without prefill.

        None if the plain step time is unknown or nothing was drafted.
        """
        plain = self.plain_step_seconds
        length = self.break_even_length
        if self.steps is None or not plain or not length or not self.steps.drafted:
            return None
        return StepCosts(actual=plain * length, plain=plain, drafted=self.steps.drafted)


_COVERED: Final = 0.8  # share of the tokens whose plain time must be known
_DOUBT: Final = 0.07  # a ratio that may be further off is withheld


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What was decoded while ``running`` requests ran (a label: 1, 2, 3-4, …).

    It counts since the start, a model's since vLLM's start. ``plain_tpot_seconds`` is how long a
    decoding request waits for a step, and so a token, without speculation; None if unknown, as for
    one engine. It is, like the mean times to first token and the tokens per second of one engine,
    of the mean load, context and prompts that there were; without any, it is S0 in the middle of
    the label's loads.
    """

    running: str
    seconds: float = 0.0  # between a request's steps, summed over requests
    steps: float = 0.0  # counted once for each request that decoded in them
    tokens: float = 0.0  # from these steps
    plain_tpot_seconds: float | None = None
    drafted: float = 0.0  # tokens per draft
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    plain_first_token_seconds: float | None = None
    plain_tokens_per_second: float | None = None

    @property
    def tpot_seconds(self) -> float | None:
        """Mean seconds per token after a request's first, over all; None if nothing was decoded."""
        return self.seconds / self.tokens if self.tokens else None

    @property
    def highest(self) -> int | None:
        """The highest number of running requests; None for the last load, which has none."""
        place = LOAD_LABELS.index(self.running)
        return LOAD_EDGES[place] if place < len(LOAD_EDGES) else None


class LoadTotals:
    """What was decoded at each load since the start."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(LOAD_LABELS, NO_DECODING)

    def add(self, steps: Steps) -> None:
        """Adds a period at its mean load."""
        label = load_label(steps.running)
        self._totals[label] = sum_steps(self._totals[label], steps)

    def report(self, curve: PlainStepTimes | None = None) -> tuple[LoadReport, ...]:
        """Every load, with what ``curve`` says of plain decoding there."""
        middles = {} if curve is None else by_load(curve)
        return tuple(
            _load_report(label, total, middles.get(label), curve)
            for label, total in self._totals.items()
        )


def _load_report(
    label: str, total: Steps, middle: float | None, curve: PlainStepTimes | None
) -> LoadReport:
    if not total.decode_steps:
        return LoadReport(label, plain_tpot_seconds=middle)

    plain = beside(curve, total)
    is_timed = min(total.first_tokens, total.first_token_seconds) > 0
    return LoadReport(
        running=label,
        seconds=total.seconds,
        steps=total.decode_steps,
        tokens=total.tokens,
        plain_tpot_seconds=plain.wait_seconds,
        drafted=total.drafted,
        first_token_seconds=total.first_token_seconds / total.first_tokens if is_timed else None,
        tokens_per_second=total.tokens_per_second,
        plain_first_token_seconds=plain.first_token_seconds,
        plain_tokens_per_second=plain.tokens_per_second,
    )


class EngineSpeedWindow:
    """The steps of an engine or a model over a sliding window, with their plain times."""

    def __init__(self, seconds: float, spread: RequestSpread) -> None:
        self._total = NO_DECODING
        self._steps = GrowthWindow(seconds, subtract)
        self._times = SlidingTimes(seconds, spread)
        # tokens whose plain time is unknown, by why
        self._uncovered = dict.fromkeys(Withheld, 0.0)
        self._uncovered_window = GrowthWindow[Mapping[Withheld, float]](seconds, _subtract_each)
        self._last_known = LastKnown()
        self.mark(-inf, is_compared=True)

    def add(self, steps: Steps, plain: PlainTime | Withheld) -> None:
        """Adds what was decoded since the last poll, with its plain time per token if known."""
        self._total = sum_steps(self._total, steps)
        if isinstance(plain, PlainTime):
            self._times.add(
                tokens=steps.generated,
                plain=plain,
                actual=steps.request_seconds,
                requests=steps.first_tokens,
            )
        else:
            self._uncovered[plain] += steps.generated

    def mark(self, at: float, *, is_compared: bool) -> None:
        """Timestamps everything added so far with ``at``, a poll's time.

        ``is_compared``: there is a baseline, so that plain times are known.
        """
        self._steps.append(at, self._total)
        if is_compared:
            self._times.mark(at)
            self._uncovered_window.append(at, dict(self._uncovered))

    def read(
        self, curve: PlainStepTimes | None, missing: Withheld, at: float
    ) -> EngineSpeed | None:
        """The window that ends at ``at``, the last poll; None without steps.

        ``missing`` says why there is no curve.
        """
        grown = self._steps.growth or ()
        # also if a total is so large that, as a double, it no longer grows
        if not grown or min(grown[:4]) <= 0 or Steps(*grown).engine_seconds <= 0:
            return None

        steps = Steps(*grown)
        if curve is None:
            return EngineSpeed(steps=steps, withheld=missing)

        speedup = self._times.read()
        recent = self._times.recent
        withheld = self._withheld(speedup, steps)
        if withheld is not None or speedup is None or recent is None:
            return EngineSpeed(steps=steps, withheld=withheld, held=self._last_known.recall(at))

        self._last_known.remember(speedup, at)
        return _beside_plain(steps, speedup, recent, curve)

    def _withheld(self, speedup: Speedup | None, steps: Steps) -> Withheld | None:
        uncovered = self._uncovered_window.growth or {}
        if sum(uncovered.values()) > (1 - _COVERED) * steps.generated:
            return max(uncovered, key=lambda why: uncovered[why])
        if speedup is None:
            return Withheld.TOO_LITTLE
        return Withheld.CONTEXT if speedup.doubt > _DOUBT else None


def _subtract_each(
    after: Mapping[Withheld, float], before: Mapping[Withheld, float]
) -> dict[Withheld, float]:
    return {why: tokens - before[why] for why, tokens in after.items()}


def _beside_plain(
    steps: Steps, speedup: Speedup, recent: MeanTimes, curve: PlainStepTimes
) -> EngineSpeed:
    """What follows from the times of the sliding window, whose load and context the steps have.

    The speedup may be of a longer one.
    """
    work = plain_work(steps, curve.chunk_tokens)
    plain = step_time(curve, work.decodes, steps.context).seconds
    prefill = max(recent.plain - plain, 0.0)  # per token, the same with speculation
    decoding = max(recent.actual - prefill, 0.0)
    length = steps.tokens_per_step * decoding / plain if plain else None

    drafted = steps.draft_tokens / steps.decode_steps
    acceptance = None
    error = None
    if length is not None and drafted:
        acceptance = max(length - 1, 0.0) / drafted
        if recent.error is not None and length:
            # With such steps, l tokens in each have the speedup (prefill + plain) / (prefill +
            # plain · length / l): where that is 1, it grows by this with l.
            slope = plain / (prefill + plain) / length
            error = recent.error / slope / drafted
    return EngineSpeed(
        steps=steps,
        speedup=speedup,
        plain_step_seconds=plain,
        break_even_length=length,
        break_even_acceptance=acceptance,
        break_even_error=error,
    )


def inexact_baseline(speed: EngineSpeed | None, curve: PlainStepTimes | None) -> float | None:
    """The relative error of the baseline at this load, where that keeps a speedup undecided.

    None where more traffic decides: less than half of the speedup's variance is the baseline's.
    """
    if speed is None or speed.speedup is None or speed.steps is None or curve is None:
        return None

    plain = step_time(curve, speed.steps.running)
    known = plain.error / plain.seconds if plain.seconds else 0.0
    whole = speed.speedup.error / speed.speedup.ratio
    return None if 2 * known**2 < whole**2 else known


CONTEXT_EDGES: Final = (64, 256, 1024, 4096, 16_384, 65_536)  # tokens, inclusive: powers of four
CONTEXT_LABELS: Final = ("0-64", "64-256", "256-1k", "1k-4k", "4k-16k", "16k-64k", "64k+")


def context_label(context: float) -> str:
    """The value of the label ``context`` for a mean number of tokens in the KV cache."""
    return CONTEXT_LABELS[bisect_left(CONTEXT_EDGES, context)]


class ContextSpeed:
    """Plain and actual times over the last hour, by the mean context of the decoding requests."""

    def __init__(self, spread: RequestSpread) -> None:
        self._times = {label: SlidingTimes(HOUR, spread) for label in CONTEXT_LABELS}

    def add(self, steps: Steps, plain: PlainTime) -> None:
        """Adds what an engine decoded since the last poll, with its plain time per token."""
        if steps.context is not None:
            times = self._times[context_label(steps.context)]
            times.add(
                tokens=steps.generated,
                plain=plain,
                actual=steps.request_seconds,
                requests=steps.first_tokens,
            )

    def mark(self, at: float) -> None:
        """Timestamps everything added so far with ``at``, a poll's time."""
        for times in self._times.values():
            times.mark(at)

    def read(self) -> dict[str, Speedup]:
        """The speedup by context, shortest first; contexts with too little data are missing."""
        found = {label: times.read() for label, times in self._times.items()}
        return {
            label: speedup
            for label, speedup in found.items()
            if speedup is not None and speedup.doubt <= _DOUBT
        }
