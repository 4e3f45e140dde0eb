"""What the rules cost over many pods: ``python -m benchmarks.rules [PODS] [MINUTES]``.

The defaults are 1000 pods and 7 minutes.

Every pod is a copy of one real page, reduced to the families that the rules read; its counters
grow. Then Prometheus restarts on the same data, without scraping, and evaluates each rule by
itself: CPU seconds, scaled to 1,000 pods. Rules that look back an hour or a day are measured on a
day of a few pods' series instead (``benchmarks.rules.past``).

What all rules cost together is their CPU time in 30 s, the interval of the alerts that page: a
group that is evaluated every minute counts half, one of every two minutes a quarter.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.rules.page import counters_of, later, real_page, reduced, series
from benchmarks.rules.past import past_costs
from benchmarks.rules.prometheus import RULES, cpu_cost, data, scraping_pods, serving
from benchmarks.table import Row, report
from sidecar.analysis.series import PROMISED
from tests.debian_servers import running_prometheus

_PODS = 1000
_SECONDS = 30.0
_CPU_BOUND = 1.0  # seconds of CPU in ``_SECONDS``, all rules over 1,000 pods
_SHOWN = 16
_TIMES = 8  # evaluations per measurement, as CPU time comes in hundredths of a second


@dataclass(frozen=True, slots=True)
class RuleCost:
    """CPU seconds of one evaluation over 1,000 pods.

    The rule is evaluated every ``interval`` seconds.
    """

    group: str
    rule: str
    seconds: float
    interval: float

    @property
    def share(self) -> float:
        """CPU seconds in ``_SECONDS``."""
        return self.seconds * _SECONDS / self.interval


async def main(pods: int, minutes: float) -> int:
    whole = await real_page(20)
    text = (RULES / "recording.yaml").read_text() + (RULES / "alerts.yaml").read_text()
    page, counters = reduced(whole, text), counters_of(whole)
    begun = time.monotonic()
    bodies: dict[int, bytes] = {}  # of the current second only

    def body() -> bytes:
        tick = int(time.monotonic() - begun)
        if tick not in bodies:
            bodies.clear()
            bodies[tick] = later(page, counters, 1 + tick / 20)
        return bodies[tick]

    costs = []
    with tempfile.TemporaryDirectory() as name:
        async with aiohttp.ClientSession() as http:
            past, empty = await past_costs(http)
            async with (
                serving(body) as address,
                running_prometheus(http, Path(name), scraping_pods(address, pods)) as running,
            ):
                await asyncio.sleep(minutes * 60)
                groups = (await data(http, running, "rules"))["groups"]
                held = (await data(http, running, "status/tsdb"))["headStats"]["numSeries"]
                ended = time.time()
            async with running_prometheus(http, Path(name), {}) as at_rest:
                for group in groups:
                    for rule in group["rules"]:
                        per_pod = past.get(rule["name"])
                        if per_pod is None:
                            per_pod = (
                                await cpu_cost(http, at_rest, rule["query"], ended, _TIMES) / pods
                            )
                        costs.append(
                            RuleCost(
                                group["name"], rule["name"], per_pod * _PODS, group["interval"]
                            )
                        )
    failed = [
        rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"
    ]
    print(
        f"{pods} pods, {series(page)} of {series(whole)} series each scraped; Prometheus holds"
        f" {held} series"
    )
    print(
        f"rules that failed: {', '.join(failed) or 'none'}; without a result:"
        f" {', '.join(empty) or 'none'}\n"
    )
    _print_costs(costs)
    total = sum(cost.share for cost in costs)
    rows = [
        Row("series of one sidecar", "one model, one engine", series(whole), at_most=PROMISED),
        Row(
            "all rules",
            f"CPU in {_SECONDS:g} s over {_PODS} pods",
            total,
            at_most=_CPU_BOUND,
            unit="s",
        ),
    ]
    return report(rows) or bool(failed or empty)


def _print_costs(costs: list[RuleCost]) -> None:
    print(f"CPU seconds of one evaluation over {_PODS} pods, the most expensive rules:")
    for cost in sorted(costs, key=lambda cost: -cost.seconds)[:_SHOWN]:
        print(f"  {cost.seconds:6.3f}  {cost.group}  {cost.rule}")
    print("and all rules by group:")
    for group in dict.fromkeys(cost.group for cost in costs):
        rules = [cost for cost in costs if cost.group == group]
        once, share = sum(cost.seconds for cost in rules), sum(cost.share for cost in rules)
        print(
            f"  {once:6.3f}  {group}, every {rules[0].interval:g} s: {share:.3f} in {_SECONDS:g} s"
        )
    print()


if __name__ == "__main__":
    given = [float(argument) for argument in sys.argv[1:3]]
    pods, minutes = [*given, *(1000.0, 7.0)[len(given) :]]
    sys.exit(asyncio.run(main(int(pods), minutes)))
