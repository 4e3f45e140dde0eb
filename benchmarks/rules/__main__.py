"""What the rules cost over many pods: ``python -m benchmarks.rules [PODS] [MINUTES]``, 1000 and 7 by default.

Every pod is a copy of one real page, reduced to the families that the rules read; its counters grow. Then Prometheus
restarts on the same data, without scraping, and evaluates each rule by itself: CPU seconds, scaled to 1,000 pods.
A run of minutes is too short for rules that look back an hour or a day: benchmarks.rules.past measures those.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.rules.page import counters_of, later, real_page, reduced, series
from benchmarks.rules.prometheus import RULES, Running, at_rest, cpu_cost, evaluating, groups, head_series, serving
from benchmarks.table import Row, report

_SCRAPE = "30s"
_PODS = 1000
_SERIES_BOUND = 1500
_CPU_BOUND = 1.0  # seconds for one evaluation of a group over 1,000 pods
_SHOWN = 16
_TIMES = 8  # evaluations per measurement, as CPU time comes in hundredths of a second


async def main(pods: int, minutes: float) -> int:
    whole = await real_page(20)
    text = (RULES / "recording.yaml").read_text() + (RULES / "alerts.yaml").read_text()
    page, counters = reduced(whole, text), counters_of(whole)
    begun = time.monotonic()

    def body() -> bytes:
        tick = int(time.monotonic() - begun)
        if tick not in bodies:
            bodies.clear()
            bodies[tick] = later(page, counters, 1 + tick / 20)
        return bodies[tick]

    bodies: dict[int, bytes] = {}
    with tempfile.TemporaryDirectory() as directory:
        async with serving(body) as address, evaluating(Path(directory), address, pods, _SCRAPE) as running:
            await asyncio.sleep(minutes * 60)
            found = await groups(running.url)
            failed = {rule["name"] for group in found for rule in group["rules"] if rule["health"] == "err"}
            held = await head_series(running.url)
            ended = time.time()
        async with at_rest(Path(directory)) as running:
            costs = await rule_costs(running, found, ended)
    print(f"{pods} pods, {series(page)} of {series(whole)} series each scraped; Prometheus holds {held} series")
    print(f"rules that failed: {', '.join(sorted(failed)) or 'none'}\n")
    print(f"the most expensive rules, CPU seconds per {_PODS} pods:")
    for (group, rule), seconds in sorted(costs.items(), key=lambda one: -one[1])[:_SHOWN]:
        print(f"  {seconds * _PODS / pods:6.3f}  {group}  {rule}")
    rows = [Row("series of one sidecar", "one model, one engine", series(whole), at_most=_SERIES_BOUND)]
    for name in dict.fromkeys(group for group, _ in costs):
        total = sum(seconds for (group, _), seconds in costs.items() if group == name) * _PODS / pods
        rows.append(Row(f"group {name}", f"one evaluation over {_PODS} pods, CPU", total, at_most=_CPU_BOUND, unit="s"))
    return report(rows) or bool(failed)


async def rule_costs(running: Running, found: list[dict[str, Any]], at: float) -> dict[tuple[str, str], float]:
    """CPU seconds of one evaluation at ``at`` (Unix seconds), by group and rule."""
    costs = {}
    async with aiohttp.ClientSession() as session:
        for group in found:
            for number, rule in enumerate(group["rules"]):
                seconds = await cpu_cost(running, session, rule["query"], at, _TIMES)
                costs[group["name"], f"{number} {rule['name']}"] = seconds
    return costs


if __name__ == "__main__":
    given = [float(argument) for argument in sys.argv[1:3]]
    pods, minutes = [*given, *(1000.0, 7.0)[len(given) :]]
    sys.exit(asyncio.run(main(int(pods), minutes)))
