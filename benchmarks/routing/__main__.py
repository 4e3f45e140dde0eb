"""``python -m benchmarks.routing``: does it pay to route requests by their temperature?

60 % of the requests are at temperature 0, 40 % at 1. The same arrivals go to servers that all
speculate, to none that do, or are split: those at 0 to servers that speculate, those at 1 to
servers that do not. Drafts have three tokens, unless a row says one. Steps follow the laws of
``sidecar/demo/step_law.py``, and the acceptance is that of docs/measurements/why.md. It prints
Markdown tables, and takes about ten minutes of one core; ``--part`` and ``--seeds`` make it
shorter.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Final

from benchmarks.routing.fleet import Arrival, Mix, Pool, Served, capacity, chance, serve
from sidecar.analysis.distributions import quantile
from sidecar.demo.scheduler import SimulatorOptions
from sidecar.demo.step_law import H100, LAB, StepLaw
from sidecar.wording.numbers import markdown

_TOKENS: Final = 3
_COLD: Final = frozenset({0.0})
_HOT: Final = frozenset({1.0})
_LOADS: Final = {"low": 0.2, "middle": 0.6, "high": 0.9}
_HEADER: Final = (
    *("load", "servers", "ms a token: T 0", "T 1", "P50", "P99", "P99 against all speculating"),
    *("TTFT P50, ms", "P99", "tokens/s"),
)


@dataclass(frozen=True, slots=True)
class _Draft:
    """Acceptance of three draft tokens at temperatures 0 and 1."""

    name: str
    cold: float
    hot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """A law, its traffic, and what drafts are accepted there."""

    name: str
    law: StepLaw
    mix: Mix
    most_at_once: int
    requests: int  # of a server, so that it is busy for many times as long as a request takes
    drafts: tuple[_Draft, ...]

    def options(self, draft: _Draft | None, tokens: int = _TOKENS) -> SimulatorOptions:
        """A server that speculates with so many tokens of ``draft``, or does not."""
        plain = SimulatorOptions(
            num_speculative_tokens=0,
            prefix_hits=0.0,
            max_num_seqs=self.most_at_once,
            max_num_batched_tokens=8192,
            num_gpu_blocks=10**7,
            law=self.law,
        )
        if draft is None:
            return plain
        return replace(
            plain,
            num_speculative_tokens=tokens,
            cold_acceptance=chance(draft.cold, _TOKENS),
            hot_acceptance=chance(draft.hot, _TOKENS),
            hot_temperature=1.0,
        )


_MACHINES: Final = (
    _Machine(
        name="the lab's CPU, a draft model",
        law=LAB,
        mix=Mix(cold=0.6, prompt=(20, 200), output=(32, 160)),
        most_at_once=16,
        requests=400,
        drafts=(_Draft("greedy", 0.71, 0.40), _Draft("sampled", 0.71, 0.74)),
    ),
    _Machine(
        name="an 8B model on an H100, EAGLE-3",
        law=H100,
        mix=Mix(cold=0.6, prompt=(100, 900), output=(64, 256)),
        most_at_once=256,
        requests=1000,
        drafts=(_Draft("greedy", 0.81, 0.39), _Draft("sampled", 0.81, 0.71)),
    ),
)


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


def _fleets(machine: _Machine, draft: _Draft) -> tuple[_Fleet, ...]:
    """Two servers, and five."""
    drafting = machine.options(draft)
    one_token = machine.options(draft, tokens=1)
    plain = machine.options(None)

    def split(speculating: int, others: int) -> _Arm:
        return _Arm(
            f"{speculating} speculating for T 0, {others} plain",
            (Pool(speculating, drafting, _COLD), Pool(others, plain, _HOT)),
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
            print("\n".join(markdown(_HEADER, rows)), flush=True)
    return 0


def _rows(runs: "_Runs", fleet: _Fleet, load: str, rate: float) -> Iterator[Sequence[str]]:
    """A row for each way to use the servers, at ``rate`` requests a second for each server."""
    baseline = runs.of(fleet.baseline, rate)
    yield (load, fleet.baseline.name, *_cells(baseline, change=""))

    for arm in fleet.others:
        results = runs.of(arm, rate)
        yield (load, arm.name, *_cells(results, change=_change(results, baseline)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """One run: milliseconds, and tokens a second of all servers."""

    cold: float
    hot: float
    median: float
    high: float
    first_median: float
    first_high: float
    tokens_per_second: float


class _Runs:
    """Runs each way to use a machine's servers once; those without drafts are in every table."""

    def __init__(self, machine: _Machine, part: float, seeds: int) -> None:
        """``part`` is that of the usual number of requests; ``seeds`` are of the arrivals."""
        self._machine = machine
        self._requests = round(part * machine.requests)  # of a server
        self._seeds = range(seeds)
        self._known: dict[tuple[tuple[Pool, ...], float], Sequence[_Result]] = {}

    def of(self, arm: _Arm, rate: float) -> Sequence[_Result]:
        """A result for each seed, at ``rate`` requests a second for each server."""
        key = (arm.pools, rate)
        if key not in self._known:
            print(f"{self._machine.name}: {arm.name}", file=sys.stderr, flush=True)
            self._known[key] = [
                _result(serve(arm.pools, self._arrivals(arm, rate, seed))) for seed in self._seeds
            ]
        return self._known[key]

    def _arrivals(self, arm: _Arm, rate: float, seed: int) -> list[Arrival]:
        return self._machine.mix.arrivals(rate * arm.servers, self._requests * arm.servers, seed)


def _result(served: Served) -> _Result:
    every = sorted(value for values in served.per_token.values() for value in values)
    first = sorted(served.first_token)
    return _Result(
        cold=1000 * fmean(served.per_token[0.0]),
        hot=1000 * fmean(served.per_token[1.0]),
        median=1000 * _quantile(every, 0.5),
        high=1000 * _quantile(every, 0.99),
        first_median=1000 * _quantile(first, 0.5),
        first_high=1000 * _quantile(first, 0.99),
        tokens_per_second=served.tokens_per_second,
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return quantile(values, share) or 0.0


def _cells(results: Sequence[_Result], *, change: str) -> Iterator[str]:
    yield f"{fmean(one.cold for one in results):.1f}"
    yield f"{fmean(one.hot for one in results):.1f}"
    yield f"{fmean(one.median for one in results):.1f}"
    yield f"{fmean(one.high for one in results):.1f}"
    yield change
    yield f"{fmean(one.first_median for one in results):,.0f}"
    yield f"{fmean(one.first_high for one in results):,.0f}"
    yield f"{fmean(one.tokens_per_second for one in results):,.0f}"


def _change(results: Sequence[_Result], baseline: Sequence[_Result]) -> str:
    """Of P99 of the time per token, with two standard errors over the arrivals."""
    changes = [now.high / before.high - 1 for now, before in zip(results, baseline, strict=True)]
    if len(changes) == 1:
        return f"{changes[0]:+.0%}"
    error = stdev(changes) / sqrt(len(changes))
    return f"{fmean(changes):+.0%} ± {2 * error:.0%}"


if __name__ == "__main__":
    sys.exit(main())
