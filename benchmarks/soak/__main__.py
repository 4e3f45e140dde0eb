"""A million requests and 100,000 polls: ``nice -n 19 taskset -c 0 python -m benchmarks.soak --source proxy``.

Everything runs on the simulated vLLM, with time compressed: replies of a few tokens, and a poll every few milliseconds,
with the windows shortened alike. Prints a line a minute, then a table: failed requests, sums against vLLM's own and the
clients', the slope of the resident memory, tasks left over. Exits 1 if a bar is missed. ``--minutes`` ends it early.
"""

import argparse
import asyncio
import contextlib
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import aiohttp
import uvloop

from benchmarks.faults.programs import Program
from benchmarks.soak.lab import samples
from benchmarks.soak.load import Load
from benchmarks.table import Row, report
from tests.debian_servers import free_port

WARM = 0.2  # share of the run that does not count for the slope: buffers and windows fill


class Moment(NamedTuple):
    """``rss`` in MiB."""

    requests: int
    rss: float


class Soak:
    """One run: a vLLM, a sidecar and the load."""

    def __init__(self, folder: Path, source: str, requests: int, interval: float, *, inferred: bool) -> None:
        self.vllm_port, self.proxy_port = free_port(), free_port()
        self.vllm_url = f"http://127.0.0.1:{self.vllm_port}"
        socket = {"SPECDEC_MIDDLEWARE__SOCKET": str(folder / "events.sock")}
        settings = socket | {
            "SPECDEC_VLLM_URL": self.vllm_url,
            "SPECDEC_LISTEN": "127.0.0.1:0",
            "SPECDEC_REQUESTS__SOURCE": source,
            "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{self.proxy_port}",
            "SPECDEC_SCRAPE_CPU_SHARE": "1",
            "SPECDEC_LATENCY_WINDOW": "10s",
            "SPECDEC_HISTORY": "30s",
        }
        self.log = folder / "sidecar.log"
        python = (sys.executable, "-m")
        vllm = ("benchmarks.faults.vllm", str(self.vllm_port), "1000", *["inferred"] * inferred)
        self.vllm = Program(folder / "vllm.log", *python, *vllm, environment=socket)
        self.sidecar = Program(self.log, *python, "benchmarks.soak.watched", str(interval), environment=settings)
        self.port = self.proxy_port if source == "proxy" else self.vllm_port
        self.load = Load(requests)
        self.moments: list[Moment] = []

    async def start(self) -> None:
        self.vllm.start()
        await self.vllm.until_answers(f"{self.vllm_url}/health")
        self.sidecar.start()
        while not self.log.read_text().endswith("\n"):
            assert self.sidecar.running, self.log.read_text()
            await asyncio.sleep(0.1)
        self.ours = f"http://{self.log.read_text().splitlines()[0]}"

    async def run(self, seconds: float) -> None:
        """Sends the load, reading the page as a Prometheus does."""
        begun = time.monotonic()
        sending = asyncio.create_task(self.load.run(self.port, 16))
        async with aiohttp.ClientSession() as session:
            while not sending.done():
                await asyncio.wait([sending], timeout=5)
                async with session.get(f"{self.ours}/metrics") as response:
                    await response.read()
                self.moments.append(Moment(self.load.sent, self._rss()))
                if len(self.moments) % 12 == 1:
                    tasks = self.log.read_text().splitlines()[-1]
                    minutes, (requests, rss) = (time.monotonic() - begun) / 60, self.moments[-1]
                    print(f"{minutes:.1f} min: {requests} requests, {rss:.1f} MiB, {tasks} tasks", flush=True)
                if time.monotonic() - begun > seconds:
                    self.load.left = 0
        await sending

    def _rss(self) -> float:
        status = Path(f"/proc/{self.sidecar.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    async def settled(self) -> tuple[dict[str, float], dict[str, float]]:
        """Our page and vLLM's, once ours has all events; or as they are after a minute."""
        async with aiohttp.ClientSession() as session:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60):
                    while (await self._page(session))["specdec_request_events_total"] < self.load.completed:
                        await asyncio.sleep(0.5)
            await asyncio.sleep(1.5)  # one more poll, and one more rendering
            return await self._page(session), await samples(session, self.vllm_url, "vllm:")

    async def _page(self, session: aiohttp.ClientSession) -> dict[str, float]:
        return await samples(session, self.ours, "specdec_")


