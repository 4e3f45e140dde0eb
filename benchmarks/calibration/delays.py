"""What the calibrations of ``verdicts``, ``groups``, ``endings`` and ``changes`` share.

That is their options, and the table of how long it takes until something that happened is told.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.calibration.rates import in_parallel, rate

_IN_TIME: Final = 0.8  # the share that has to be told in time


class Delay(NamedTuple):
    """A line of the table.

    ``minutes`` is how long one of them takes, by its seed, and ``within`` the bar of 80 % of them;
    None: it has none.
    """

    name: str
    minutes: Callable[[int], float]
    within: float | None


def options(
    command: str,
    argv: Sequence[str],
    *,
    days: int,
    falls: int,
    of: str = "falls",
    more: Mapping[str, int] = MappingProxyType({}),
) -> argparse.Namespace:
    """How many days and ``falls`` to simulate of each line, which lines, in how many processes.

    ``of`` is what the falls are called here, ``more`` are numbers that only this command has.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.calibration {command}")
    for name, number in {"days": days, of: falls, **more}.items():
        said = f"of each line (default: {number})"
        parser.add_argument(f"--{name}", type=int, default=number, help=said)
    parser.add_argument("--only", default="", help="lines whose name has this")
    parser.add_argument("--seed", type=int, default=0, help="the first (default: 0)")
    parser.add_argument("--processes", type=int, default=1)
    return parser.parse_args(argv)


def seeds_of(arguments: argparse.Namespace, number: int) -> range:
    """So many seeds, from the first that was asked for."""
    return range(arguments.seed, arguments.seed + number)


def print_delays(title: str, lines: Iterable[Delay], arguments: argparse.Namespace) -> int:
    """Prints the table; returns how many lines miss their bar."""
    missed = 0
    print(f"\n| {title} | median | 80 % | 95 % | in time |\n|---|---|---|---|---|", flush=True)
    for line in lines if arguments.falls else ():
        if arguments.only not in line.name:
            continue

        seeds = seeds_of(arguments, arguments.falls)
        times = sorted(in_parallel(line.minutes, seeds, arguments.processes))
        middle, most, nearly = (times[int(share * (len(times) - 1))] for share in (0.5, 0.8, 0.95))
        in_time = ""
        if line.within is not None:
            found = rate(one <= line.within for one in times)
            is_met = found.share >= _IN_TIME
            missed += not is_met
            in_time = (
                f"{found.share:.0%} (at least {found.at_least:.0%}) in {line.within:g} min"
                f" {'ok' if is_met else '**missed**'}"
            )
        print(
            f"| {line.name} | {middle:.0f} min | {most:.0f} | {nearly:.0f} | {in_time} |",
            flush=True,
        )

    return missed
