"""``python -m benchmarks.speedup.contexts``: speedup over short and long contexts, on the lab.

A plain and a speculating server (draft_model, K = 3, T 0.6) take turns, cell by cell and round by
round: 4 and 8 requests at once, with prompts of 20 and of 1,900 tokens that are in the prefix
cache. The baseline is what `specdec-sidecar baseline` measures on the plain server beforehand.

It prints the baseline and a Markdown table, also when it is interrupted, and exits with 1 if a cell
is off by more than 0.07 and two standard errors of the truth. The truth is the clients' time per
token without / with speculation, after the first token and, in a column of its own, including it.
It takes the baseline's time, (2 x cells x rounds x (seconds + 2)), and a minute.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

import yaml

from benchmarks.speedup.__main__ import _ready, _serving, _Variant
from benchmarks.speedup.cells import (
    Cell,
    CellTraffic,
    ObservedServer,
    observed,
    seconds_per_token,
)
from benchmarks.speedup.tables import BAR, replayed
from lab.installation import installed
from sidecar.settings import load_settings
from sidecar.settings.baselines import PlainStepTimes
from specdec_tools.commands.baseline import measure
from specdec_tools.measuring.client import Sample
from specdec_tools.measuring.workload import RequestOptions
from specdec_tools.plain.document import plain_steps

_LOADS = (1, 4, 8)
# The lab's models take 2,048 tokens: the longest prompts, and twice the output, have to fit.
_CONTEXTS = (20, 300, 1800)
_OUTPUT = 50
_TEMPERATURE = 0.6
_CELLS = "4x20,8x20,4x1900,8x1900"
_COLUMNS = (
    "at once",
    "prompt",
    "plain, ms",
    "speculating, ms",
    "clients' ± standard error",
    "with the first token",
    "shown ± standard error",
    "off",
    "off, with the first token",
)

Curves = Mapping[str, PlainStepTimes]  # by model


@dataclass(slots=True)
class _Measured:
    """One cell: the traffic of each round, on the plain and on the speculating server."""

    cell: Cell
    plain: list[CellTraffic] = field(default_factory=list)
    speculating: list[CellTraffic] = field(default_factory=list)

    def truth(self, seconds: Callable[[Sequence[CellTraffic]], float]) -> tuple[float, float]:
        """The clients' speedup, and its standard error from how the rounds differ."""
        pairs = list(zip(self.plain, self.speculating, strict=True))
        plain = seconds([before for before, _ in pairs])
        actual = seconds([now for _, now in pairs])
        ratios = [seconds([before]) / seconds([now]) for before, now in pairs]
        error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else inf
        return plain / actual, error


def _after_first(traffic: Sequence[CellTraffic]) -> float:
    return seconds_per_token(_samples(traffic))


def _with_first(traffic: Sequence[CellTraffic]) -> float:
    seconds = tokens = 0.0
    for sample in _samples(traffic):
        if sample.duration is not None and sample.tokens:
            seconds += sample.duration
            tokens += sample.tokens
    return seconds / tokens


def _samples(traffic: Sequence[CellTraffic]) -> Iterator[Sample]:
    return (sample for part in traffic for sample in part.samples)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each cell and server")
    parser.add_argument(
        "--baseline",
        default="720",
        metavar="SECONDS or FILE",
        help="how long to measure the baseline, or one that was (default: 720)",
    )
    parser.add_argument(
        "--cells",
        type=_cells,
        default=_CELLS,
        metavar="NxTOKENS,…",
        help=f"requests at once x tokens of their prompts (default: {_CELLS})",
    )
    parser.add_argument("--method", default="draft_model")
    parser.add_argument("--port", type=int, default=8190, help="and the next one")
    return parser.parse_args(argv)


def _cells(text: str) -> tuple[Cell, ...]:
    pairs = [part.split("x") for part in text.split(",")]
    return tuple(Cell(int(at_once), (_TEMPERATURE,), int(tokens)) for at_once, tokens in pairs)


def main() -> int:
    """Measures and prints; returns the exit code."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left running
    installed()
    with TemporaryDirectory(prefix="speedup-") as name, ExitStack() as stack:
        folder = Path(name)
        subprocess.run(
            [sys.executable, "-m", "sidecar", "plugin", name],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        servers = stack.enter_context(_servers(options, folder))
        return asyncio.run(_measure(options, servers))


Served = tuple[str, Path]
"""A server's URL, and the socket to which its plug-in sends."""


@contextmanager
def _servers(options: argparse.Namespace, folder: Path) -> Iterator[list[Served]]:
    variants = (
        _Variant(name="plain", method="off"),
        _Variant(name="3", method=options.method, tokens=3),
    )
    served = []
    with ExitStack() as stack:
        for port, variant in enumerate(variants, options.port):
            socket = folder / f"{port}.sock"
            environment = {"PYTHONPATH": str(folder), "SPECDEC_PLUGIN__SOCKET": str(socket)}
            command = ("--port", str(port), "--target", "target-large")
            stack.enter_context(_serving(variant, command, environment))
            served.append((f"http://127.0.0.1:{port}", socket))
        yield served


