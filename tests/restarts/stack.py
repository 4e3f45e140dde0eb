"""A simulated vLLM and the sidecar as processes that can be killed, and Debian's Prometheus.

Prometheus scrapes the sidecar.

How ``increase()`` is measured, so that its own known effects do not count:

- It extrapolates to the ends of its range. Here that begins and ends exactly at a scrape, each in
  an idle phase.
- It does not see a new series' first value. Here traffic of every kind precedes the range.
- It misses what was counted between the last scrape and the end of vLLM. Here vLLM drains and is
  scraped once more before it is killed, or its engine ends. The sidecar is killed in the middle of
  the traffic.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import aiohttp

from sidecar.analysis.split.tallies import TemperatureBuckets
from tests.app.app_tools import sidecar_settings
from tests.debian_servers import free_port, running_prometheus, scraping
from tests.restarts.vllm import STEP, Options, command
from tests.waiting import START_SECONDS, until

SCRAPE_INTERVAL = "500ms"  # Prometheus'
POLL_INTERVAL = "250ms"  # the sidecar's
RATE_WINDOW = "10s"  # ten of the plug-in's reports
SERIES = {
    "temperature": "specdec_drafts_total",
    "engine": "specdec_engine_drafts_total",
    "group": 'specdec_group_drafts_total{by="adapter"}',
}
BUCKETS = TemperatureBuckets()


@dataclass(frozen=True)
class Figures:
    """Drafts by one label's values: the truth and ``increase()``.

    Also how often each series fell, and the highest ``rate()``.

    ``rate`` is of all values together, as a multiple of what the engines cannot exceed.
    """

    truth: dict[str, float]
    increase: dict[str, float]
    falls: dict[str, float]
    rate: float

    def errors(self):
        """How far each value is off, and all of them together, as shares of all drafts."""
        whole = sum(self.truth.values())
        values = {*self.truth, *self.increase}
        errors = {
            value: (self.increase.get(value, 0) - self.truth.get(value, 0)) / whole
            for value in values
        }
        return errors | {"all": sum(errors.values())}


class Stack:
    """The two programs, and a range of time from ``begin`` to ``end``."""

    def __init__(self, http, folder, prometheus, options, settings):
        self._http = http
        self._folder = folder
        self._prometheus = prometheus
        self._options = options
        self._programs = {
            "vllm": (command(options), {}),
            "sidecar": ((sys.executable, "-m", "sidecar", "run"), settings),
        }
        self._processes = {}
        self._ended = Counter()  # the truth of earlier vLLMs

    async def start(self, *names):
        for name in names:
            arguments, environment = self._programs[name]
            with (self._folder / f"{name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *arguments, env=environment, stdout=log, stderr=log
                )
            self._processes[name] = process

    async def kill(self, *names):
        """SIGKILL."""
        if "vllm" in names:
            self._ended = await self.truth()
        for name in names:
            process = self._processes.pop(name)
            process.kill()
            await process.wait()

    async def request(self, action, method="POST"):
        """One request to vLLM, as soon as it listens; the body of its answer."""
        url = f"http://127.0.0.1:{self._options.port}/{action}"

        async def answered():
            with suppress(aiohttp.ClientConnectionError):
                async with self._http.request(method, url) as answer:
                    answer.raise_for_status()
                    return await answer.read() or b"done"

        return await until(answered, seconds=START_SECONDS, pause=0.05)

    async def truth(self):
        """Drafts of all vLLMs so far, by label and value."""
        counts = Counter(self._ended)
        for by, value, count in json.loads(await self.request("truth", "GET")):
            counts[
                by, BUCKETS.label(round(100 * float(value))) if by == "temperature" else value
            ] += count
        return counts

    async def drafted(self, more):
        """Waits for so many more drafts."""
        enough = (await self.truth()).total() + more * len(SERIES)

        async def has_drafted():
            return (await self.truth()).total() >= enough

        await until(has_drafted, seconds=START_SECONDS, pause=0.1)

    async def shows(self, expression):
        """Waits until Prometheus has series for the expression."""
        await self._prometheus.until(expression)

    async def is_scraped(self):
        """Waits for a scrape that describes what is now; returns when it was."""
        await self.shows(f"timestamp(specdec_last_scrape_timestamp_seconds > {time.time() + 0.5})")
        ((_, moment),) = await self._prometheus.instant("timestamp(specdec_up)")
        return moment

    async def drain(self):
        """Ends the traffic; returns when a scrape has shown all of it."""
        await self.request("drain")
        await self.is_scraped()  # by now the sidecar has polled after the plug-in's last report
        return await self.is_scraped()

    async def restart_sidecar(self, times=1, drafts=2000):
        """Each time in the middle of traffic, and so many drafts after the split came back."""
        for _ in range(times):
            await self.kill("sidecar")
            await self.start("sidecar")
            await self.is_scraped()
            await self.shows(SERIES["temperature"])
            await self.drafted(drafts)

    async def begin(self):
        """Starts everything, and begins the range once requests of all kinds have been counted.

        The traffic goes on.
        """
        await self.start("vllm", "sidecar")
        await self.request("traffic")
        await self.is_scraped()
        await self.drafted(1500)
        self._began, self._before = await self.drain(), await self.truth()
        await self.request("traffic")
        await self.drafted(1500)

    async def end(self):
        """Ends the traffic and the range; the figures by label."""
        ended, truth = await self.drain(), await self.truth() - self._before
        return {by: await self._figures(by, truth, ended) for by in SERIES}

    async def _figures(self, by, truth, ended):
        async def ask(expression):
            answer = await self._prometheus.ask("query", query=expression, time=ended)
            return {series["metric"].get(by, ""): float(series["value"][1]) for series in answer}

        series, window = SERIES[by], f"[{round((ended - self._began) * 1000)}ms"
        increase, true = await ask(f"sum by ({by}) (increase({series}{window}]))"), Counter()
        for (label, value), count in truth.items():
            if label == by:
                true[value if value in increase or "other" not in increase else "other"] += count
        falls = await ask(f"max by ({by}) (resets({series}{window}])) > 0")
        rate = await ask(
            f"max_over_time(sum(rate({series}[{RATE_WINDOW}])){window}:{SCRAPE_INTERVAL}])"
        )
        return Figures(
            true, increase, falls, rate.get("", 0.0) / (self._options.concurrency / STEP)
        )


@asynccontextmanager
async def running_stack(http, folder, **options):
    page = f"127.0.0.1:{free_port()}"
    given = Options(free_port(), str(folder / "plugin.sock"), **options)
    own = {
        "SCRAPE_INTERVAL": POLL_INTERVAL,
        "PLUGIN__SOCKET": given.socket,
        "PLUGIN__ADAPTERS": "true",
    }
    settings = sidecar_settings(f"http://127.0.0.1:{given.port}", LISTEN=page, **own)
    async with running_prometheus(
        http, folder, scraping(page, interval=SCRAPE_INTERVAL)
    ) as prometheus:
        stack = Stack(http, folder, prometheus, given, settings)
        try:
            yield stack
        finally:
            for process in stack._processes.values():
                process.kill()
                await process.wait()
