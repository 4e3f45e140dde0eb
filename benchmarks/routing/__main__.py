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
from collections.abc import Iterator, Mapping, Sequence
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


def _arms(machine: _Machine, draft: _Draft) -> Mapping[str, tuple[Pool, ...]]:
    """The ways to use two servers, and five; the first of each number is what others compare to."""
    drafting = machine.options(draft)
    one_token = machine.options(draft, tokens=1)
    plain = machine.options(None)
    return {
        "2 speculating": (Pool(2, drafting),),
        "1 speculating for T 0, 1 plain": (Pool(1, drafting, _COLD), Pool(1, plain, _HOT)),
        "2 speculating, 1 token": (Pool(2, one_token),),
        "2 plain": (Pool(2, plain),),
        "5 speculating": (Pool(5, drafting),),
        "2 speculating for T 0, 3 plain": (Pool(2, drafting, _COLD), Pool(3, plain, _HOT)),
        "3 speculating for T 0, 2 plain": (Pool(3, drafting, _COLD), Pool(2, plain, _HOT)),
        "4 speculating for T 0, 1 plain": (Pool(4, drafting, _COLD), Pool(1, plain, _HOT)),
        "5 speculating, 1 token": (Pool(5, one_token),),
        "5 plain": (Pool(5, plain),),
    }


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
        print(f"\n{machine.name}: a server that speculates can do {rate:.3g} requests a second")
        for draft in machine.drafts:
            accepted = f"{draft.cold:.0%} accepted at T 0, {draft.hot:.0%} at T 1"
            print(f"\n{draft.name} drafts: {accepted}\n")
            rows = [
                row
                for load, share in _LOADS.items()
                for row in _rows(machine, draft, load, share * rate, arguments)
            ]
            print("\n".join(markdown(_HEADER, rows)), flush=True)
    return 0


def _rows(
    machine: _Machine, draft: _Draft, load: str, rate: float, arguments: argparse.Namespace
) -> Iterator[Sequence[str]]:
    """A row for each way to use the servers, at ``rate`` requests a second for each server."""
    compared: list[_Result] = []
    for name, pools in _arms(machine, draft).items():
        servers = sum(pool.servers for pool in pools)
        results = [
            _result(serve(pools, _arrivals(machine, rate * servers, servers, seed, arguments)))
            for seed in range(arguments.seeds)
        ]
        if len(pools) == 1 and pools[0].options.num_speculative_tokens == _TOKENS:
            compared = results
        print(f"{machine.name}, {draft.name}, {load}: {name}", file=sys.stderr, flush=True)
        yield (load, name, *_cells(results, compared))


def _arrivals(
    machine: _Machine, rate: float, servers: int, seed: int, arguments: argparse.Namespace
) -> list[Arrival]:
    requests = round(arguments.part * machine.requests) * servers
    return machine.mix.arrivals(rate, requests, seed)


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


def _cells(results: Sequence[_Result], compared: Sequence[_Result]) -> Iterator[str]:
    yield f"{fmean(one.cold for one in results):.1f}"
    yield f"{fmean(one.hot for one in results):.1f}"
    yield f"{fmean(one.median for one in results):.1f}"
    yield f"{fmean(one.high for one in results):.1f}"
    yield "" if results is compared else _change(results, compared)
    yield f"{fmean(one.first_median for one in results):,.0f}"
    yield f"{fmean(one.first_high for one in results):,.0f}"
    yield f"{fmean(one.tokens_per_second for one in results):,.0f}"


def _change(results: Sequence[_Result], compared: Sequence[_Result]) -> str:
    """Of P99 of the time per token, with two standard errors over the arrivals."""
    changes = [now.high / before.high - 1 for now, before in zip(results, compared, strict=True)]
    if len(changes) == 1:
        return f"{changes[0]:+.0%}"
    error = stdev(changes) / sqrt(len(changes))
    return f"{fmean(changes):+.0%} ± {2 * error:.0%}"


if __name__ == "__main__":
    sys.exit(main())
