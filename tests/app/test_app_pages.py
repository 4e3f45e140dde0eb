"""The running sidecar's pages, whatever vLLM's page has; recorded pages with their true values."""

import json
import re

import pytest
from aiohttp import web

from sidecar.engine.names import Counter, Gauge
from tests.engine.engine_tools import snapshot
from tests.waiting import until


def _refuse(constant):
    raise AssertionError(f"JSON has no {constant}")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e308"])
async def test_every_page_is_served_whatever_values_vllm_has(value, served, recorded, sidecar):
    """Three times over, so that there is growth."""
    polls = 0

    async def handler(_):
        nonlocal polls
        polls += 1
        number = value if polls % 2 else "1"
        return web.Response(
            body=re.sub(rb"(?m)^(vllm:[^#\n]*) \S+$", rb"\1 " + number.encode(), recorded("vllm-0.33.0.prom"))
        )

    async with served(handler) as url, sidecar(url, scrape_filtered="false") as page:
        for taken_in in range(1, 7):
            await until(lambda taken_in=taken_in: polls > taken_in)
            answers = [await page.get(path) for path in ("/api/v1/status", "/", "/metrics")]
            assert [answer.status for answer in answers] == [200] * 3
            json.loads(answers[0].body, parse_constant=_refuse)


NAMES = {
    "specdec_generation_tokens_total": Counter.GENERATION_TOKENS,
    "specdec_prompt_tokens_total": Counter.PROMPT_TOKENS,
    "specdec_preemptions_total": Counter.PREEMPTIONS,
    "specdec_prefix_cache_queries_total": Counter.PREFIX_CACHE_QUERIES,
    "specdec_prefix_cache_hits_total": Counter.PREFIX_CACHE_HITS,
    "specdec_engine_drafts_total": Counter.DRAFTS,
    "specdec_engine_draft_tokens_total": Counter.DRAFT_TOKENS,
    "specdec_engine_accepted_tokens_total": Counter.ACCEPTED_TOKENS,
    "specdec_requests_running": Gauge.REQUESTS_RUNNING,
    "specdec_requests_waiting": Gauge.REQUESTS_WAITING,
    "specdec_kv_cache_usage_ratio": Gauge.KV_CACHE_USAGE,
    "specdec_kv_cache_usage_peak_ratio": Gauge.KV_CACHE_USAGE,
}
POSITIONS, CAPACITY = "specdec_engine_accepted_tokens_per_position_total", "specdec_kv_cache_capacity_tokens"
LAST = ("specdec_last_scrape_timestamp_seconds", frozenset())


def expected(body):
    """{(name, labels): value} of one page's engines."""
    samples = {}
    for engine in snapshot(body).engines:
        labels = frozenset({("model_name", engine.key.model_name), ("engine", engine.key.engine)})
        values = engine.counters | engine.gauges
        samples |= {(name, labels): values[key] for name, key in NAMES.items() if key in values}
        if engine.kv_cache_capacity_tokens is not None:
            samples[CAPACITY, labels] = engine.kv_cache_capacity_tokens
        for position, accepted in enumerate(engine.accepted_per_position):
            samples[POSITIONS, labels | {("position", str(position))}] = accepted
    return samples


# One of each kind is enough.
PAGES = ("vllm-0.33.0-dp2.prom", "vllm-0.10.2-multiproc.prom", "vllm-0.6.6.post1-v0.prom", "vllm-0.7.3-v1.prom")


@pytest.mark.parametrize("name", PAGES)
async def test_a_recorded_page_is_exported_with_its_true_values(name, recorded, truth, *, served, sidecar):
    async def handler(_):
        return web.Response(body=recorded(name), headers={"Content-Type": truth[name]["content_type"]})

    async with served(handler) as url, sidecar(url) as page:
        first = await page.until(lambda samples: samples.up)
        later = await page.until(lambda samples: samples.up and samples[LAST] > first[LAST])
    for samples in (first, later):
        ours = {key: value for key, value in samples.items() if key[0] in {*NAMES, POSITIONS, CAPACITY}}
        assert ours == expected(recorded(name))
    assert later["specdec_scrape_malformed_lines_total", frozenset()] == 0
    assert later["specdec_vllm_restarts_total", frozenset()] == 0
    assert all(value == 0 for (metric, _), value in later.items() if metric == "specdec_scrape_errors_total")
    # The page stood still, so nothing was drafted and no latency was observed in the window.
    assert not any("latency" in metric for metric, _ in later)
    assert not any(
        value for (metric, _), value in later.items() if metric == "specdec_engine_window_acceptance_ratio_count"
    )
