"""Our quantiles against a real Prometheus's, over the same buckets."""

import asyncio
import json
import math
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from aiohttp import web

from sidecar.analysis.latency import QUANTILES
from sidecar.analysis.quantile import histogram_quantile
from sidecar.engine.histograms import HistogramWindow
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading

CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
- job_name: page
  static_configs: [targets: ["{target}"]]
"""
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
    """(edges, first counts, last counts): recorded from a real vLLM, chosen, and at random."""
    recorded = json.loads((Path(__file__).parent / "recorded_buckets.json").read_text())
    for phases in recorded.values():
        for buckets in phases.values():
            yield tuple(map(float, buckets["edges"])), tuple(buckets["first"]), tuple(buckets["last"])
    yield from EDGE_CASES
    draw = random.Random(7)
    for _ in range(40):
        edges = sorted({round(10 ** draw.uniform(-3, 2), 4) for _ in range(draw.randint(1, 15))})
        first, last, before, after = [], [], 0, 0
        for _ in range(len(edges) + 1):
            growth = draw.choice([0, 0, 1, 7, 1000])
            before += draw.choice([0, 3])
            after = after + growth + (before - (first[-1] if first else 0))
            first.append(before)
            last.append(after)
        yield (*edges, math.inf), tuple(first), tuple(last)


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
async def prometheus(served, http, tmp_path, unused_tcp_port):
    """Queries a Prometheus that scrapes the page: ``await prometheus(expression)`` gives values by case."""
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus on this machine")

    async def handler(_):
        return web.Response(body=page().encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async with served(handler) as url:
        config = tmp_path / "prometheus.yml"
        config.write_text(CONFIG.format(target=url.removeprefix("http://")))
        base = f"http://127.0.0.1:{unused_tcp_port}"
        process = await asyncio.create_subprocess_exec(
            binary,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address={base.removeprefix('http://')}",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        async def query(expression):
            async with http.get(f"{base}/api/v1/query", params={"query": expression}) as response:
                answer = await response.json()
            assert answer["status"] == "success", answer
            return {found["metric"].get("case"): float(found["value"][1]) for found in answer["data"]["result"]}

        async def scraped():
            try:
                async with http.get(f"{base}/-/ready") as response:
                    ready = response.status == 200
            except OSError:
                return None
            return await query("last_seconds_bucket{case='0',le='+Inf'}") if ready else None

        try:
            async with asyncio.timeout(60):
                while not await scraped():
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            yield query
        finally:
            process.kill()
            await process.wait()


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
    assert compared >= 8 * 50
