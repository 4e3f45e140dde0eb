"""``python -m benchmarks.speedup_error``: the ± of a live speedup, and the losses by it.

Plain time is known exactly, so all that the ± has to cover is traffic and machine. Each row is an
independent simulation of requests that differ in acceptance (sd 0.15), at loads and reply lengths
of its own, with noise of the machine that lasts; the truth is the ratio of the same traffic in the
long run. Seeds count from 0, or from ``--seed`` on. It prints Markdown tables: ``coverage``,
``losses``, ``delays`` or ``errors`` (how certain a loss should be); ``--rows 1,4`` for some rows.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt
from statistics import fmean, median, stdev
from typing import Final

from benchmarks.calibration.rates import in_parallel, rate
from benchmarks.speedup_error.certainty import by_errors
from benchmarks.speedup_error.pods import (
    BEFORE,
    FALLS_AT,
    LOSS,
    SOON,
    Pod,
    Seen,
    Told,
    long_run,
)
from benchmarks.speedup_error.traffic import Traffic
from sidecar.analysis.evidence import CONFIDENCE

ROWS: Final[Sequence[Traffic]] = (
    Traffic(name="8 at once, 200 tokens", at_once=(8, 8), reply=200),
    Traffic(name="2 at once, 800", at_once=(2, 2), reply=800),
    Traffic(name="4 to 8 at once, 3,000", at_once=(4, 8), reply=3000),
    Traffic(name="8, 200, noise 3 % for a minute", at_once=(8, 8), reply=200, noise=0.03),
    Traffic(
        name="8, 200, noise 5 % for five minutes", at_once=(8, 8), reply=200, noise=0.05, lasts=300
    ),
    Traffic(name="1 at once, 400", at_once=(1, 1), reply=400),
    Traffic(name="24 to 40 at once, 1,000", at_once=(24, 40), reply=1000),
    Traffic(
        name="4, 3,000, noise 3 % for five minutes",
        at_once=(4, 4),
        reply=3000,
        noise=0.03,
        lasts=300,
    ),
    Traffic(
        name="12 to 20, 100, noise 1 % for an hour",
        at_once=(12, 20),
        reply=100,
        noise=0.01,
        lasts=3600,
    ),
    Traffic(
        name="8, 200, noise 3 % for an hour", at_once=(8, 8), reply=200, noise=0.03, lasts=3600
    ),
)
_HOURS: Final = 10
_LEARNT: Final = 2.0  # hours
_NO_LOSS: Final = (1.0, 1.02)
_LOOKED: Final = 2 * 3600.0
_TRUTHS: Final = 4  # runs of sixty hours


@dataclass(frozen=True, slots=True)
class _Part:
    """Some hours of a row, by pod: how far each ratio is off, and the error that is stated."""

    pods: Sequence[Sequence[tuple[float, float]]]
    minutes: float

    @property
    def covered(self) -> float:
        """The share of the times that ± covered the truth."""
        return fmean(self._by_pod)

    @property
    def margin(self) -> float:
        """Two standard errors of that: pods are independent, the readings of one are not."""
        return CONFIDENCE * stdev(self._by_pod) / sqrt(len(self.pods))

    @property
    def relative(self) -> float:
        """The mean stated error / the standard deviation from the truth."""
        known = [one for pod in self.pods for one in pod]
        return fmean(stated for _, stated in known) / sqrt(fmean(off**2 for off, _ in known))

    @property
    def _by_pod(self) -> Sequence[float]:
        return [fmean(abs(off) <= CONFIDENCE * stated for off, stated in pod) for pod in self.pods]


def _part(pods: Sequence[Sequence[Seen]], truth: float, hours: tuple[float, float]) -> _Part:
    begin, end = (3600 * one for one in hours)
    known = [
        [one.speedup for one in pod if begin < one.at <= end and one.speedup is not None]
        for pod in pods
    ]
    return _Part(
        [[(one.ratio - truth, one.error) for one in pod] for pod in known if pod],
        fmean(one.seconds for pod in known for one in pod) / 60,
    )


def _seen(traffic: Traffic, seed: int) -> list[Seen]:
    return list(Pod(traffic=traffic, seed=seed, hours=_HOURS).seen())


def _truth(traffic: Traffic, processes: int) -> float:
    return fmean(in_parallel(partial(long_run, traffic), range(_TRUTHS), processes))


def coverage(rows: Sequence[Traffic], seeds: Sequence[int], processes: int) -> None:
    """Prints how often the ± covers the truth."""
    print(
        "| traffic | first hour: covered | stated ÷ real sd | second hour | stated ÷ real sd |"
        " then | stated ÷ real sd | by hour | window |\n|---|---|---|---|---|---|---|---|---|"
    )
    for traffic in rows:
        found = in_parallel(partial(_seen, traffic), seeds, processes)
        part = partial(_part, found, _truth(traffic, processes))
        hours = [part((one, one + 1.0)) for one in range(_HOURS)]
        late = part((_LEARNT, _HOURS))
        shown = [f"{_share(one)} | {one.relative:.2f}" for one in (*hours[:2], late)]
        lowest, *_, highest = sorted(hours[2:], key=lambda hour: hour.covered)
        print(
            f"| {traffic.name} | {' | '.join(shown)} | {_share(lowest)} to {highest.covered:.0%} |"
            f" {late.minutes:.0f} min |",
            flush=True,
        )


def _share(part: _Part) -> str:
    return f"{part.covered:.1%} ± {100 * part.margin:.1f}"


def losses(rows: Sequence[Traffic], seeds: Sequence[int], processes: int) -> None:
    """Prints on how many days a pod that does not lose is said to, and someone is paged for it."""
    cells = [f"{one:g}: days with a loss, at most (95 %), pages" for one in _NO_LOSS]
    print(f"| traffic | {' | '.join(cells)} |\n|---|---|---|", flush=True)
    for traffic in rows:
        truth = _truth(traffic, processes)
        known = [_false(traffic, speedup / truth, seeds, processes) for speedup in _NO_LOSS]
        print(f"| {traffic.name} | {' | '.join(known)} |", flush=True)


def delays(rows: Sequence[Traffic], seeds: Sequence[int], processes: int) -> None:
    """Prints how soon a pod that loses a tenth is said to, and someone is paged for it."""
    soon = "middle, within 40 min, page within 40 min"
    cells = [f"{LOSS:g} {one}: {soon}" for one in ("from the start", "after 1.3")]
    print(f"| traffic | {' | '.join(cells)} |\n|---|---|---|", flush=True)
    for traffic in rows:
        truth = _truth(traffic, processes)
        known = [_found(traffic, truth, at, seeds, processes) for at in (0.0, FALLS_AT)]
        print(f"| {traffic.name} | {' | '.join(known)} |", flush=True)


def _false(traffic: Traffic, scale: float, seeds: Sequence[int], processes: int) -> str:
    days = [Pod(traffic=traffic, seed=seed, hours=24, poll=30, scale=scale) for seed in seeds]
    told = _told(days, processes)
    found = rate(one.negative_at < inf for one in told)
    pages = sum(one.paged_at < inf for one in told)
    return f"{found.events} of {found.of}, {found.at_most:.1%}, {pages}"


def _found(
    traffic: Traffic, truth: float, begins: float, seeds: Sequence[int], processes: int
) -> str:
    losing = [
        Pod(
            traffic=traffic,
            seed=seed,
            hours=(begins + _LOOKED) / 3600,
            poll=30,
            scale=(BEFORE if begins else LOSS) / truth,
            changes_at=begins or inf,
            scale_then=LOSS / truth,
        )
        for seed in seeds
    ]
    told = _told(losing, processes)
    after = [one.negative_at - begins for one in told]
    middle = median(after)
    said = f"{middle / 60:.0f} min" if middle < inf else "more than two hours"
    paged = fmean(one.paged_at - begins <= SOON for one in told)
    return f"{said}, {fmean(one <= SOON for one in after):.0%}, {paged:.0%}"


def _told(pods: Sequence[Pod], processes: int) -> Sequence[Told]:
    return in_parallel(partial(_told_of, pods), range(len(pods)), processes)


def _told_of(pods: Sequence[Pod], place: int) -> Told:
    return pods[place].told()


def main() -> int:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("coverage", "losses", "delays", "errors"))
    parser.add_argument("--rows", help="their numbers, from 1")
    parser.add_argument("--pods", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the first pod (default: 0)")
    parser.add_argument("--hours", type=float, default=24, help="of a day, for errors")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()

    chosen = ROWS
    if arguments.rows is not None:
        chosen = tuple(ROWS[int(one) - 1] for one in arguments.rows.split(","))
    tables = {"coverage": coverage, "losses": losses, "delays": delays}
    seeds = range(arguments.seed, arguments.seed + arguments.pods)
    processes = arguments.processes
    if arguments.what == "errors":
        truths = [(one, _truth(one, processes)) for one in chosen]
        by_errors(truths, seeds, arguments.hours, processes)
    else:
        tables[arguments.what](chosen, seeds, processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
