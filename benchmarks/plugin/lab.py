"""The step time of two real vLLM servers, one with the plug-in, under the same load in turns."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.table import Row
from sidecar.commands.plugin import write_plugin

MINUTES = float(os.environ.get("MINUTES", "30"))
RUNNING, TOKENS = 16, 120


def lab_rows() -> Iterator[Row]:
    """Pairs of rounds for MINUTES; $SPECDEC_LAB is the lab's folder. A sidecar may listen at SPECDEC_PLUGIN__SOCKET."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_plugin(folder)
        plain = stack.enter_context(_server(8110, {}))
        observed = stack.enter_context(_server(8111, {"PYTHONPATH": str(folder)}))
        differences, steps = asyncio.run(_pairs(plain, observed))
    error = stdev(differences) / sqrt(len(differences))
    measured = (
        f"{len(differences)} pairs, {RUNNING} running, {1000 * mean(steps):.1f} ms a step, ± {1000 * error:.2f} ms"
    )
    # Two standard errors: what could not be told from nothing.
    yield Row("a step on the lab", measured, 1000 * mean(differences), at_most=2000 * error, unit="ms")


@contextmanager
def _server(port: int, environment: dict[str, str]) -> Iterator[str]:
    serve = str(Path(os.environ["SPECDEC_LAB"]) / "serve")
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", serve, "draft_model"],
        env={**os.environ, "PORT": str(port), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _pairs(plain: str, observed: str) -> tuple[list[float], list[float]]:
    differences: list[float] = []
    steps: list[float] = []
    # A new connection each: while the other server has its turn, vLLM closes those that are idle.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        for url in (plain, observed):
            await _answers(http, url)
            await _round(http, url)  # the first is slower
        end, turn = time.monotonic() + 60 * MINUTES, 0
        while time.monotonic() < end or len(differences) < 2:
            order = (plain, observed) if turn % 2 else (observed, plain)
            taken = {url: await _round(http, url) for url in order}
            differences.append(taken[observed] - taken[plain])
            steps.append(taken[plain])
            turn += 1
    return differences, steps


async def _round(http: aiohttp.ClientSession, url: str) -> float:
    """Seconds a step, by vLLM's own inter-token latency, of RUNNING requests at once."""
    before = await _latency(http, url)
    bodies = [
        {"model": "lab", "prompt": f"draft {number}", "max_tokens": TOKENS, "ignore_eos": True, "seed": number}
        for number in range(RUNNING)
    ]
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(_complete(http, url, body))
    after = await _latency(http, url)
    return (after[0] - before[0]) / (after[1] - before[1])


async def _complete(http: aiohttp.ClientSession, url: str, body: dict[str, object]) -> None:
    async with http.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        await response.read()


async def _latency(http: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    samples = {one.name: one.value for family in text_string_to_metric_families(text) for one in family.samples}
    name = "vllm:inter_token_latency_seconds"
    return samples[f"{name}_sum"], samples[f"{name}_count"]


async def _answers(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(600):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(1)
