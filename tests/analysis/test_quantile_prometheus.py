"""The quantiles that we expect of buckets are those of a real Prometheus."""

import asyncio
import math

import pytest
from aiohttp import web

from tests.analysis.test_quantile import CASES
from tests.debian_servers import running_prometheus, scraping


def page():
    lines = ["# TYPE case_seconds histogram"]
    for index, (_, edges, counts, _) in enumerate(CASES):
        for edge, count in zip(edges, counts, strict=True):
            le = "+Inf" if edge == math.inf else repr(edge)
            lines.append(f'case_seconds_bucket{{case="{index}",le="{le}"}} {count}')
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.servers
async def test_quantiles_are_those_of_prometheus(served, http, tmp_path):
    async def handler(_):
        return web.Response(body=page().encode(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async with served(handler) as url:
        config = scraping(url.removeprefix("http://"), interval="5s")  # which a scrape may take, too
        async with running_prometheus(http, tmp_path, config) as prometheus:
            for index, (share, _, _, expected) in enumerate(CASES):
                query = f'histogram_quantile({share}, case_seconds_bucket{{case="{index}"}})'
                while not (found := await prometheus.instant(query)):  # none before the first scrape
                    await asyncio.sleep(0.05)
                known = math.nan if expected is None else expected
                assert found[0][1] == pytest.approx(known, rel=1e-12, nan_ok=True), query
