"""``python -m benchmarks.speedup``: every cell of K x load x temperature on the lab, plain and speculating in turn.

Both servers are up at the same time and get traffic one after the other, cell by cell and round by round, so that a
machine that drifts hits both. The curve of plain step times is that of the plain server's own cells. It prints a
Markdown table, and exits with 1 if a speedup is off the clients' by more than 0.07. It takes K's x loads x
(temperatures + 1) x 2 x rounds x seconds, and half a minute for each start.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp

from benchmarks.speedup.cells import Cell, Seen, Server, seconds_per_token
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.speedup import Speedup
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.recording.replay import plain_curves, replay_events

_BAR = 0.07
_START_SECONDS = 300
_TITLES = (
    "K",
    "at once",
    "T",
    "acceptance",
    "plain, ms/token",
    "speculating",
    "clients' speedup",
    "sidecar's",
    "±",
    "off",
)


def main() -> int:
    """Measures and prints; returns the exit code."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left behind
    return asyncio.run(_measure(arguments))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lab", type=Path, required=True, help="the folder with the lab's script `serve`")
    parser.add_argument("--method", default="draft_model", help="draft_model (default) or ngram")
    parser.add_argument("--tokens", type=_integers, default=(1, 3, 5), metavar="K,K")
    parser.add_argument("--loads", type=_integers, default=(1, 4, 8, 16), metavar="N,N")
    parser.add_argument("--temperatures", type=_floats, default=(0.2, 0.6, 1.2), metavar="T,T")
    parser.add_argument("--seconds", type=float, default=35.0, help="of each cell, server and round (default: 35)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--port", type=int, default=8190, help="and the next one")
    parser.add_argument("--option", action="append", default=[], help="of the speculating server; repeatable")
    return parser.parse_args()


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


async def _measure(arguments: argparse.Namespace) -> int:
    sets = list(dict.fromkeys([*((one,) for one in arguments.temperatures), arguments.temperatures]))
    cells = [Cell(at_once, temperatures) for at_once in arguments.loads for temperatures in sets]
    print(f"| {' | '.join(_TITLES)} |\n{'|---' * len(_TITLES)}|", flush=True)
    off = 0
    with _serving(arguments.lab, "off", arguments.port, {}) as plain_url:
        await _ready(plain_url)
        plain = Server(plain_url, 1)
        for tokens in arguments.tokens:
            with _serving(
                arguments.lab, arguments.method, arguments.port + 1, {"K": str(tokens)}, arguments.option
            ) as url:
                await _ready(url)
                server = Server(url, 1)
                seen: dict[Cell, list[tuple[Seen, Seen]]] = {cell: [] for cell in cells}
                for cell in cells[: len(sets)]:  # warm both up
                    await plain.run(cell, 2.0, Seen())
                    await server.run(cell, 2.0, Seen())
                for number in range(arguments.rounds):
                    for cell in cells:
                        print(f"K={tokens}, round {number + 1}: {cell}", file=sys.stderr, flush=True)
                        seen[cell].append((Seen(), Seen()))
                        await plain.run(cell, arguments.seconds, seen[cell][-1][0])
                        await server.run(cell, arguments.seconds, seen[cell][-1][1])
                off += _report(tokens, seen)
    print(f"\n{off} cells off by more than {_BAR}" if off else f"\nno cell off by more than {_BAR}")
    return 1 if off else 0


def _report(tokens: int, seen: Mapping[Cell, Sequence[tuple[Seen, Seen]]]) -> int:
    # One curve for all cells, in the order of time.
    scrapes = [scrape for rounds in seen.values() for plain, _ in rounds for scrape in plain.scrapes]
    curves = plain_curves(sorted(scrapes, key=lambda one: one.at))
    off = 0
    for cell, rounds in seen.items():
        plain = seconds_per_token(record for one, _ in rounds for record in one.records)
        speculating = seconds_per_token(record for _, one in rounds for record in one.records)
        truth = plain / speculating
        found = [speedup for _, one in rounds if (speedup := _speedup(one, curves)) is not None]
        row = [tokens, cell.at_once, "mixed" if len(cell.temperatures) > 1 else cell.temperatures[0]]
        row += [f"{_acceptance(rounds):.2f}", f"{plain * 1000:.1f}", f"{speculating * 1000:.1f}", f"{truth:.2f}"]
        if found:
            mean = sum(one.plain_seconds * one.tokens for one in found)
            mean /= sum(one.actual_seconds * one.tokens for one in found)
            row += [f"{mean:.2f}", f"{2 * max(one.error for one in found):.2f}", f"{mean - truth:+.3f}"]
            off += abs(mean - truth) > _BAR
        else:
            row += ["none", "", ""]
            off += 1
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    return off


def _speedup(seen: Seen, curves: Mapping[str, PlainCurve]) -> Speedup | None:
    """Of the temperature, or in a mix of all together."""
    buckets = TemperatureBuckets()
    result = replay_events(seen.scrapes, seen.records, infer=False, buckets=buckets, curves=curves)
    if result.speed is None:
        return None
    known = [one.speedup for one in result.speed.temperatures.values() if one.speedup is not None]
    return known[0] if len(known) == 1 else result.speed.whole.speedup


def _acceptance(rounds: Sequence[tuple[Seen, Seen]]) -> float:
    known = [one.acceptance for _, seen in rounds for one in seen.records if one.acceptance is not None]
    drafted = sum(one.draft_tokens for one in known)
    return sum(one.accepted_tokens for one in known) / drafted if drafted else 0.0


@contextmanager
def _serving(
    lab: Path, method: str, port: int, environment: Mapping[str, str], options: Sequence[str] = ()
) -> Iterator[str]:
    process = subprocess.Popen(
        [str(lab / "serve"), method, *options],
        env={"TARGET": "target-large", **os.environ, "PORT": str(port), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(_START_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
