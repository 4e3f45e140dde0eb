"""Every recorded page through the running sidecar's ``/metrics``, compared with the values that made the page."""

import pytest
from aiohttp import web

from tests.app.app_tools import is_up

COUNTERS = {
    "specdec_generation_tokens_total": "generation_tokens",
    "specdec_prompt_tokens_total": "prompt_tokens",
    "specdec_prefix_cache_queries_total": "prefix_queries",
    "specdec_prefix_cache_hits_total": "prefix_hits",
}
SPECULATION = {
    "specdec_engine_drafts_total": "drafts",
    "specdec_engine_draft_tokens_total": "draft_tokens",
    "specdec_engine_accepted_tokens_total": "accepted_tokens",
}
GAUGES = {
    "specdec_requests_running": "running",
    "specdec_requests_waiting": "waiting",
    "specdec_kv_cache_usage_ratio": "kv_usage",
    "specdec_kv_cache_usage_peak_ratio": "kv_usage",
}


def expected(known):
    """{(name, labels): value} of one page's engines."""
    samples = {}
    for number, engine in known["engines"].items():
        labels = {("model_name", known["model_name"]), ("engine", number)}
        spec = engine["spec"] or {}
        values = {name: engine["counters"].get(key) for name, key in COUNTERS.items()}
        values |= {name: engine["gauges"][key] for name, key in GAUGES.items()}
        if known["version"] != "0.7.3":
            values["specdec_preemptions_total"] = engine["counters"]["preemptions"]
            # 0.9.2 with two engines tells the settings of the one whose metrics it does not show.
            lost = "engines_fed_but_not_exposed" in known
            values["specdec_kv_cache_capacity_tokens"] = None if lost else 27648 * 16
        if known["arch"] == "v1":
            values |= {name: spec.get(key) for name, key in SPECULATION.items()}
        for position, accepted in enumerate(spec.get("accepted_per_pos") or ()):
            key = frozenset(labels | {("position", str(position))})
            samples["specdec_engine_accepted_tokens_per_position_total", key] = accepted
        samples |= {(name, frozenset(labels)): value for name, value in values.items() if value is not None}
    return samples


LAST = ("specdec_last_scrape_timestamp_seconds", frozenset())
NAMES = {*COUNTERS, *SPECULATION, *GAUGES} | {
    "specdec_engine_accepted_tokens_per_position_total",
    "specdec_preemptions_total",
    "specdec_kv_cache_capacity_tokens",
}


# The engine's tests read every page; here one of each kind is enough.
PAGES = ("vllm-0.33.0-dp2.prom", "vllm-0.10.2-multiproc.prom", "vllm-0.6.6.post1-v0.prom", "vllm-0.7.3-v1.prom")


@pytest.mark.parametrize("name", PAGES)
async def test_a_recorded_page_is_exported_with_its_true_values(name, recorded, truth, *, served, sidecar):
    async def handler(_):
        return web.Response(body=recorded(name), headers={"Content-Type": truth[name]["content_type"]})

    async with served(handler) as url, sidecar(url) as page:
        first = await page.until(is_up)
        later = await page.until(lambda samples: is_up(samples) and samples[LAST] > first[LAST])
    for samples in (first, later):
        ours = {key: value for key, value in samples.items() if key[0] in NAMES}
        assert ours == pytest.approx(expected(truth[name]), abs=1e-6)
    assert later["specdec_scrape_malformed_lines_total", frozenset()] == 0
    assert later["specdec_vllm_restarts_total", frozenset()] == 0
    assert all(value == 0 for (metric, _), value in later.items() if metric == "specdec_scrape_errors_total")
    # The page stood still, so nothing was drafted and no latency was observed in the window.
    assert not any("latency" in metric for metric, _ in later)
    assert not any(
        value for (metric, _), value in later.items() if metric == "specdec_engine_window_acceptance_ratio_count"
    )
