"""``python -m benchmarks.calibration groups``: which groups are said to accept less, and how soon.

Each line is traffic with four ways to tell requests apart, polled every 30 s. ``--days``
and ``--falls`` set how many are simulated of each line, ``--only`` some lines; seeds are 0, 1, …,
or from ``--seed`` on. ``--errors`` prints instead how many of its errors a difference is off, in
as many days: 1 if the error is right. It ends with 1 if a line is on the wrong side of its bar by
what was seen.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from random import Random
from statistics import fmean, pstdev
from typing import Final, NamedTuple

from benchmarks.calibration.delays import Delay, options, print_delays, seeds_of
from benchmarks.calibration.rates import in_parallel, most_events, said_of
from benchmarks.calibration.requests import POLL, Ended, arrivals, ended
from sidecar.analysis.certainty.past import Counted, PastWatch
from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums, total
from sidecar.analysis.split.group_watch import SPANS, GroupWatch
from sidecar.analysis.split.strata import Cells, Kind, differences
from sidecar.analysis.windows.sums import SlidingSums

_DAY: Final = 86_400.0
_BEFORE: Final = 3 * 3600.0  # seconds of traffic before anything counts
_LONGEST: Final = 4 * 3600.0  # seconds after which an effect counts as not found
_MIN_REQUESTS: Final = 20
_SLICES: Final = 15  # of a span, as in ``GroupWatch``
_TEMPERATURES: Final = {"0": 0.5, "0.7-1": 0.5}
_PROMPTS: Final = {"0-512": 0.3, "512-2k": 0.3, "2k-8k": 0.25, "8k-32k": 0.15}
_LONG: Final = "8k-32k"
_ADAPTERS: Final = {"none": 0.8, "legal": 0.2}
_FILTERED: Final = 0.3  # of those that sample
_STRUCTURED: Final = 0.2


@dataclass(frozen=True)
class Mix:
    """A pod's requests; ``requests`` are the mean number in five minutes.

    From ``falls_at`` seconds on, structured output accepts less by ``costs``. ``is_confounded``:
    most long prompts are structured, and few others.
    """

    requests: float
    rate: float = 0.6
    has_sessions: bool = False
    costs: float = 0.0
    falls_at: float = 0.0
    is_confounded: bool = False

    def polls(self, seed: int, seconds: float) -> Iterator[Mapping[Kind, Sequence[Ended]]]:
        """What has finished by each poll, by kind."""
        random = Random(f"mix {seed}")
        count = int(seconds / POLL)
        arrived: list[list[tuple[Kind, float]]] = [[] for _ in range(count)]
        found = arrivals(random, seconds, self.requests, self._kind, has_sessions=self.has_sessions)
        for at, kind, own in found:
            arrived[int(at / POLL)].append((kind, own))

        for poll, requests in enumerate(arrived):
            costs = self.costs if poll * POLL >= self.falls_at else 0.0
            kinds: dict[Kind, list[Ended]] = {}
            for kind, own in requests:
                mean = self.rate - costs * (("output", "structured") in kind.groups)
                kinds.setdefault(kind, []).append(ended(random, mean + own))
            yield kinds

    def _kind(self, random: Random) -> Kind:
        temperature = _drawn(random, _TEMPERATURES)
        prompt = _drawn(random, _PROMPTS)
        structured = _STRUCTURED
        if self.is_confounded:
            structured = 0.8 if prompt == _LONG else 0.1
        sampling = "greedy"
        if temperature != "0":
            sampling = "filtered" if random.random() < _FILTERED else "plain"
        return Kind(
            temperature,
            "0",
            (
                ("prompt_tokens", prompt),
                ("output", "structured" if random.random() < structured else "free"),
                ("sampling", sampling),
                ("adapter", _drawn(random, _ADAPTERS)),
            ),
        )


def _drawn(random: Random, shares: Mapping[str, float]) -> str:
    return random.choices([*shares], [*shares.values()])[0]


class _Pod:
    """The groups of one model as the sidecar follows them."""

    def __init__(self) -> None:
        self.at = 1e6
        self._watch = GroupWatch()
        self._pasts = {temperature: PastWatch() for temperature in _TEMPERATURES}

    def poll(self, kinds: Mapping[Kind, Sequence[Ended]]) -> frozenset[str]:
        """The groups that accept less, as of the next poll."""
        self.take(kinds)
        if self._watch.is_due(self.at):
            self._watch.judge(self.at, self.spreads, _MIN_REQUESTS)
        return frozenset(
            group
            for groups in self._watch.differences.values()
            for group, difference in groups.items()
            if difference.is_clearly_lower
        )

    def take(self, kinds: Mapping[Kind, Sequence[Ended]]) -> Cells:
        """Takes in what has finished by the next poll; returns it."""
        self.at += POLL
        cells = {
            kind: Sums.of([one.drafted for one in same], [one.accepted for one in same])
            for kind, same in kinds.items()
        }
        for temperature, past in self._pasts.items():
            sums = total(one for kind, one in cells.items() if kind.temperature == temperature)
            past.grow(Counted(sums.requests, sums.drafted, sums.accepted))
            past.finished(sums)
            past.mark(self.at)
        if cells:
            self._watch.add(self.at, cells)
        return cells

    @property
    def spreads(self) -> Mapping[str, Spread]:
        """How much requests differ, by temperature."""
        return {temperature: past.spread for temperature, past in self._pasts.items()}


class Day(NamedTuple):
    """Findings that begin in a day: on any group, and on the long prompts."""

    findings: int
    long: int


def day(mix: Mix, seed: int) -> Day:
    """A pod-day, after some hours."""
    pod = _Pod()
    lower = [pod.poll(kinds) for kinds in mix.polls(seed, _BEFORE + _DAY)]
    first = int(_BEFORE / POLL)
    begun = [lower[at] - lower[at - 1] for at in range(first, len(lower))]
    return Day(sum(map(len, begun)), sum(_LONG in groups for groups in begun))


def errors_off(mix: Mix, seed: int) -> Sequence[Sequence[float]]:
    """How many errors each group's difference is off in a day, by span: three times a span."""
    pod = _Pod()
    spans = [SlidingSums[Kind, Sums](seconds, _SLICES) for seconds in SPANS]
    off: list[list[float]] = [[] for _ in SPANS]
    for number, kinds in enumerate(mix.polls(seed, _BEFORE + _DAY)):
        cells = pod.take(kinds)
        for span, seconds, found in zip(spans, SPANS, off, strict=True):
            span.add(pod.at, cells)
            if number * POLL < _BEFORE or number * POLL % (seconds / 3):
                continue
            span.drop(pod.at)
            for by in dict(next(iter(span.sums)).groups):
                known = differences(by, span.sums, pod.spreads, _MIN_REQUESTS)
                found += [one.value / one.error for one in known.values()]
    return off


