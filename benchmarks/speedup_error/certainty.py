"""How certain a loss should be: how soon a true one is paged for, and how often a false one.

A loss begins so many standard errors below the threshold, and pages after so many minutes of it.
Both are varied here over the same pods. A plain time that is known exactly is in proportion to the
speedup, and so is the error: one simulated day is a day at any true speedup.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import inf
from statistics import fmean
from typing import Final
from unittest.mock import patch

from benchmarks.calibration.rates import in_parallel, rate
from benchmarks.speedup_error.pods import (
    BEFORE,
    FALLS_AT,
    LOSS,
    MINUTE,
    OF_MINUTES,
    PAGES_AFTER,
    SOON,
    Pod,
    Seen,
    judged,
)
from benchmarks.speedup_error.traffic import Traffic
from sidecar.analysis import verdict
from sidecar.analysis.judgement import Verdict

ERRORS: Final = (2.0, 2.25, 2.5, 2.75, 3.0)
_ENOUGH: Final = (1, 3, 6, PAGES_AFTER)  # minutes of a loss; 1: it is said
_GAIN: Final = 1.02
_NEAR: Final = 0.95  # a true speedup at which verdicts may change to and fro
_POLL: Final = 30.0
_ANYTHING: Final[Sequence[bool]] = (True,) * len(_ENOUGH)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One pod by one number of errors: whether each number of minutes in ``_ENOUGH`` was reached.

    At 0.90 within 40 minutes, from the start or after a fall; at 1.0 and 1.02 in a day.
    ``changes`` of the verdict a day are at 0.95.
    """

    start: Sequence[bool]
    fall: Sequence[bool]
    even: Sequence[bool]
    gain: Sequence[bool]
    changes: float


def scaled(seen: Iterable[Seen], scale: float) -> Iterator[Seen]:
    """What would be seen if plain decoding took ``scale`` times as long."""
    for one in seen:
        speedup = one.speedup
        if speedup is not None:
            speedup = replace(speedup, ratio=scale * speedup.ratio, error=scale * speedup.error)
        yield Seen(one.at, speedup)


def _minutes(seen: Iterable[Seen], errors: float, since: float = 0.0) -> Sequence[Verdict | None]:
    """A verdict a minute, if a loss begins so many ``errors`` below the threshold."""
    with patch.object(verdict, "_LOSS_BEGINS", errors):
        return [said for at, said in judged(seen) if at > since and at % MINUTE < _POLL]


def paged_after(said: Sequence[Verdict | None], enough: int) -> float:
    """The minutes until so many of the last ones are a loss; infinite if they never are."""
    loses = [one is Verdict.NET_NEGATIVE for one in said]
    for now in range(1, len(loses) + 1):
        if sum(loses[max(now - OF_MINUTES, 0) : now]) >= enough:
            return now
    return inf


def _within(said: Sequence[Verdict | None], most: float) -> Sequence[bool]:
    return [paged_after(said, enough) <= most for enough in _ENOUGH]


def _outcomes(traffic: Traffic, truth: float, hours: float, seed: int) -> Mapping[float, _Outcome]:
    pod = partial(Pod, traffic=traffic, seed=seed, poll=_POLL)
    day = list(pod(hours=hours, scale=1 / truth).seen(_POLL))
    fall = list(
        pod(
            hours=(FALLS_AT + SOON) / 3600,
            scale=BEFORE / truth,
            changes_at=FALLS_AT,
            scale_then=LOSS / truth,
        ).seen(_POLL)
    )
    start = list(scaled(day[: round(SOON / _POLL)], LOSS))

    found: dict[float, _Outcome] = {}
    even = gain = _ANYTHING
    for errors in ERRORS:
        near = _minutes(scaled(day, _NEAR), errors)
        changes = sum(one is not other for one, other in pairwise(near))
        if even[0]:  # else there is none by more errors either, nor at a higher speedup
            even = _within(_minutes(day, errors), 60 * hours)
            gain = _within(_minutes(scaled(day, _GAIN), errors), 60 * hours) if gain[0] else gain
        found[errors] = _Outcome(
            start=_within(_minutes(start, errors), SOON / MINUTE),
            fall=_within(_minutes(fall, errors, FALLS_AT), SOON / MINUTE),
            even=even,
            gain=gain,
            changes=changes * 24 / hours,
        )
    return found


def by_errors(
    rows: Sequence[tuple[Traffic, float]], seeds: Sequence[int], hours: float, processes: int
) -> None:
    """Prints, for each row and its long-run ratio, and for all of them, what each choice costs."""
    soon = "said, paged after 3 min, 6, 11, within 40 min"
    days = "said, paged after 3 min, 6, 11, on so many days"
    cells = (f"0.9 from the start: {soon}", f"0.9 after 1.3: {soon}", f"1: {days}", f"1.02: {days}")
    print(f"| traffic | errors | {' | '.join(cells)} | 0.95: changes a day |")
    print("|---|---|---|---|---|---|---|")
    together: list[Mapping[float, _Outcome]] = []
    for traffic, truth in rows:
        found = in_parallel(partial(_outcomes, traffic, truth, hours), seeds, processes)
        _print(traffic.name, found)
        together += found
    _print("all", together)


def _print(name: str, found: Sequence[Mapping[float, _Outcome]]) -> None:
    for errors in ERRORS:
        pods = [one[errors] for one in found]
        soon = (_shares([one.start for one in pods]), _shares([one.fall for one in pods]))
        days = (_events([one.even for one in pods]), _events([one.gain for one in pods]))
        changes = fmean(one.changes for one in pods)
        cells = " | ".join((*soon, *days))
        print(f"| {name} | {errors:g} | {cells} | {changes:.1f} |", flush=True)


def _shares(pods: Sequence[Sequence[bool]]) -> str:
    return ", ".join(f"{fmean(one):.0%}" for one in zip(*pods, strict=True))


def _events(pods: Sequence[Sequence[bool]]) -> str:
    found = [rate(one) for one in zip(*pods, strict=True)]
    counts = ", ".join(f"{one.events}" for one in found)
    return f"{counts} of {found[-1].of} (pages at most {found[-1].at_most:.1%})"
