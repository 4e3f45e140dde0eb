"""``python -m benchmarks.calibration gates``: both error rates of the gates.

``fidelity``, ``sweep --against`` with ``compare``, and the rules of deploy/rollouts stand in other
people's pipelines: how often they call equal servers different, and how often they find what they
say that they find. ``--only`` runs some of the tables, ``--cases`` sets how many are simulated of
each line; seeds are 0, 1, 2, …

It ends with 1 if a line's rate is on the wrong side of its bar by what was seen. Beside it stands
the upper 95 % bound (the lower one of a power): how far so few cases reach.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from benchmarks.calibration.models import moved_at, replaced
from benchmarks.calibration.outputs import DEFAULTS, GreedyPair, Pair
from benchmarks.calibration.rates import Rate, in_parallel, rate
from benchmarks.calibration.rollouts import EQUAL, Version, rollouts, with_requests
from benchmarks.calibration.sweeps import (
    Machines,
    acceptance_differs,
    is_called_different,
    more_rounds_decided,
)

_NUMERICS: Final = (0.0, 0.02, 0.047)  # nat of each server


@dataclass(frozen=True)
class Line:
    """One rate and its bar: at most, or at least, such a share."""

    what: str
    found: Rate
    at_most: float | None = None
    at_least: float | None = None

    @property
    def cleared(self) -> bool:
        """Whether what was seen is on the right side."""
        share = self.found.share
        return (self.at_most is None or share <= self.at_most) and (
            self.at_least is None or share >= self.at_least
        )

    def __str__(self) -> str:
        found = self.found
        bar = f"≤ {self.at_most:.0%}" if self.at_most is not None else ""
        bound = f"at most {found.at_most:.1%}"
        if self.at_least is not None:
            bar = f"≥ {self.at_least:.0%}"
            bound = f"at least {found.at_least:.1%}"
        said = "" if not bar else ("ok" if self.cleared else "**missed**")
        return f"| {self.what} | {found.events} of {found.of} | {bound} | {bar} | {said} |"


def _differs(pair: Pair, seed: int) -> bool:
    return pair.sampled(seed).verdict(DEFAULTS) == "different"


def _not_steady(pair: Pair, seed: int) -> bool:
    return pair.sampled(seed).verdict(DEFAULTS) == "reference_not_steady"


def _verdict(pair: GreedyPair, seed: int) -> str:
    return pair.compared(seed).verdict(DEFAULTS)


def _sampled(cases: int, processes: int) -> Iterator[Line]:
    many = range(cases or 40)
    for numerics in _NUMERICS:
        pair = Pair(numerics)
        found = rate(in_parallel(partial(_differs, pair), many, processes))
        yield Line(
            f"samples: equal servers with numerics of {numerics:g} nat: different", found, 0.05
        )
    before = rate(in_parallel(Pair(0.047).without_control, many, processes))
    yield Line("samples: the same with 0.047 nat and no control (as it was): different", before)

    few = range(cases or 12)
    for position in (2, 5):
        pair = Pair(0.0, moved_at(position, 0.05), samples=2000)
        found = rate(in_parallel(partial(_differs, pair), few, processes))
        yield Line(
            f"samples: 5 points at token {position} in all prompts, 2,000 samples: different",
            found,
            at_least=0.8,
        )
    pair = Pair(0.047, replaced(0.03))
    found = rate(in_parallel(partial(_differs, pair), few, processes))
    yield Line(
        "samples: likeliest token replaced in 3 %, numerics of 0.047 nat: different",
        found,
        at_least=0.8,
    )
    pair = Pair(0.0, moved_at(3, 0.05, prompt=1), samples=2000)
    found = rate(in_parallel(partial(_differs, pair), few, processes))
    yield Line("samples: 5 points at one token in one prompt of 20: different", found)
    pair = Pair(0.047, under_load=replaced(0.3))
    found = rate(in_parallel(partial(_not_steady, pair), few, processes))
    yield Line(
        "samples: both corrupt 30 % under load alike: reference not steady", found, at_least=0.8
    )


def _greedy(cases: int, processes: int) -> Iterator[Line]:
    many = range(cases or 60)
    for numerics in _NUMERICS:
        verdicts = in_parallel(partial(_verdict, GreedyPair(numerics)), many, processes)
        different = rate(verdict == "different" for verdict in verdicts)
        nothing = rate(verdict == "no_difference_found" for verdict in verdicts)
        name = f"greedy: 20 prompts of 128 tokens, numerics of {numerics:g} nat"
        yield Line(f"{name}: different", different, 0.05)
        yield Line(f"{name}: no difference found", nothing, at_least=0.95)
    verdicts = in_parallel(partial(_verdict, GreedyPair(0.047, wrong=0.01)), many, processes)
    found = rate(verdict == "different" for verdict in verdicts)
    yield Line("greedy: 1 % of the tokens wrong: different", found, at_least=0.95)


def _machines(machines: Machines, slower: float, seed: int, *, swapped: bool = False) -> bool:
    return is_called_different(machines.compared(seed, slower, swapped=swapped))


def _sweeps(cases: int, processes: int) -> Iterator[Line]:
    many = range(cases or 400)
    for rounds in (8, 16):
        for name, machines in (
            ("wander of 1 % a round", Machines(0.01, rounds=rounds)),
            ("constant speeds, sd 1.5 %", Machines(0.0, 0.015, rounds=rounds)),
            ("both", Machines(0.01, 0.015, rounds=rounds)),
        ):
            equal = rate(in_parallel(partial(_machines, machines, 0.0), many, processes))
            yield Line(f"sweep: two machines, {name}, {rounds} rounds: differ", equal, 0.05)
        both = Machines(0.01, 0.015, rounds=rounds)
        swapped = partial(_machines, both, 0.0, swapped=True)
        found = rate(in_parallel(swapped, many, processes))
        yield Line(f"sweep: two machines, both, {rounds} rounds, swapped: differ", found, 0.05)
        for slower, is_swapped in ((0.05, True), (0.1, False), (0.15, False)):
            work = partial(_machines, both, slower, swapped=is_swapped)
            found = rate(in_parallel(work, many[:100], processes))
            how = ", swapped" if is_swapped else ""
            yield Line(
                f"sweep: two machines, both, {rounds} rounds{how}: {slower:.0%} slower found", found
            )
        one = Machines(0.03, is_one=True, rounds=rounds)
        equal = rate(in_parallel(partial(_machines, one, 0.0), many, processes))
        yield Line(f"sweep: one machine, wander of 3 %, {rounds} rounds: differ", equal, 0.05)
    one = Machines(0.03, is_one=True)
    found = rate(in_parallel(partial(_machines, one, 0.05), many[:100], processes))
    yield Line("sweep: one machine, wander of 3 %, 8 rounds: 5 % slower found", found, at_least=0.8)

    equal = rate(in_parallel(acceptance_differs, many, processes))
    yield Line("compare: five prompts of each template, acceptance: differ", equal, 0.05)
    better = partial(acceptance_differs, better=0.2)
    found = rate(in_parallel(better, many[:100], processes))
    yield Line("compare: five prompts of each template, 20 points better: found", found)
    for slower in (0.0, 0.02, 0.03):
        said = in_parallel(partial(more_rounds_decided, slower=slower), many[:150], processes)
        known = rate(decided for decided in said if decided is not None)
        yield Line(
            f"compare: N more rounds with an even chance, {slower:.0%} slower: decide", known
        )


def _rollout(pair: tuple[Version, Version], seed: int) -> str:
    found = rollouts(*pair, [seed])
    return next(name for name in ("failed", "successful", "inconclusive") if found[name])


def _rollouts(cases: int, processes: int) -> Iterator[Line]:
    many = range(cases or 25)

    def phases(stable: Version, canary: Version) -> list[str]:
        return in_parallel(partial(_rollout, (stable, canary)), many, processes)

    for requests, pods in ((7.5, 1), (35.0, 1), (150.0, 4)):
        for scatter in (0.2, 0.8):
            stable = Version(requests=requests, scatter=scatter, pods=pods)
            name = f"rollouts: {requests:g} requests a minute, TTFT scatters by {scatter:.0%}"
            equal = phases(stable, stable)
            yield Line(f"{name}: equal canary fails", rate(one == "failed" for one in equal), 0.05)
            unsure = rate(one == "inconclusive" for one in equal)
            yield Line(f"{name}: inconclusive", unsure, 0.25 if requests == 35 else None)
            slower = phases(stable, Version(requests, 1.12, scatter, pods=pods))
            found = rate(one == "failed" for one in slower)
            bar = 0.8 if requests >= 35 else None
            yield Line(f"{name}: canary 12 % slower fails", found, at_least=bar)

    for factor in (1.15, 0.85):
        equal = phases(EQUAL, with_requests(EQUAL, factor))
        more = f"{abs(factor - 1):.0%} {'more' if factor > 1 else 'fewer'} requests"
        failed = rate(one == "failed" for one in equal)
        yield Line(f"rollouts: equal canary with {more}: fails", failed, 0.05)
    slower = phases(EQUAL, with_requests(Version(slower=1.12), 0.85))
    passed = rate(one == "successful" for one in slower)
    yield Line("rollouts: 12 % slower with 15 % fewer requests: succeeds", passed, 0.05)
    for noise in (0.05, 0.1):
        noisy = Version(noise=noise, lasts=60)
        failed = rate(one == "failed" for one in phases(noisy, noisy))
        yield Line(f"rollouts: equal, noise of {noise:.0%} lasting an hour: fails", failed, 0.05)


_TABLES: Final[dict[str, Callable[[int, int], Iterator[Line]]]] = {
    "samples": _sampled,
    "greedy": _greedy,
    "sweeps": _sweeps,
    "rollouts": _rollouts,
}


def main(argv: Sequence[str]) -> int:
    """Prints the tables; returns 1 if a line misses its bar."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibration gates")
    parser.add_argument("--only", choices=tuple(_TABLES), action="append")
    parser.add_argument("--cases", type=int, default=0, help="of each line (default: by table)")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args(argv)

    missed = 0
    print("| what | seen | 95 % bound | bar | |\n|---|---|---|---|---|", flush=True)
    for name in arguments.only or _TABLES:
        begun = time.monotonic()
        for line in _TABLES[name](arguments.cases, arguments.processes):
            print(line, flush=True)
            missed += not line.cleared
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return 1 if missed else 0
