"""``python -m benchmarks.speedup``: every cell of K x load x temperature on the lab.

The plain and the speculating servers take turns.

`make lab` installs the lab; VERSION, DEVICE and LAB choose one, as for `lab/serve`.

All servers are up at the same time, with the plug-in, and get traffic one after the other, cell by
cell and round by round, so that a drift of the machine affects all. The curve of plain step times
is that of the plain server's own cells. What each server said goes through the sidecar's own state.
It prints Markdown tables of the speedups and of the requests' times, and exits with 1 if a speedup
is off the clients' by more than 0.07. It takes (K's + 1) x loads x (temperatures + 1) x rounds x
seconds, and half a minute for each start.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from benchmarks.speedup.cells import Cell, observed
from benchmarks.speedup.tables import BAR, Round, report
from lab.installation import ROOT, installed

_START_SECONDS = 300


def main() -> int:
    """Measures and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--method", default="draft_model", help="one of lab/serve's (default: draft_model)"
    )
    parser.add_argument(
        "--target", default="target-large", help="the lab's model to serve (default: target-large)"
    )
    parser.add_argument("--tokens", type=_integers, default=(1, 3, 5), metavar="K,K")
    parser.add_argument("--loads", type=_integers, default=(1, 4, 8, 16), metavar="N,N")
    parser.add_argument("--temperatures", type=_floats, default=(0.2, 0.6, 1.2), metavar="T,T")
    parser.add_argument(
        "--mixed", action="store_true", help="only all temperatures in turn, none by itself"
    )
    parser.add_argument(
        "--seconds", type=float, default=35.0, help="of each cell, server and round (default: 35)"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--port", type=int, default=8190, help="and the next ones")
    parser.add_argument(
        "--option", action="append", default=[], help="of the speculating servers; repeatable"
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left running
    installed()
    return asyncio.run(_measure(parser.parse_args()))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """One server: a way of speculating, or none."""

    name: str
    method: str
    tokens: int = 0
    options: tuple[str, ...] = ()


def _variants(arguments: argparse.Namespace) -> Iterator[_Variant]:
    """All variants, the plain one first."""
    yield _Variant(name="plain", method="off")
    more = tuple(arguments.option)
    for tokens in arguments.tokens:
        yield _Variant(name=str(tokens), method=arguments.method, tokens=tokens, options=more)


async def _measure(arguments: argparse.Namespace) -> int:
    alone = [] if arguments.mixed else [(temperature,) for temperature in arguments.temperatures]
    sets = list(dict.fromkeys([*alone, arguments.temperatures]))
    cells = [Cell(at_once, temperatures) for at_once in arguments.loads for temperatures in sets]
    variants, measured = list(_variants(arguments)), list[tuple[Cell, Round]]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="speedup-")))
        subprocess.run(
            [sys.executable, "-m", "sidecar", "plugin", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        servers = []
        for port, variant in enumerate(variants, arguments.port):
            url, socket = f"http://127.0.0.1:{port}", folder / f"{port}.sock"
            servers.append(await stack.enter_async_context(observed(url, socket)))
            environment = {"PYTHONPATH": str(folder), "SPECDEC_PLUGIN__SOCKET": str(socket)}
            command = ("--port", str(port), "--target", arguments.target)
            stack.enter_context(_serving(variant, command, environment))
        for port, server in enumerate(servers, arguments.port):
            await _ready(f"http://127.0.0.1:{port}")
            await server.client.connect("the")
            await server.run(cells[-1], 3.0)  # warm it up
        try:
            for number in range(arguments.rounds):
                for cell in cells:
                    print(
                        f"round {number + 1}: {cell.at_once} at once, T {cell.name}",
                        file=sys.stderr,
                        flush=True,
                    )
                    measured.append(
                        (cell, [await server.run(cell, arguments.seconds) for server in servers])
                    )
        finally:  # if stopped, still report what was measured
            off = report([variant.name for variant in variants], servers, measured)
    print(
        f"\n{off} numbers off by more than {BAR}" if off else f"\nno number off by more than {BAR}"
    )
    return 1 if off else 0


@contextmanager
def _serving(
    variant: _Variant, options: Sequence[str], environment: Mapping[str, str]
) -> Iterator[None]:
    process = subprocess.Popen(
        [
            str(ROOT / "lab/serve"),
            variant.method,
            "--tokens",
            str(variant.tokens),
            *options,
            *variant.options,
        ],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
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
