"""``python -m benchmarks.calibration verdicts``: how often a verdict by acceptance is wrong.

Each line is one temperature's traffic of many pod-days (``requests.py``), judged at every poll.
``--days`` and ``--falls`` set how many are simulated of each line, ``--only`` some lines; seeds are
0, 1, 2, … It ends with 1 if a line is on the wrong side of its bar by what was seen.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from benchmarks.calibration.delays import Delay, options, print_delays, seeds_of
from benchmarks.calibration.rates import in_parallel, most_events, said_of
from benchmarks.calibration.requests import POLL, WINDOW, Ended, Traffic
from sidecar.analysis.certainty.past import Counted, PastWatch
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.evidence import Evidence
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.split.tallies import JudgedTally
from sidecar.analysis.verdict import judge
from sidecar.requests.tally import Tally
from sidecar.settings.groups import Thresholds

_DAY: Final = 86_400.0
_BEFORE: Final = 6 * 3600.0  # seconds of traffic before anything counts
_THRESHOLDS: Final = Thresholds()


class Pod:
    """One temperature as the sidecar follows it."""

    def __init__(self) -> None:
        self.at = 1e6
        self.judgement = Judgement()
        self._tally = JudgedTally(WINDOW)
        self._tally.mark(self.at)
        self._past = PastWatch()
        self._past.mark(self.at)

    def poll(self, ended: Sequence[Ended]) -> Judgement:
        """The judgement at the next poll."""
        self.at += POLL
        tally = Tally(
            stopped=len(ended),
            drafts=sum(one.drafts for one in ended),
            draft_tokens=sum(one.drafted for one in ended),
            accepted_tokens=sum(one.accepted for one in ended),
        )
        self._tally.grow(tally)
        self._tally.mark(self.at)
        self._past.grow(Counted(tally.requests, tally.draft_tokens, tally.accepted_tokens))
        drafted = [one.drafted for one in ended]
        self._past.finished(Sums.of(drafted, [one.accepted for one in ended]))
        self._past.mark(self.at)
        evidence = Evidence(window=self._tally.window, hour=self._tally.hour, past=self._past.past)
        self.judgement = judge(evidence, _THRESHOLDS, WINDOW, before=self.judgement)
        return self.judgement


class Day(NamedTuple):
    """Warnings that begin in a day, changes of the verdict, and the share without a verdict.

    A warning is a rate that is low for ten of the last 25 minutes, and now.
    """

    low: int
    warnings: int
    changes: int
    undecided: float


def day(traffic: Traffic, seed: int) -> Day:
    """A pod-day, after some hours."""
    pod = Pod()
    polls = list(traffic.polls(seed, _BEFORE + _DAY))
    first = int(_BEFORE / POLL)
    lows: list[bool] = []
    verdicts: list[Verdict] = []
    for ended in polls:
        judged = pod.poll(ended)
        lows.append(bool(judged.is_low) and judged.verdict is Verdict.NET_NEGATIVE)
        verdicts.append(judged.verdict)

    warned = _warned(lows)
    return Day(
        _begun(lows, first),
        _begun(warned, first),
        sum(verdicts[at] is not verdicts[at - 1] for at in range(first, len(verdicts))),
        sum(one is Verdict.INSUFFICIENT_DATA for one in verdicts[first:]) / len(polls[first:]),
    )


def _begun(states: Sequence[bool], first: int) -> int:
    return sum(states[at] and not states[at - 1] for at in range(first, len(states)))


def _warned(lows: Sequence[bool]) -> list[bool]:
    """Whether the alert would hold: as its rule counts, and for 15 minutes beyond."""
    past = int(1500 / POLL)
    needed = int(660 / POLL)
    keep = int(900 / POLL)
    warned: list[bool] = []
    last = -keep - 1
    for at, low in enumerate(lows):
        if low and sum(lows[max(0, at - past) : at + 1]) >= needed:
            last = at
        warned.append(at - last <= keep)
    return warned


def minutes_until_low(traffic: Traffic, seed: int) -> float:
    """From the fall of the rate; four hours if it is not noticed."""
    pod = Pod()
    longest = 4 * 3600.0
    for number, ended in enumerate(traffic.polls(seed, traffic.falls_at + longest)):
        judged = pod.poll(ended)
        since = number * POLL - traffic.falls_at
        if since > 0 and judged.is_low and judged.verdict is Verdict.NET_NEGATIVE:
            return since / 60
    return longest / 60


@dataclass(frozen=True)
class _Stays:
    """Nothing changes: bars are false episodes and changes of verdict a pod-day."""

    traffic: Traffic
    warnings: float | None = None
    changes: float | None = None


@dataclass(frozen=True)
class _Falls:
    """The rate falls: within so many minutes it is low, in 80 %."""

    traffic: Traffic
    within: float | None = None


def _stays() -> Iterator[_Stays]:
    for level in (0.52, 0.54, 0.56, 0.60, 0.65):
        for requests in (150, 600):
            for has_sessions in (False, True):
                yield _Stays(Traffic(level, requests, has_sessions), 0.05, 4)
    for level in (0.45, 0.48, 0.49):
        for has_sessions in (False, True):
            yield _Stays(Traffic(level, 150, has_sessions), None, 4)
    for level in (0.52, 0.60):
        yield _Stays(Traffic(level, 150, wander=0.04))


def _falls() -> Iterator[_Falls]:
    before = _BEFORE
    for start, end, within in ((0.6, 0.45, (20, 50)), (0.65, 0.42, (15, None))):
        for has_sessions, limit in zip((False, True), within, strict=True):
            yield _Falls(Traffic(start, 150, has_sessions, falls_to=end, falls_at=before), limit)
    yield _Falls(Traffic(0.65, 600, wander=0.02, falls_to=0.42, falls_at=before), 15)
    yield _Falls(Traffic(0.65, 600, has_sessions=True, falls_to=0.42, falls_at=before))


def _name(traffic: Traffic) -> str:
    kind = "sessions" if traffic.has_sessions else "independent"
    wander = f", wanders by {traffic.wander:g}" if traffic.wander else ""
    falls = f" → {traffic.falls_to:g}" if traffic.falls_to is not None else ""
    return f"{traffic.rate:g}{falls}, {traffic.requests:g} requests, {kind}{wander}"


def main(argv: Sequence[str]) -> int:
    """Prints the tables; returns 1 if a line misses its bar."""
    arguments = options("verdicts", argv, days=20, falls=20)

    begun = time.monotonic()
    missed = 0
    print(
        "| nothing changes | low a day | warnings a day | at most (95 %) | changes a day"
        " | undecided |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for line in _stays() if arguments.days else ():
        name = _name(line.traffic)
        if arguments.only not in name:
            continue
        seeds = seeds_of(arguments, arguments.days)
        days = in_parallel(partial(day, line.traffic), seeds, arguments.processes)
        number = len(days)
        warnings = sum(one.warnings for one in days)
        changes = sum(one.changes for one in days) / number
        low = sum(one.low for one in days) / number
        undecided = sum(one.undecided for one in days) / number
        said = said_of(warnings / number, line.warnings), said_of(changes, line.changes)
        missed += sum("missed" in one for one in said)
        print(
            f"| {name} | {low:.2f} | {warnings / number:.2f}{said[0]} |"
            f" {most_events(warnings) / number:.2f} | {changes:.1f}{said[1]} | {undecided:.0%} |",
            flush=True,
        )

    falls = (
        Delay(_name(fall.traffic), partial(minutes_until_low, fall.traffic), fall.within)
        for fall in _falls()
    )
    missed += print_delays("falls", falls, arguments)

    print(f"\n{time.monotonic() - begun:.0f} s")
    return 1 if missed else 0
