"""How far P50, P99 and their gap are off: by the requests' own times, and by vLLM's buckets.

``python -m benchmarks.latencies`` runs the simulated vLLM in real time with loads whose requests
differ by temperature, and two sidecars that read its page, of which one has the plug-in's socket.
Both are compared with the times of all requests that have ended.
"""

import asyncio
import math
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from sidecar.app import running
from sidecar.settings import load_settings
from specdec_tools.demo.scheduler import Request, SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from specdec_tools.demo.traffic import COLD, HOT, MIXED, Mix, Traffic, TrafficOptions

_SECONDS: Final = 40.0
_LOADS: Final[tuple[tuple[str, float, Mix, int], ...]] = (
    ("steps of 10 ms, cold", 0.010, COLD, 8),
    ("steps of 20 ms, cold", 0.020, COLD, 8),
    ("steps of 20 ms, mixed", 0.020, MIXED, 8),
    ("steps of 30 ms, hot", 0.030, HOT, 8),
    ("steps of 60 ms, mixed", 0.060, MIXED, 16),
)
_HEAD: Final = (
    "load",
    "requests",
    "told",
    "of",
    "true, ms",
    "own, ms",
    "by bucket, ms",
    "bucket, ms",
)


@asynccontextmanager
async def _sidecar(url: str, socket: Path) -> AsyncIterator[str]:
    environment = {
        "SPECDEC_VLLM_URL": url,
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_PLUGIN__SOCKET": str(socket),
        "SPECDEC_LOG__LEVEL": "error",
    }
    async with running(load_settings(None, environment)) as address:
        yield f"http://127.0.0.1:{address.port}/api/v1/status"


async def _measured(
    folder: Path, step: float, mix: Mix, concurrency: int
) -> tuple[list[float], list[Mapping[str, Any]]]:
    """The true times per token, and what both sidecars say of them."""
    true: list[float] = []

    def ended(request: Request) -> None:
        true.append(request.time_per_output_token)

    options = SimulatorOptions(step_seconds=step)
    socket = folder / "own.sock"
    load = TrafficOptions(mixes=(mix,), concurrency=concurrency, max_requests=10**9)
    async with (
        SimulatedVllm(options, plugin_socket=socket) as vllm,
        _sidecar(vllm.url, socket) as own,
        _sidecar(vllm.url, folder / "other.sock") as other,
        aiohttp.ClientSession() as http,
    ):
        while not all([(await _status(http, url))["models"] for url in (own, other)]):
            await asyncio.sleep(0.5)  # until both have a first page
        traffic = Traffic(vllm, load, ended=ended)
        sending = asyncio.create_task(traffic.run())
        await asyncio.sleep(_SECONDS)
        traffic.stop()
        await sending
        await asyncio.sleep(2.5)  # so that both have the last one

        said = [await _status(http, url) for url in (own, other)]
    return true, [one["models"][0]["engines"][0]["latencies"]["tpot"] for one in said]


async def _status(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as answer:
        return await answer.json()


def _rows(true: Sequence[float], said: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """P50, P99 and the gap."""
    own, other = said
    ordered = sorted(true)
    half, most = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99))
    for name, key, value in (("P50", "0.5", half), ("P99", "0.99", most), ("gap", "", most - half)):
        texts = []
        for one in (own, other):
            found = one["quantiles"][key] if key else one["gap_seconds"]
            texts.append(_beside(found, value))
        known = other["ranges"][key] if key else other["gap_range"]
        bucket = f"{1000 * known['least']:.0f}-{1000 * known['most']:.0f}"
        yield name, f"{1000 * value:.2f}", *texts, bucket


def _beside(found: float | None, true: float) -> str:
    return "-" if found is None else f"{1000 * found:.2f} ({found / true - 1:+.1%})"


async def _main() -> None:
    print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}")
    for name, step, mix, concurrency in _LOADS:
        with tempfile.TemporaryDirectory() as folder:
            true, said = await _measured(Path(folder), step, mix, concurrency)
        if said[0]["source"] != "requests" or said[1]["source"] != "buckets":
            sys.exit(f"{name}: not by the sources that were to be compared")
        for row in _rows(true, said):
            counts = f"{len(true)} | {said[0]['count']}"
            print(f"| {name} | {counts} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