def minutes_until_found(mix: Mix, seed: int) -> float:
    """From when structured output begins to accept less; four hours if it is not found."""
    pod = _Pod()
    for number, kinds in enumerate(mix.polls(seed, mix.falls_at + _LONGEST)):
        since = number * POLL - mix.falls_at
        if "structured" in pod.poll(kinds) and since > 0:
            return since / 60
    return _LONGEST / 60


@dataclass(frozen=True)
class _Stays:
    """Bars are findings a pod-day: on any group, and on long prompts."""

    mix: Mix
    findings: float | None = None
    long: float | None = None


def _stays() -> Iterator[_Stays]:
    for level in (0.53, 0.65):
        for requests in (150, 600):
            for has_sessions in (False, True):
                yield _Stays(Mix(requests, level, has_sessions), 0.1)
    for requests in (150, 600):
        yield _Stays(Mix(requests, costs=0.1, is_confounded=True), None, 0.1)


def _falls() -> Iterator[tuple[Mix, float | None]]:
    for requests, within in ((600, 15), (150, 75)):
        for has_sessions in (False, True):
            mix = Mix(requests, 0.6, has_sessions, costs=0.1, falls_at=_BEFORE)
            yield mix, None if has_sessions else within


def _name(mix: Mix) -> str:
    kind = "sessions" if mix.has_sessions else "independent"
    confounded = ", confounded" if mix.is_confounded else ""
    costs = f", structured output costs {100 * mix.costs:g} points" if mix.costs else ""
    return f"{mix.rate:g}, {mix.requests:g} requests, {kind}{costs}{confounded}"


def _print_errors(arguments: argparse.Namespace) -> None:
    print("| nothing accepts less | of 15 minutes: sd | below -3 | of an hour: sd | below -3 |")
    print("|---|---|---|---|---|", flush=True)
    for line in _stays():
        name = _name(line.mix)
        if arguments.only not in name or line.findings is None:
            continue
        seeds = seeds_of(arguments, arguments.errors)
        days = in_parallel(partial(errors_off, line.mix), seeds, arguments.processes)
        spans = (list(chain.from_iterable(span)) for span in zip(*days, strict=True))
        said = (f"{pstdev(off):.2f} | {fmean(one < -3 for one in off):.2%}" for off in spans)
        print(f"| {name} | {' | '.join(said)} |", flush=True)


def main(argv: Sequence[str]) -> int:
    """Prints the tables; returns 1 if a line misses its bar."""
    arguments = options("groups", argv, days=10, falls=20, more={"errors": 0})
    if arguments.errors:
        _print_errors(arguments)
        return 0

    begun = time.monotonic()
    missed = 0
    print(
        "| traffic | findings a day | at most (95 %) | on long prompts |\n|---|---|---|---|",
        flush=True,
    )
    for line in _stays() if arguments.days else ():
        name = _name(line.mix)
        if arguments.only not in name:
            continue
        seeds = seeds_of(arguments, arguments.days)
        days = in_parallel(partial(day, line.mix), seeds, arguments.processes)
        found = sum(one.findings for one in days)
        long = sum(one.long for one in days) / len(days)
        said = said_of(found / len(days), line.findings), said_of(long, line.long)
        missed += sum("missed" in one for one in said)
        bound = most_events(found) / len(days)
        print(
            f"| {name} | {found / len(days):.2f}{said[0]} | {bound:.2f} | {long:.2f}{said[1]} |",
            flush=True,
        )

    falls = (
        Delay(_name(mix), partial(minutes_until_found, mix), within) for mix, within in _falls()
    )
    missed += print_delays("begins to cost", falls, arguments)

    print(f"\n{time.monotonic() - begun:.0f} s")
    return 1 if missed else 0