async def _measure(options: argparse.Namespace, served: Sequence[Served]) -> int:
    for url, _ in served:
        await _ready(url)
    return await compare(options, served)


async def compare(options: argparse.Namespace, served: Sequence[Served]) -> int:
    """Measures servers that are up, the plain one first, and prints; returns the exit code."""
    print(f"load average {os.getloadavg()}", file=sys.stderr, flush=True)
    curves = await _baseline(*served[0], options.baseline)

    results = [_Measured(cell) for cell in options.cells]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(observed(url, socket)) for url, socket in served]
        try:
            await _rounds(servers, results, options)
        finally:  # if stopped, still report what was measured
            code = _report(results, servers[1], curves)
    print(f"load average {os.getloadavg()}", file=sys.stderr, flush=True)
    return code


async def _baseline(url: str, socket: Path, given: str) -> Curves:
    """As ``specdec-sidecar baseline --load 1,4,8 --context 20,300,1800`` measures it."""
    if not given.replace(".", "").isdigit():
        return load_settings(None, {"SPECDEC_BASELINE_FILE": given}).measured.plain_steps

    options = RequestOptions(endpoint="completions", max_tokens=_OUTPUT)
    measured = await measure(
        url,
        load_settings(None, {}),
        float(given),
        _LOADS,
        options,
        contexts=_CONTEXTS,
        socket=socket,
    )
    curves = measured.curves()
    if not curves:
        sys.exit("the baseline has no step times: measure longer")

    document = {model: plain_steps(curve, measured.until) for model, curve in curves.items()}
    print(yaml.safe_dump({"plain_steps": document}, sort_keys=False, default_flow_style=None))
    sys.stdout.flush()
    return curves


async def _rounds(
    servers: Sequence[ObservedServer], results: Sequence[_Measured], options: argparse.Namespace
) -> None:
    for server in servers:
        await server.client.connect("the")
        await server.calibrate()
        for result in results:
            await server.run(result.cell, 1.0)  # so that its prompts are in the cache

    turns = cycle((servers, servers[::-1]))  # neither always follows the other
    for number in range(options.rounds):
        for result in results:
            both = {id(one): await one.run(result.cell, options.seconds) for one in next(turns)}
            plain, speculating = (both[id(server)] for server in servers)
            what = f"round {number + 1}: {result.cell.name}"
            if not plain.samples or not speculating.samples:
                faults = [server.client.last_fault for server in servers]
                print(f"{what}: left out, no replies: {faults}", file=sys.stderr, flush=True)
                continue
            result.plain.append(plain)
            result.speculating.append(speculating)
            ratio = _after_first([plain]) / _after_first([speculating])
            print(f"{what}: clients' {ratio:.3f}", file=sys.stderr, flush=True)


def _report(results: Iterable[_Measured], server: ObservedServer, curves: Curves) -> int:
    _print(_COLUMNS)
    _print(["---"] * len(_COLUMNS))
    is_off = False
    for result in results:
        if result.plain and result.speculating:
            is_off |= _row(result, server, curves)
    return int(is_off)


def _row(result: _Measured, server: ObservedServer, curves: Curves) -> bool:
    """Prints a cell; returns whether it is off or withheld."""
    truth, error = result.truth(_after_first)
    whole, whole_error = result.truth(_with_first)
    columns = [
        str(result.cell.at_once),
        str(result.cell.prompt_tokens),
        f"{1000 * _after_first(result.plain):.1f}",
        f"{1000 * _after_first(result.speculating):.1f}",
        f"{truth:.3f} ± {error:.3f}",
        f"{whole:.3f} ± {whole_error:.3f}",
    ]

    models = [replayed(server, part, curves) for part in result.speculating]
    speeds = [model.speed for model in models if model is not None and model.speed is not None]
    known = [speed.speedup for speed in speeds if speed.speedup is not None]
    if len(known) < len(models):
        why = {str(speed.withheld) for speed in speeds if speed.withheld is not None}
        _print([*columns, f"withheld {len(models) - len(known)} times: {', '.join(why)}", "", ""])
        return True

    plain = sum(one.tokens * one.plain_seconds for one in known)
    actual = sum(one.tokens * one.actual_seconds for one in known)
    shown = plain / actual
    # Most of a round's error is the baseline's, which is common to all rounds.
    shown_error = fmean(one.error for one in known)
    _print(
        [
            *columns,
            f"{shown:.3f} ± {shown_error:.3f}",
            f"{shown - truth:+.3f}",
            f"{shown - whole:+.3f}",
        ]
    )
    return abs(shown - truth) > BAR + 2 * error


def _print(columns: Sequence[str]) -> None:
    print(f"| {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
