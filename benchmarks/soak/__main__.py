"""Requests without end, and a sidecar that may die.

Run it as ``nice -n 19 python -m benchmarks.soak --minutes 15``.

The simulated vLLM, observed by the plug-in, runs fast beside a sidecar that polls ten times a
second, with its windows shortened alike. With ``--kill-every 12`` the sidecar is killed (SIGKILL)
that many seconds after its first good page, and started again. Prints a table; exits 1 if a bar is
missed.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.table import Row, report
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.debian_servers import free_port

WARM = 0.2  # share of the run left out of the slope, while buffers and windows fill
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")


async def samples(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The page's samples summed by name, and ``series``, their number; empty without a page."""
    try:
        async with http.get(f"{url}/metrics") as response:
            text = await response.text()
    except (aiohttp.ClientError, TimeoutError):
        return {}
    sums = {"series": 0.0}
    for sample in (
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ):
        sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        sums["series"] += 1
    return sums


class Soak:
    """One run: a vLLM, its traffic, and one sidecar after another.

    The last sidecar stays until the end.
    """

    def __init__(
        self, vllm: SimulatedVllm, traffic: Traffic, folder: Path, kill_every: float, until: float
    ) -> None:
        """``kill_every`` is in seconds, 0 for never.

        The traffic ends at ``until`` (monotonic time) or soon after.
        """
        self.up_after: list[float] = []  # seconds from each sidecar's start to its first good page
        self.resident: list[tuple[int, float]] = []  # MiB, by the requests completed until then
        self.series: list[int] = []
        self.draft_tokens = 0.0  # on the last page
        self._vllm, self._traffic, self._folder = vllm, traffic, folder
        self._kill_every, self._until = kill_every, until
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SPECDEC_")
        } | {
            "SPECDEC_VLLM_URL": vllm.url,
            "SPECDEC_LISTEN": f"127.0.0.1:{port}",
            "SPECDEC_PLUGIN__SOCKET": str(folder / "plugin.sock"),
            "SPECDEC_SCRAPE_INTERVAL": "100ms",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
            "SPECDEC_LATENCY_WINDOW": "30s",
            "SPECDEC_HISTORY": "1m",
        }

    async def run(self) -> None:
        """Runs until the traffic has ended and the last sidecar has counted everything."""
        sending = asyncio.create_task(self._traffic.run())
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while not sending.done():
                with (self._folder / "sidecar.log").open("ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "sidecar", "run"), env=self._environment, stderr=log
                    )
                try:
                    await self._watch(http, sending)
                finally:
                    process.kill()
                    await process.wait()
        await sending

    async def _watch(self, http: aiohttp.ClientSession, sending: "asyncio.Task[None]") -> None:
        """Watches one sidecar until it is time to kill it."""
        began, up_at = time.monotonic(), 0.0
        while True:
            page = await samples(http, self._url)
            if page:
                self._note(page)
            if not up_at and page.get("specdec_up") == 1:
                up_at = time.monotonic()
                self.up_after.append(up_at - began)
            if sending.done() and all(
                page.get(f"specdec_{name}_total") == counted(self._vllm, name) for name in COUNTERS
            ):
                return
            now = time.monotonic()
            if up_at and now > max(self._until, up_at + 5.0):
                # Not before it is up: an idle engine's plug-in looks for a sidecar only with the
                # next request.
                self._traffic.stop()
            if self._kill_every and up_at and up_at + self._kill_every < now < self._until:
                return
            await asyncio.sleep(1.0 if up_at else 0.05)

    def _note(self, page: dict[str, float]) -> None:
        self.resident.append(
            (self._traffic.completed, page["process_resident_memory_bytes"] / 2**20)
        )
        self.series.append(int(page["series"]))
        self.draft_tokens = page.get("specdec_draft_tokens_total", 0.0)


def counted(vllm: SimulatedVllm, name: str) -> float:
    """The simulated vLLM's own counter."""
    labels = {"model_name": vllm.options.model_name, "engine": vllm.options.engine}
    return vllm.page.registry.get_sample_value(f"vllm:spec_decode_num_{name}_total", labels) or 0.0


async def run(minutes: float, kill_every: float) -> int:
    """Returns 0 if every bar is cleared, else 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = SimulatorOptions(speed=50.0, max_num_seqs=32)
        async with SimulatedVllm(options, plugin_socket=folder / "plugin.sock") as vllm:
            sent = TrafficOptions(
                (MIXED,), concurrency=16, max_requests=100_000_000, min_tokens=2, max_tokens=12
            )
            traffic = Traffic(vllm, sent)
            soak = Soak(vllm, traffic, folder, kill_every, time.monotonic() + minutes * 60)
            await asyncio.wait_for(soak.run(), minutes * 60 + 300)
            tokens = counted(vllm, "draft_tokens")
    rows = [
        Row(
            "requests failed", f"of {traffic.completed + traffic.failed}", traffic.failed, at_most=0
        ),
        Row(
            "draft tokens that only vLLM counted",
            f"of {tokens:.0f}",
            tokens - soak.draft_tokens,
            at_most=0,
        ),
    ]
    if not kill_every:
        late = soak.series[len(soak.series) // 2 :]
        rows.append(
            Row(
                "series at the end, less those half way",
                f"{late[-1]}",
                late[-1] - late[0],
                at_most=0,
            )
        )
        rows.append(_slope(soak.resident))
    until_up = f"from start to specdec_up 1 {statistics.median(soak.up_after):.1f} s"
    print(
        f"{traffic.completed} requests in {minutes:g} min; sidecars: {len(soak.up_after)},"
        f" {until_up}"
    )
    return report(rows)


def _slope(resident: list[tuple[int, float]]) -> Row:
    counted = resident[int(len(resident) * WARM) :]
    slope = statistics.linear_regression(*zip(*counted, strict=True)).slope * 1e6
    measured = f"{counted[0][1]:.1f} MiB after a fifth, {counted[-1][1]:.1f} at last"
    return Row("resident memory, MiB a million requests", measured, slope, at_most=2)


def main() -> int:
    """Parses the arguments and runs; returns the exit code."""
    description = (
        "Requests without end, and a sidecar that may die:"
        " ``nice -n 19 python -m benchmarks.soak --minutes 15``."
    )
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=description)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--kill-every", type=float, default=0.0, metavar="SECONDS")
    arguments = parser.parse_args()
    return asyncio.run(run(arguments.minutes, arguments.kill_every))


if __name__ == "__main__":
    sys.exit(main())
