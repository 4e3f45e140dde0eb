"""``python -m benchmarks.speedup.contexts``: speedup over short and long contexts, on the lab.

A plain and a speculating server (draft_model, K = 3, T 0.6) take turns, cell by cell and round by
round: 4 and 8 requests at once, with prompts of 20 and of 1,900 tokens that are in the prefix
cache. The baseline is what `specdec-sidecar baseline` measures on the plain server beforehand.

It prints a Markdown table, and exits with 1 if a cell is off by more than 0.07 and two standard
errors of the truth. It takes the baseline's time, (2 x cells x rounds x seconds), and a minute.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory

from benchmarks.speedup.__main__ import _ready, _serving, _Variant
from benchmarks.speedup.cells import (
    Cell,
    CellTraffic,
    ObservedServer,
    observed,
    seconds_per_token,
)
from benchmarks.speedup.tables import BAR, replayed
from sidecar.commands.baseline import measure
from sidecar.commands.load.workload import RequestOptions
from sidecar.commands.plain.document import plain_steps
from sidecar.settings import load_settings
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.speed import plus_minus

_LOADS = (1, 4, 8)
_CELLS = tuple(Cell(at_once, (0.6,), tokens) for tokens in (20, 1900) for at_once in (4, 8))


@dataclass(slots=True)
class _Measured:
    """One cell: the traffic of each round, on the plain and on the speculating server."""

    cell: Cell
    plain: list[CellTraffic] = field(default_factory=list)
    speculating: list[CellTraffic] = field(default_factory=list)

    def truth(self) -> tuple[float, float]:
        """The clients' speedup, and its standard error from how the rounds differ."""
        plain, actual = map(_seconds, (self.plain, self.speculating))
        ratios = [
            _seconds([before]) / _seconds([now])
            for before, now in zip(self.plain, self.speculating, strict=True)
        ]
        error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("inf")
        return plain / actual, error


def _seconds(traffic: Sequence[CellTraffic]) -> float:
    return seconds_per_token(sample for part in traffic for sample in part.samples)


def main() -> int:
    """Measures and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each cell and server")
    parser.add_argument("--baseline", type=float, default=720.0, help="seconds (default: 720)")
    parser.add_argument("--method", default="draft_model")
    parser.add_argument("--port", type=int, default=8190, help="and the next one")
    return asyncio.run(_measure(parser.parse_args()))


@contextmanager
def _servers(arguments: argparse.Namespace, folder: Path) -> Iterator[None]:
    variants = (
        _Variant(name="plain", method="off"),
        _Variant(name="3", method=arguments.method, tokens=3),
    )
    with ExitStack() as stack:
        for port, variant in enumerate(variants, arguments.port):
            environment = {
                "PYTHONPATH": str(folder),
                "SPECDEC_PLUGIN__SOCKET": str(folder / f"{port}.sock"),
            }
            command = ("--port", str(port), "--target", "target-large")
            stack.enter_context(_serving(variant, command, environment))
        yield


async def _measure(arguments: argparse.Namespace) -> int:
    first, second = arguments.port, arguments.port + 1
    urls = {port: f"http://127.0.0.1:{port}" for port in (first, second)}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="speedup-")))
        subprocess.run(
            [sys.executable, "-m", "sidecar", "plugin", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        stack.enter_context(_servers(arguments, folder))
        for url in urls.values():
            await _ready(url)

        print(f"load average {os.getloadavg()}", file=sys.stderr, flush=True)
        curve = await _baseline(urls[first], folder / f"{first}.sock", arguments.baseline)
        servers = [
            await stack.enter_async_context(observed(url, folder / f"{port}.sock"))
            for port, url in urls.items()
        ]
        results = await _rounds(servers, arguments)

    return _report(results, servers[1], curve)


async def _baseline(url: str, socket: Path, seconds: float) -> PlainStepTimes:
    """As ``specdec-sidecar baseline --load 1,4,8 --context 20,300,2000`` measures it."""
    options = RequestOptions(endpoint="completions", max_tokens=60)
    measured = await measure(
        url,
        load_settings(None, {}),
        seconds,
        _LOADS,
        options,
        contexts=(20, 300, 2000),
        socket=socket,
    )
    (curve,) = measured.curves().values()
    for name, value in plain_steps(curve, measured.until).items():
        print(f"    {name}: {value}", flush=True)
    print()
    return curve


async def _rounds(
    servers: Sequence[ObservedServer], arguments: argparse.Namespace
) -> list[_Measured]:
    results = [_Measured(cell) for cell in _CELLS]
    for server in servers:
        await server.client.connect("the")
        await server.calibrate()
        for cell in _CELLS:
            await server.run(cell, 1.0)  # so that its prompts are in the cache

    turns = cycle((servers, servers[::-1]))  # neither always follows the other
    for number in range(arguments.rounds):
        for result in results:
            print(f"round {number + 1}: {result.cell.name}", file=sys.stderr, flush=True)
            for server in next(turns):
                traffic = await server.run(result.cell, arguments.seconds)
                (result.plain if server is servers[0] else result.speculating).append(traffic)
    return results


def _report(results: Sequence[_Measured], server: ObservedServer, curve: PlainStepTimes) -> int:
    print("| at once | prompt | plain, ms | speculating, ms | clients' | shown | off |")
    print("|---|---|---|---|---|---|---|")
    is_off = False
    for result in results:
        truth, error = result.truth()
        models = [replayed(server, part, {"lab": curve}) for part in result.speculating]
        known = [
            model.speed.speedup
            for model in models
            if model is not None and model.speed is not None and model.speed.speedup is not None
        ]
        plain = sum(one.tokens * one.plain_seconds for one in known)
        actual = sum(one.tokens * one.actual_seconds for one in known)
        why = next((model.speed.withheld for model in models if model and model.speed), None)
        shown = plain / actual if actual else None
        cells = [
            str(result.cell.at_once),
            str(result.cell.prompt_tokens),
            f"{1000 * _seconds(result.plain):.1f}",
            f"{1000 * _seconds(result.speculating):.1f}",
            f"{truth:.3f} ± {error:.3f}",
            f"{why}" if shown is None else f"{shown:.3f} (a round: {plus_minus(known[-1])})",
            "" if shown is None else f"{shown - truth:+.3f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        is_off |= shown is None or abs(shown - truth) > BAR + 2 * error
    return int(is_off)


if __name__ == "__main__":
    sys.exit(main())
