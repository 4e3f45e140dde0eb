"""The running sidecar's pages, whatever vLLM's page has; recorded pages with their true values."""

import json
import re

import pytest
from aiohttp import web

from sidecar.engine.names import Counter, Gauge
from tests.app.app_tools import work
from tests.engine.engine_tools import snapshot
from tests.waiting import until

SHOWN = ("/api/v1/history", "/", "/metrics")


def _refuse(constant):
    raise AssertionError(f"JSON has no {constant}")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e308"])
async def test_every_page_is_served_whatever_values_vllm_has(
    value, served, recorded, sidecar, monkeypatch
):
    """Three times over, so that there is growth; the last hour, too."""
    monkeypatch.setattr("sidecar.app.MINUTE", 0.05)
    polls = 0

    async def handler(_):
        nonlocal polls
        polls += 1
        number = value if polls % 2 else "1"
        return web.Response(
            body=re.sub(
                rb"(?m)^(vllm:[^#\n]*) \S+$",
                rb"\1 " + number.encode(),
                recorded("vllm-0.33.0.prom"),
            )
        )

    async with served(handler) as url, sidecar(url, scrape_filtered="false") as page:
        for taken_in in range(1, 7):
            await until(lambda taken_in=taken_in: polls > taken_in)
            answers = [await page.get(path) for path in ("/api/v1/status", *SHOWN)]
            assert [answer.status for answer in answers] == [200] * 4
            for answer in answers[:2]:
                json.loads(answer.body, parse_constant=_refuse)


# One of each kind is enough; tests/engine reads all of them, and tests/export says which metric has
# which quantity.
PAGES = (
    "vllm-0.33.0-dp2.prom",
    "vllm-0.33.0-rust.prom",
    "vllm-0.10.2-multiproc.prom",
    "vllm-0.6.6.post1-v0.prom",
    "vllm-0.7.3-v1.prom",
)
NAMES = {
    "specdec_generation_tokens_total": Counter.GENERATION_TOKENS,
    "specdec_engine_accepted_tokens_total": Counter.ACCEPTED_TOKENS,
    "specdec_kv_cache_usage_ratio": Gauge.KV_CACHE_USAGE,
    "specdec_kv_cache_usage_peak_ratio": Gauge.KV_CACHE_USAGE,
}


@pytest.mark.parametrize("name", PAGES)
async def test_a_recorded_page_that_stands_still_is_exported_as_it_is(
    name, recorded, truth, *, served, sidecar
):
    """Nothing grows, nothing has restarted, and no latency is made up."""

    async def handler(_):
        return web.Response(
            body=recorded(name), headers={"Content-Type": truth[name]["content_type"]}
        )

    def last(samples):
        return samples.value("specdec_last_scrape_timestamp_seconds")

    async with served(handler) as url, sidecar(url) as page:
        first = await page.until(lambda samples: samples.up)
        later = await page.until(lambda samples: samples.up and last(samples) > last(first))
    for engine in snapshot(recorded(name)).engines:
        values = engine.counters | engine.gauges
        labels = {"model_name": engine.key.model_name, "engine": engine.key.engine}
        for metric, quantity in NAMES.items():
            assert (
                later.value(metric, **labels)
                == first.value(metric, **labels)
                == values.get(quantity)
            ), metric
    nothing = ("scrape_malformed_lines_total", "vllm_restarts_total", "scrape_errors_total")
    nothing += ("engine_window_acceptance_ratio_count",)
    assert [later.sum(f"specdec_{metric}") for metric in nothing] == [0] * 4
    assert not any("latency" in metric for metric in later.names)  # none was observed in the window


async def test_the_last_hour_is_kept_while_the_sidecar_runs(sidecar, vllm, monkeypatch):
    """Here a minute's report is taken many times a second."""
    monkeypatch.setattr("sidecar.app.MINUTE", 0.05)

    async with sidecar(vllm.url) as page:

        async def kept():
            answer = await page.get("/api/v1/history")
            series = json.loads(answer.body)["series"]
            return {one["quantity"]: one["values"][-1] for one in series}

        async def has_usage():
            return (await kept()).get("kv_cache_peak") is not None

        await work(vllm)
        await until(has_usage)
