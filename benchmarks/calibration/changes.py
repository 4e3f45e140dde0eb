"""``python -m benchmarks.calibration changes``: how often a rate that did not fall pages someone.

Each line is a pod from its first day on: its requests (``requests.py``), the sidecar's verdict at
every poll, and the rules on it (``rules.py``). ``--days`` and ``--falls`` set how many are
simulated of each line, ``--only`` some lines; the seeds of line n are 1000 n, 1000 n + 1, … It ends
with 1 if a line is on the wrong side of its bar by what was seen.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import add, sub
from typing import Final, NamedTuple

from benchmarks.calibration.delays import Delay, options, print_delays
from benchmarks.calibration.rates import in_parallel, most_events, said_of
from benchmarks.calibration.requests import POLL, WINDOW, Ended, Traffic
from benchmarks.calibration.rules import Fired, Rules, Scraped
from sidecar.analysis.certainty.past import Counted, PastWatch
from sidecar.analysis.certainty.side import NOWHERE, Side, alarming, certain_side
from sidecar.analysis.certainty.sums import Sums
from sidecar.settings.groups import Thresholds

_DAY: Final = 86_400.0
_MINUTES: Final = int(_DAY / 60)
_A_MINUTE: Final = int(60 / POLL)  # polls
_LONGEST: Final = 4 * 3600.0  # seconds after which a fall counts as not noticed
_THRESHOLDS: Final = Thresholds()
_LINE: Final = alarming(_THRESHOLDS.acceptance_net_negative)
_SEEDS: Final = 1000  # so that no two lines share one, and all together are independent
_PAGES: Final = 0.01
_WARNINGS: Final = 0.05


class Sidecar:
    """What the sidecar exports of a pod with enough traffic, as its whole judge does, but quicker.

    That both say the same is a test.
    """

    def __init__(self) -> None:
        self._at = 1e6
        self._past = PastWatch()
        self._past.mark(self._at)
        self._loses = NOWHERE
        self._totals = deque([(0, 0, 0)], maxlen=1 + int(WINDOW / POLL))

    def poll(self, ended: Sequence[Ended]) -> Scraped:
        """What is scraped after the next poll."""
        self._at += POLL
        drafted = [one.drafted for one in ended]
        sums = Sums.of(drafted, [one.accepted for one in ended])
        self._past.grow(Counted(sums.requests, sums.drafted, sums.accepted))
        self._past.finished(sums)
        self._past.mark(self._at)

        totals = tuple(map(add, self._totals[-1], (sums.requests, sums.drafted, sums.accepted)))
        self._totals.append(totals)
        first = self._totals[0]
        requests, of, accepted = map(sub, totals, first)
        rate = accepted / of if requests >= _THRESHOLDS.min_requests else None
        past = self._past.past
        if rate is not None and past is not None:
            known = partial(past.estimates, _THRESHOLDS.min_requests)
            self._loses = certain_side(self._loses, _LINE, known, self._at)
        is_low = None if self._loses.side is None else self._loses.side is Side.BELOW
        return Scraped(rate, is_low, bool(is_low), totals[1], totals[2])


class _Watched:
    """A pod with its sidecar and the rules."""

    def __init__(self) -> None:
        self._sidecar = Sidecar()
        self._rules = Rules()

    def minute(self, polls: Iterable[Sequence[Ended]]) -> tuple[Fired, bool]:
        """What fires after the next minute, and whether a temperature's warning would."""
        for ended in polls:
            scraped = self._sidecar.poll(ended)
        return self._rules.step(scraped), bool(scraped.is_low)


def _minutes(traffic: Traffic, seed: int, seconds: float) -> Iterator[tuple[Sequence[Ended], ...]]:
    """The polls of each minute."""
    polls = traffic.polls(seed, seconds)
    return zip(*[polls] * _A_MINUTE, strict=True)


class Days(NamedTuple):
    """Pages that begin in the first day and later, and warnings of a regression."""

    first: int
    later: int
    regressed: int


def days(traffic: Traffic, number: int, seed: int) -> Days:
    """The first ``number`` days of a pod."""
    pod = _Watched()
    fired = [pod.minute(polls)[0] for polls in _minutes(traffic, seed, number * _DAY)]
    pages = _begun([one.page for one in fired])
    return Days(
        sum(at < _MINUTES for at in pages),
        sum(at >= _MINUTES for at in pages),
        len(_begun([one.regressed for one in fired])),
    )


def _begun(states: Sequence[bool]) -> list[int]:
    return [at for at, state in enumerate(states) if state and (at == 0 or not states[at - 1])]


def minutes_until(traffic: Traffic, *, page: bool, seed: int) -> float:
    """From the fall of the rate to the page, or to the warning; four hours if there is none."""
    pod = _Watched()
    for number, polls in enumerate(_minutes(traffic, seed, traffic.falls_at + _LONGEST)):
        fired, warned = pod.minute(polls)
        since = number + 1 - traffic.falls_at / 60
        if since > 0 and (fired.page if page else warned):
            return since
    return _LONGEST / 60


