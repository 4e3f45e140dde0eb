"""An hour of a real vLLM's traffic: ``python -m tests.lab.hour 3600``, in the environment of ``make test-lab``.

The sidecar is killed or stopped at random, vLLM is restarted four times, and a liar is connected throughout. At the
end it prints what a real Prometheus makes of the counters (``increase()``), beside vLLM's own sums and, by
temperature, the sums of what vLLM's responses say of themselves. As in ``tests/restarts``, traffic of every kind
precedes the range, and vLLM drains and is scraped before it is killed.
"""

import asyncio
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import aiohttp

from sidecar.analysis.split.tallies import TemperatureBuckets
from tests.debian_servers import free_port, running_prometheus
from tests.demo.http_traffic import send
from tests.lab.conftest import Lab, read_page
from tests.lab.test_lab_split import COUNTS, DEFAULT, MIX, settled
from tests.requests.packets import FINISHED, HELLO, packet, row

RESTARTS = 4
BATCH = 24  # requests
MODEL = "lab"
DISTURBANCES = ("kill", "stop", "stop long")
LABELS = TemperatureBuckets()


def label(temperature):
    return LABELS.label(round(100 * (DEFAULT if temperature is None else temperature)))


class Sidecar:
    """The sidecar as a process that can be killed or stopped."""

    def __init__(self, vllm, folder):
        self.address = f"127.0.0.1:{free_port()}"
        self.log = folder / "sidecar.log"
        self.peak = 0  # KiB of memory
        self._environment = {
            "PATH": os.environ["PATH"],
            "SPECDEC_VLLM_URL": vllm.url,
            "SPECDEC_PLUGIN__SOCKET": str(vllm.socket),
            "SPECDEC_LISTEN": self.address,
            "SPECDEC_SCRAPE_INTERVAL": "1s",
        }

    async def start(self):
        with self.log.open("ab") as log:
            command = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "sidecar", "run")
            self._process = await asyncio.create_subprocess_exec(
                *command, env=self._environment, stdout=log, stderr=log
            )

    async def disturb(self, how, seconds):
        self.measure()
        if how == "kill":
            await self.end()
            await self.start()
        else:
            self._process.send_signal(SIGSTOP)
            await asyncio.sleep(seconds if how == "stop" else 5 * seconds)
            self._process.send_signal(SIGCONT)

    def measure(self):
        with suppress(OSError):
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
            self.peak = max([self.peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))])

    async def end(self):
        self.measure()
        self._process.send_signal(SIGKILL)
        await self._process.wait()


async def lie(path):
    """Claims to be the engine, with numbers of its own: total and rows that do or do not agree, requests, faults."""
    rng, sent = random.Random(1), Counter()
    while True:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as link:
            link.connect(str(path))
            state = rng.choice(["observing"] * 4 + ["disabled", "refused"])
            hello = {**HELLO, "model": MODEL, "start": rng.randbytes(8).hex(), "started": time.time(), "state": state}
            link.send(packet(hello=hello))
            for _ in range(rng.randrange(60)):
                size = rng.choice((1, 100, 10_000, 3_000_000))
                counts = {"stopped": size, "drafts": size, "draft_tokens": 3 * size, "accepted_tokens": size}
                total = {**counts, "length": 0, "aborted": 0, "error": 0} if rng.random() < 0.7 else NO_TOTAL
                rows = {table: [row(key, **counts)] for table, key in TABLES.items()}
                finished = [{**FINISHED, "temperature": 40}] * rng.randrange(8)
                link.send(packet(report={**rows, "finished": finished, "end": {"total": total, "lost": 0}}))
                sent["reports"] += 1
                await asyncio.sleep(rng.uniform(0.2, 1.5))
        await asyncio.sleep(0.5)


NO_TOTAL = dict.fromkeys(("stopped", "length", "aborted", "error", "drafts", "draft_tokens", "accepted_tokens"), 0)
TABLES = {"temperature": 120, "prompt_tokens": 7, "output": "free", "adapter": ""}


