"""``python -m benchmarks.routing``: does it pay to route requests by their temperature?

60 % of the requests are at temperature 0, 40 % at 1. The same arrivals go to servers that all
speculate, to none that do, or are split: those at 0 to servers that speculate, those at 1 to
servers that do not. Drafts have three tokens, unless a row says one. Steps follow the laws of
``specdec_tools/demo/step_law.py``, and the acceptance is that of docs/measurements/why.md. It
prints Markdown tables, and takes about ten minutes of one core; ``--part`` and ``--seeds`` make it
shorter.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.routing.fleet import Arrival, Pool, capacity, serve
from benchmarks.routing.machines import COLD, H100_8B, HOT, LAB_CPU, Draft, Machine
from benchmarks.routing.results import HEADER, Result, cells, high_change, result
from sidecar.wording.numbers import markdown

_MACHINES: Final = (LAB_CPU, H100_8B)
_LOADS: Final = {"low": 0.2, "middle": 0.6, "high": 0.9}


@dataclass(frozen=True, slots=True)
class _Arm:
    """A way to use the servers."""

    name: str
    pools: tuple[Pool, ...]

    @property
    def servers(self) -> int:
        """The number of servers in all pools."""
        return sum(pool.servers for pool in self.pools)


@dataclass(frozen=True, slots=True)
class _Fleet:
    """So many servers: what the others are compared with, and these."""

    baseline: _Arm
    others: tuple[_Arm, ...]


def _fleets(machine: Machine, draft: Draft) -> tuple[_Fleet, ...]:
    """Two servers, and five."""
    drafting = machine.options(draft)
    one_token = machine.options(draft, tokens=1)
    plain = machine.options(None)

    def split(speculating: int, others: int) -> _Arm:
        return _Arm(
            f"{speculating} speculating for T 0, {others} plain",
            (Pool(speculating, drafting, COLD), Pool(others, plain, HOT)),
        )

    two = _Fleet(
        baseline=_Arm("2 speculating", (Pool(2, drafting),)),
        others=(
            split(1, 1),
            _Arm("2 speculating, 1 token", (Pool(2, one_token),)),
            _Arm("2 plain", (Pool(2, plain),)),
        ),
    )
    five = _Fleet(
        baseline=_Arm("5 speculating", (Pool(5, drafting),)),
        others=(
            split(2, 3),
            split(3, 2),
            split(4, 1),
            _Arm("5 speculating, 1 token", (Pool(5, one_token),)),
            _Arm("5 plain", (Pool(5, plain),)),
        ),
    )
    return two, five


def main() -> int:
    """Prints the tables; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--part", type=float, default=1.0, help="of the usual number of requests (default: 1)"
    )
    parser.add_argument("--seeds", type=int, default=4, help="of the arrivals (default: 4)")
    arguments = parser.parse_args()

    for machine in _MACHINES:
        arrivals = machine.mix.arrivals(1.0, machine.requests, seed=0)
        rate = capacity(machine.options(machine.drafts[0]), arrivals)
        runs = _Runs(machine, arguments.part, arguments.seeds)
        print(f"\n{machine.name}: a server that speculates can do {rate:.3g} requests a second")
        for draft in machine.drafts:
            accepted = f"{draft.cold:.0%} accepted at T 0, {draft.hot:.0%} at T 1"
            print(f"\n{draft.name} drafts: {accepted}\n")
            rows = [
                row
                for load, share in _LOADS.items()
                for fleet in _fleets(machine, draft)
                for row in _rows(runs, fleet, load, share * rate)
            ]
            print("\n".join(markdown(HEADER, rows)), flush=True)
    return 0


def _rows(runs: "_Runs", fleet: _Fleet, load: str, rate: float) -> Iterator[Sequence[str]]:
    """A row for each way to use the servers, at ``rate`` requests a second for each server."""
    baseline = runs.of(fleet.baseline, rate)
    yield (load, fleet.baseline.name, *cells(baseline, change=""))

    for arm in fleet.others:
        results = runs.of(arm, rate)
        yield (load, arm.name, *cells(results, change=high_change(results, baseline)))


class _Runs:
    """Runs each way to use a machine's servers once; those without drafts are in every table."""

    def __init__(self, machine: Machine, part: float, seeds: int) -> None:
        """``part`` is that of the usual number of requests; ``seeds`` are of the arrivals."""
        self._machine = machine
        self._requests = round(part * machine.requests)  # of a server
        self._seeds = range(seeds)
        self._known: dict[tuple[tuple[Pool, ...], float], Sequence[Result]] = {}

    def of(self, arm: _Arm, rate: float) -> Sequence[Result]:
        """A result for each seed, at ``rate`` requests a second for each server."""
        key = (arm.pools, rate)
        if key not in self._known:
            print(f"{self._machine.name}: {arm.name}", file=sys.stderr, flush=True)
            self._known[key] = [
                result(serve(arm.pools, self._arrivals(arm, rate, seed))) for seed in self._seeds
            ]
        return self._known[key]

    def _arrivals(self, arm: _Arm, rate: float, seed: int) -> list[Arrival]:
        return self._machine.mix.arrivals(rate * arm.servers, self._requests * arm.servers, seed)


if __name__ == "__main__":
    sys.exit(main())
