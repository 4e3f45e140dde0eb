"""The step time of a real vLLM with and without the plug-in, in one process.

The turns come in random order.

Two processes with equal settings differ by more than the plug-in costs, and so do rounds that
alternate between two.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Final, NamedTuple

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.plugin import switch
from benchmarks.plugin.switch import WITHOUT
from benchmarks.table import Row
from lab.installation import ROOT, installed
from specdec_tools.commands.plugin import write_plugin
from tests.requests.plain_receiver import PlainReceiver

MINUTES = float(os.environ.get("MINUTES", "30"))
RUNNING, TOKENS, PORT = 16, 120, 8110
_LATENCY: Final = "vllm:inter_token_latency_seconds"
_DRAFT_TOKENS: Final = "vllm:spec_decode_num_draft_tokens_total"


class _Turn(NamedTuple):
    """Seconds per step of a round with the plug-in and of two without it.

    The difference of those two is the control.
    """

    observed: float
    without: float
    again: float


def lab_rows() -> Iterator[Row]:
    """Takes turns for MINUTES."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_plugin(folder)
        shutil.copy(switch.__file__, folder / "specdec_switch.py")
        for points in folder.glob("*.dist-info/entry_points.txt"):
            points.write_text(points.read_text().replace("specdec_plugin:", "specdec_switch:"))
        receiver = PlainReceiver(folder / "s")  # type: ignore[no-untyped-call]
        paths = {"PYTHONPATH": str(folder), "SPECDEC_PLUGIN__SOCKET": str(receiver.path)}
        url = stack.enter_context(_server(paths | {"VLLM_CPU_OMP_THREADS_BIND": "0"}))
        turns, drafted = asyncio.run(_turns(url))
    reported = receiver.only.totals()[1]
    yield Row(
        "draft tokens reported on the lab", f"of vLLM's {drafted:.0f}", reported, drafted, drafted
    )
    cost, error = _difference([turn.observed - (turn.without + turn.again) / 2 for turn in turns])
    drift = _difference([turn.again - turn.without for turn in turns])
    control = "without against without {:+.2f} ± {:.2f} ms".format(*drift)
    step = 1000 * mean(turn.without for turn in turns)
    measured = (
        f"{len(turns)} turns, {RUNNING} running, {step:.1f} ms a step, ± {error:.2f} ms; {control}"
    )
    # Two standard errors: below that, a cost cannot be drafted from zero.
    yield Row("a step on the lab", measured, cost, at_most=2 * error, unit="ms")


def _difference(seconds: list[float]) -> tuple[float, float]:
    """The mean and its standard error, in milliseconds."""
    return 1000 * mean(seconds), 1000 * stdev(seconds) / sqrt(len(seconds))


@contextmanager
def _server(environment: dict[str, str]) -> Iterator[str]:
    installed()
    process = subprocess.Popen(
        [
            "setpriv",
            "--pdeathsig",
            "KILL",
            str(ROOT / "lab/serve"),
            "draft_model",
            "--port",
            str(PORT),
        ],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield f"http://127.0.0.1:{PORT}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _turns(url: str) -> tuple[list[_Turn], float]:
    """The turns, and the draft tokens that vLLM counted in the rounds with the plug-in."""
    turns: list[_Turn] = []
    drafted, order = 0.0, random.Random(1)
    # One connection per request: vLLM closes idle ones, perhaps just as a request is sent on one.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        await _answers(http, url)
        await _round(http, url, WITHOUT)  # the first round is slower
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end or len(turns) < 2:
            names = ["observed", WITHOUT, f"{WITHOUT}-again"]
            rounds = {}
            for name in order.sample(names, 3):
                rounds[name], draft_tokens = await _round(http, url, name)
                drafted += draft_tokens if name == "observed" else 0
            turns.append(_Turn(*(rounds[name] for name in names)))
    return turns, drafted


async def _round(http: aiohttp.ClientSession, url: str, name: str) -> tuple[float, float]:
    """Seconds per step of RUNNING concurrent requests, and their draft tokens.

    The seconds come from vLLM's own inter-token latency.
    """
    before = await _counters(http, url)
    bodies = [
        {
            "model": "lab",
            "prompt": f"draft {number}",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "seed": number,
        }
        for number in range(RUNNING)
    ]
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(_complete(http, url, body, name))
    seconds, steps, draft_tokens = (
        b - a for a, b in zip(before, await _counters(http, url), strict=True)
    )
    return seconds / steps, draft_tokens


async def _complete(
    http: aiohttp.ClientSession, url: str, body: dict[str, object], name: str
) -> None:
    async with http.post(
        f"{url}/v1/completions", json=body, headers={"X-Request-Id": name}
    ) as response:
        response.raise_for_status()
        await response.read()


async def _counters(http: aiohttp.ClientSession, url: str) -> list[float]:
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    return [samples[name] for name in (f"{_LATENCY}_sum", f"{_LATENCY}_count", _DRAFT_TOKENS)]


async def _answers(http: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(600):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(1)
