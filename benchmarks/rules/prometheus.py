"""Debian's Prometheus with the shipped rules on many copies of one page.

Also the CPU time that queries cost it.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.debian_servers import Prometheus

RULES = Path(__file__).parents[2] / "alerts"


@asynccontextmanager
async def serving(body: Callable[[], bytes]) -> AsyncIterator[str]:
    """Serves a page at ``/metrics``; yields host and port."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(body=body(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def scraping_pods(address: str, pods: int) -> dict[str, Any]:
    """A configuration that scrapes one address as if it were ``pods`` pods.

    Prometheus evaluates the rules with it.
    """
    targets = [
        {"targets": [address], "labels": {"instance": f"pod-{number}:9911"}}
        for number in range(pods)
    ]
    return {
        "global": {"scrape_interval": "30s", "evaluation_interval": "30s"},
        "rule_files": [str(RULES / "recording.yaml"), str(RULES / "alerts.yaml")],
        "scrape_configs": [{"job_name": "vllm", "static_configs": targets}],
    }


async def data(http: aiohttp.ClientSession, prometheus: Prometheus, path: str) -> Any:
    """The ``data`` of one of Prometheus' answers; ``path`` is below ``/api/v1/``."""
    async with http.get(f"{prometheus.url}/api/v1/{path}") as answer:
        return (await answer.json())["data"]


async def cpu_cost(
    http: aiohttp.ClientSession, prometheus: Prometheus, expr: str, at: float, times: int
) -> float:
    """CPU seconds of one evaluation at ``at`` (Unix seconds).

    Those of a query that reads nothing are subtracted.

    Each is the smallest of three means over ``times`` evaluations.
    """
    costs = []
    for query in (expr, "vector(1)"):
        await count(prometheus, query, at)  # loads the data into memory
        means = []
        for _ in range(3):
            before = await cpu_seconds(http, prometheus)
            for _ in range(times):
                await count(prometheus, query, at)
            means.append((await cpu_seconds(http, prometheus) - before) / times)
        costs.append(min(means))
    return max(costs[0] - costs[1], 0.0)


async def count(prometheus: Prometheus, expr: str, at: float) -> float:
    """The number of series that an expression returns at ``at``, in Unix seconds."""
    result = await prometheus.ask("query", query=f"count({expr})", time=f"{at:.3f}")
    return float(result[0]["value"][1]) if result else 0.0


async def cpu_seconds(http: aiohttp.ClientSession, prometheus: Prometheus) -> float:
    """CPU time of the process so far; unlike wall time, it does not depend on other load."""
    return await own_metric(http, prometheus, "process_cpu_seconds_total")


async def own_metric(http: aiohttp.ClientSession, prometheus: Prometheus, name: str) -> float:
    """Of Prometheus itself, summed over labels."""
    async with http.get(f"{prometheus.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if _named(line) == name)


def _named(line: str) -> str:
    return line.partition(" ")[0].partition("{")[0]