@dataclass(frozen=True)
class _Stays:
    """Nothing changes."""

    traffic: Traffic
    days: int = 5  # of a pod


@dataclass(frozen=True)
class _Falls:
    """The rate falls: within so many minutes someone is told, in 80 %."""

    traffic: Traffic
    within: float | None
    page: bool = True


def _stays() -> Iterator[_Stays]:
    for level in (0.52, 0.54, 0.56, 0.60, 0.65):
        for has_sessions in (False, True):
            yield _Stays(Traffic(level, 150, has_sessions, wander=0.04))
    for level in (0.52, 0.56):
        yield _Stays(Traffic(level, 600, has_sessions=True, wander=0.04))
        yield _Stays(Traffic(level, 150, has_sessions=True))
    yield _Stays(Traffic(0.6, 150, wander=0.03))
    yield _Stays(Traffic(0.56, 150, wander=0.02, swing=0.06))
    yield _Stays(Traffic(0.62, 150, has_sessions=True, wander=0.02, swing=0.06, weekend=0.06), 28)


def _falls() -> Iterator[_Falls]:
    for before in (6 * 3600.0, _DAY):
        fall = Traffic(0.65, 150, falls_to=0.42, falls_at=before, wander=0.02)
        yield _Falls(fall, 15)
    yield _Falls(Traffic(0.65, 150, True, 0.02, 0.42, _DAY), None)
    yield _Falls(Traffic(0.65, 600, False, 0.02, 0.42, _DAY), 15)
    yield _Falls(Traffic(0.65, 150, False, 0.04, 0.42, _DAY), None)
    for has_sessions, within in ((False, 20), (True, 50)):
        traffic = Traffic(0.6, 150, has_sessions, falls_to=0.45, falls_at=6 * 3600.0)
        yield _Falls(traffic, within, page=False)


def _name(traffic: Traffic) -> str:
    kind = "sessions" if traffic.has_sessions else "independent"
    name = f"{traffic.rate:g}"
    if traffic.falls_to is not None:
        name += f" → {traffic.falls_to:g} after {traffic.falls_at / 3600:g} h"
    name += f", {traffic.requests:g} requests, {kind}"
    for what, by in (
        ("wanders", traffic.wander),
        ("a day swings", traffic.swing),
        ("weekends are lower", traffic.weekend),
    ):
        name += f", {what} by {by:g}" if by else ""
    return name


class _Seen(NamedTuple):
    """Of one line, or of all."""

    days: int
    first: int = 0
    later: int = 0
    regressed: int = 0

    @property
    def pages(self) -> int:
        return self.first + self.later


def _line(name: str, seen: _Seen) -> tuple[str, int]:
    """A row of the table, and how many of its bars are missed."""
    pages = seen.pages / seen.days
    warnings = seen.regressed / seen.days
    said = said_of(pages, _PAGES), said_of(warnings, _WARNINGS)
    row = (
        f"| {name} | {seen.days} | {seen.first} + {seen.later}"
        f" | {pages:.4f}{said[0]} | {most_events(seen.pages) / seen.days:.4f}"
        f" | {warnings:.3f}{said[1]} | {most_events(seen.regressed) / seen.days:.3f} |"
    )
    return row, sum("missed" in one for one in said)


def main(argv: Sequence[str]) -> int:
    """Prints the tables; returns 1 if a line misses its bar."""
    arguments = options("changes", argv, days=60, falls=20)

    begun = time.monotonic()
    missed = 0
    print(
        "| nothing changes | days | pages, first day + later | a day | at most (95 %)"
        " | regressed a day | at most (95 %) |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    total = _Seen(0)
    for place, line in enumerate(_stays() if arguments.days else ()):
        name = _name(line.traffic)
        if arguments.only not in name:
            continue
        pods = math.ceil(arguments.days / line.days)
        work = partial(days, line.traffic, line.days)
        begin = arguments.seed + _SEEDS * place
        found = in_parallel(work, range(begin, begin + pods), arguments.processes)
        seen = _Seen(pods * line.days, *map(sum, zip(*found, strict=True)))
        total = _Seen(*map(sum, zip(total, seen, strict=True)))
        row, more = _line(name, seen)
        missed += more
        print(row, flush=True)
    if total.days:
        print(_line("all", total)[0])

    falls = (
        Delay(
            f"{_name(fall.traffic)}: {'page' if fall.page else 'warning'}",
            partial(_until, fall),
            fall.within,
        )
        for fall in _falls()
    )
    missed += print_delays("falls", falls, arguments)

    print(f"\n{time.monotonic() - begun:.0f} s")
    return 1 if missed else 0


def _until(fall: _Falls, seed: int) -> float:
    return minutes_until(fall.traffic, page=fall.page, seed=seed)