def slope(moments: list[Moment]) -> tuple[float, float]:
    """MiB a million requests, and its standard error: of medians of blocks, since neighbours are not independent."""
    late = [moment for moment in moments if moment.requests >= WARM * moments[-1].requests]
    size = max(len(late) // 20, 1)
    blocks = [late[start : start + size] for start in range(0, len(late) - size + 1, size)]
    x = [statistics.fmean(one.requests for one in block) / 1e6 for block in blocks]
    y = [statistics.median(one.rss for one in block) for block in blocks]
    fit = statistics.linear_regression(x, y)
    rest = sum((b - fit.slope * a - fit.intercept) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    return fit.slope, math.sqrt(rest / max(len(x) - 2, 1) / spread)


async def main(source: str, requests: int, interval: float, seconds: float, *, inferred: bool) -> int:
    with tempfile.TemporaryDirectory() as name:
        soak = Soak(Path(name), source, requests, interval, inferred=inferred)
        try:
            await soak.start()
            began = time.monotonic()
            await soak.run(seconds)
            lasted = time.monotonic() - began
            page, truth = await soak.settled()
            await soak.sidecar.stop()
            lines = soak.log.read_text().splitlines()
        finally:
            soak.sidecar.kill()
            soak.vllm.kill()
    tasks = [int(line) for line in lines if line.isdecimal()]
    load, (rate, error) = soak.load, slope(soak.moments)
    polls = page["specdec_kv_cache_sampled_usage_ratio_count"]
    print(f"\n{load.sent} requests and {polls:.0f} polls in {lasted / 60:.1f} min, {load.sent / lasted:.0f} requests/s;"
          f" RSS {soak.moments[0].rss:.1f} MiB at first, {soak.moments[-1].rss:.1f} at last; "
          f"at most {max(tasks)} tasks\n")  # fmt: skip
    print(*[line for line in lines[1:] if not line.isdecimal()][:10], sep="\n")  # what the sidecar logged
    drafted, accepted = (f"vllm:spec_decode_num_{kind}_tokens_total" for kind in ("draft", "accepted"))
    generated = "vllm:generation_tokens_total"
    rows = [
        Row("requests failed", f"of {load.sent}", load.failed, at_most=0),
        _equal("requests seen", page["specdec_request_events_total"], load.sent),
        _equal("events dropped", page["specdec_request_events_dropped_total"], 0),
        _equal("tokens, vLLM's and the clients'", truth[generated], load.tokens),
        _equal("tokens, ours and vLLM's", page["specdec_generation_tokens_total"], truth[generated]),
        _equal("draft tokens, the engine's", page["specdec_engine_draft_tokens_total"], truth[drafted]),
        _equal("failed polls", page["specdec_scrape_errors_total"], 0),
        _equal("internal errors", page["specdec_internal_errors_total"], 0),
        Row("RSS, MiB a million requests", f"{rate:.2f} ± {error:.2f}, less two errors", rate - 2 * error, at_most=1),
        Row("tasks left when stopped", f"{tasks[-2]} before", tasks[-1], at_most=0),
    ]  # fmt: skip
    if not inferred:  # some of those inferred are withheld, or wait for more data
        rows += [
            _equal("requests counted", page["specdec_requests_total"], load.sent),
            _equal("draft tokens, of all requests", page["specdec_draft_tokens_total"], truth[drafted]),
            _equal("accepted tokens, of all requests", page["specdec_accepted_tokens_total"], truth[accepted]),
        ]
    return report(rows)


def _equal(what: str, found: float, expected: float) -> Row:
    return Row(what, f"{found:.0f} of {expected:.0f}", abs(found - expected), at_most=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--source", choices=("proxy", "middleware"), default="proxy")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--interval", type=float, default=0.02, help="seconds between polls")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--inferred", action="store_true", help="vLLM reports no numbers per request")
    given = parser.parse_args()
    seconds = given.minutes * 60
    sys.exit(uvloop.run(main(given.source, given.requests, given.interval, seconds, inferred=given.inferred)))
