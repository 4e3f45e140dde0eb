"""Our quantiles against a real Prometheus's, over the same buckets."""

import asyncio
import json
import math
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.analysis.latency import QUANTILES
from sidecar.analysis.quantile import histogram_quantile
from sidecar.engine.histograms import HistogramWindow
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from tests.debian_servers import running_prometheus, scraping

EDGE_CASES = [
    # Edges, counts at first and at last.
    ((1.0, 2.0, math.inf), (0, 0, 0), (0, 10, 10)),
    ((1.0, 2.0, math.inf), (3, 3, 3), (13, 13, 13)),
    ((1.0, 2.0, math.inf), (1, 2, 3), (1, 2, 13)),  # all beyond the highest finite edge
    ((0.0, 2.0, math.inf), (0, 0, 0), (10, 10, 10)),
    ((-1.0, 2.0, math.inf), (0, 0, 0), (10, 10, 10)),
    ((-1.0, 2.0, math.inf), (0, 0, 0), (0, 10, 10)),
    ((1.0, 2.0, 4.0, 8.0, math.inf), (0, 0, 0, 0, 0), (50, 50, 90, 99, 100)),  # quantiles on the counts themselves
    ((1.0, 2.0, 4.0, math.inf), (0, 0, 0, 0), (1, 1, 1, 2)),
    ((1.0, math.inf), (0, 0), (1, 1)),
    ((1.0, 2.0, math.inf), (4, 5, 6), (4, 5, 6)),  # nothing observed
]


def cases():
    """(edges, first counts, last counts): recorded from a real vLLM, and chosen."""
    recorded = json.loads((Path(__file__).parent / "recorded_buckets.json").read_text())
    for phases in recorded.values():
        for buckets in phases.values():
            yield tuple(map(float, buckets["edges"])), tuple(buckets["first"]), tuple(buckets["last"])
    yield from EDGE_CASES


def page():
    lines = []
    for family in (0, 1):
        name = ("first", "last")[family]
        lines.append(f"# TYPE {name}_seconds histogram")
        for index, case in enumerate(cases()):
            for edge, count in zip(case[0], case[1 + family], strict=True):
                le = "+Inf" if edge == math.inf else repr(edge)
                lines.append(f'{name}_seconds_bucket{{case="{index}",le="{le}"}} {count}')
    return "\n".join(lines) + "\n"


@pytest.fixture
async def prometheus(served, http, tmp_path):
    """Queries a Prometheus that scrapes the page: ``await prometheus(expression)`` gives values by case."""

    async def handler(_):
        return web.Response(body=page().encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async with served(handler) as url:
        config = scraping(url.removeprefix("http://"), interval="200ms")
        async with running_prometheus(http, tmp_path, config) as running:

            async def query(expression):
                async with asyncio.timeout(60):  # no values before the first scrape, nor after one that failed
                    while not (found := await running.instant(expression)):
                        await asyncio.sleep(0.05)
                return {labels.get("case"): value for labels, value in found}

            yield query


@pytest.mark.slow
@pytest.mark.servers
async def test_quantiles_are_those_of_prometheus(prometheus):
    compared = 0
    for quantile in (*QUANTILES, 0.01, 0.25, 0.999, 1.0):
        theirs = await prometheus(f"histogram_quantile({quantile}, last_seconds_bucket - first_seconds_bucket)")
        for index, (edges, first, last) in enumerate(cases()):
            window = HistogramWindow(300)
            window.append(0, {Phase.TTFT: HistogramReading(edges, first)})
            window.append(10, {Phase.TTFT: HistogramReading(edges, last)})
            ours = histogram_quantile(quantile, window.growth(Phase.TTFT))
            expected = theirs[str(index)]
            if ours is None:
                assert math.isnan(expected)
            else:
                assert ours == pytest.approx(expected, rel=1e-12), (index, quantile, edges, first, last)
                compared += 1
    assert compared >= 8 * 10