class Hour:
    """The programs, and the truth so far: by vLLM's pages, and by its responses."""

    def __init__(self, http, prometheus, vllm, sidecar):
        self._http, self._prometheus, self._vllm, self._sidecar = http, prometheus, vllm, sidecar
        self.pages, self.responses = Counter(), Counter()
        self.requests, self.disturbed = 0, Counter()

    async def work(self, seconds, *, disturbs=True):
        """Traffic for so long, with a sidecar that is disturbed; then everything is idle and scraped."""
        until = time.monotonic() + seconds
        disturbing = asyncio.create_task(self._disturb()) if disturbs else None
        while time.monotonic() < until:
            sent = await send(self._vllm.url, MIX, BATCH, model="lab", seed=self.requests, max_tokens=200)
            assert sent.failed == 0
            self.requests += sent.completed
            for temperature, sums in sent.acceptance.items():
                for name in COUNTS:
                    self.responses[label(temperature), name] += sums[name]
        if disturbing is not None:
            disturbing.cancel()
            await asyncio.gather(disturbing, return_exceptions=True)
            await self._sidecar.disturb("stop", 0)  # it may have been cancelled while stopped
        theirs, _ = await settled(self._vllm, f"http://{self._sidecar.address}")
        self._latest = Counter({name: theirs.value(f"vllm:spec_decode_num_{name}_total") for name in COUNTS})
        await self._is_scraped()

    async def _disturb(self):
        while True:
            await asyncio.sleep(random.uniform(20, 90))
            how = random.choice(DISTURBANCES)
            self.disturbed[how] += 1
            await self._sidecar.disturb(how, random.uniform(1, 8))

    async def _is_scraped(self):
        """Waits for scrapes of both pages that show what is now."""
        now = time.time() + 1.5
        for series in ("specdec_up == 1", "vllm:spec_decode_num_drafts_total"):
            while not await self._prometheus.instant(f"timestamp({series}) > {now}"):
                await asyncio.sleep(0.2)
        ((_, self.at),) = await self._prometheus.instant("timestamp(specdec_up)")

    async def begin(self):
        """Begins the range, after traffic of every kind."""
        await self.work(20, disturbs=False)
        self.began, self._before, self.responses, self.requests = self.at, self._latest, Counter(), 0

    async def restart_vllm(self):
        self.pages += self._latest
        self._vllm.kill()
        await asyncio.sleep(5)
        await self._vllm.start()

    async def dropped(self):
        """What the sidecar has ignored since it last started, by reason."""
        page = await read_page(f"http://{self._sidecar.address}")
        return {
            dict(labels)["reason"]: value
            for (name, labels), value in page.items()
            if name == "specdec_request_events_dropped_total" and value
        }

    async def figures(self):
        """Rows of (what, the truth, ``increase()``)."""
        window = f"[{round((self.at - self.began) * 1000)}ms]"

        async def increase(series, by=""):
            query = f"sum by ({by}) (increase({series}{window}))"
            answer = await self._prometheus.ask("query", query=query, time=self.at)
            return {found["metric"].get(by, ""): float(found["value"][1]) for found in answer}

        for name in COUNTS:
            truth = (self.pages + self._latest)[name] - self._before[name]
            yield f"vLLM's {name}, from its own page", truth, (await increase(f"vllm:spec_decode_num_{name}_total"))[""]
            yield f"specdec_engine_{name}_total", truth, (await increase(f"specdec_engine_{name}_total"))[""]
            yield f"specdec_{name}_total, all", truth, (await increase(f"specdec_{name}_total"))[""]
            split = await increase(f"specdec_{name}_total", "temperature")
            for temperature in sorted({found for found, _ in self.responses} | split.keys()):
                truth = self.responses[temperature, name]
                yield f"specdec_{name}_total, {temperature}", truth, split.get(temperature, 0.0)


async def main(seconds):
    folder = Path(tempfile.mkdtemp(prefix="specdec-hour-"))
    vllm = Lab("draft_model", folder=folder)
    sidecar = Sidecar(vllm, folder)
    targets = [sidecar.address, vllm.url.removeprefix("http://")]
    jobs = [{"job_name": f"job {target}", "static_configs": [{"targets": [target]}]} for target in targets]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    async with aiohttp.ClientSession() as http, running_prometheus(http, folder, config) as prometheus:
        try:
            await sidecar.start()
            await vllm.start()
            lying = asyncio.create_task(lie(vllm.socket))
            hour = Hour(http, prometheus, vllm, sidecar)
            await hour.begin()
            for number in range(RESTARTS + 1):
                await hour.work(seconds / (RESTARTS + 1))
                dropped = await hour.dropped()
                moment = time.strftime("%H:%M:%S")
                print(f"{moment} {hour.requests} requests, {dict(hour.disturbed)}, {dropped}", flush=True)
                if number < RESTARTS:
                    await hour.restart_vllm()
            print("| series | truth | increase() | off |\n|---|---|---|---|")
            async for what, truth, increase in hour.figures():
                print(f"| {what} | {truth:,.0f} | {increase:,.1f} | {increase / truth - 1 if truth else 0:+.2%} |")
            sidecar.measure()
            page = await read_page(f"http://{sidecar.address}")
            print(f"{len(page)} series, {len(sidecar.log.read_text().splitlines())} log lines, peak of the memory "
                  f"{sidecar.peak / 1024:.0f} MiB; lying: {not lying.done()}")  # fmt: skip
            lying.cancel()
        finally:
            vllm.kill()
            await sidecar.end()


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
