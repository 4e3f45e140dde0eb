"""What the rules cost over many pods: ``python -m benchmarks.rules [PODS] [MINUTES]``, 1000 and 7 by default.

Every pod is a copy of one real page in proxy mode, reduced to the families that rules read; its counters grow. The
times are Prometheus' own. The group of the past looks back a day, of which a run sees minutes: its time is no measure.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rules.page import counters_of, later, real_page, reduced, series
from benchmarks.rules.prometheus import RULES, groups, head_series, prometheus, serving
from benchmarks.table import Row, report

_SCRAPE = "30s"
_SERIES_BOUND = 1500
_GROUP_BOUND = 10.0  # seconds: a third of the interval


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
    slowest: dict[str, float] = {}
    failed: set[str] = set()
    with tempfile.TemporaryDirectory() as directory:
        async with serving(body) as address, prometheus(Path(directory), address, pods, _SCRAPE) as url:
            while time.monotonic() - begun < minutes * 60:
                await asyncio.sleep(15)
                for group in await groups(url):
                    name = group["name"]
                    slowest[name] = max(slowest.get(name, 0.0), group["evaluationTime"])
                    failed |= {rule["name"] for rule in group["rules"] if rule["health"] == "err"}
            held = await head_series(url)
    print(f"{pods} pods, {series(page)} of {series(whole)} series each scraped; Prometheus holds {held} series")
    print(f"rules that failed: {', '.join(sorted(failed)) or 'none'}\n")
    rows = [Row("series of one sidecar", "one model, one engine, proxy", series(whole), at_most=_SERIES_BOUND)]
    rows += [
        Row(f"group {name}", "slowest evaluation", seconds, at_most=_GROUP_BOUND, unit="s")
        for name, seconds in slowest.items()
    ]
    return report(rows) or bool(failed)


if __name__ == "__main__":
    given = [float(argument) for argument in sys.argv[1:3]]
    pods, minutes = [*given, *(1000.0, 7.0)[len(given) :]]
    sys.exit(asyncio.run(main(int(pods), minutes)))
