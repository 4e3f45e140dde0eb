"""What is claimed of a real vLLM, seen on one."""

import asyncio
import time

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.app import running
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings

pytestmark = pytest.mark.lab

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.status == 200
        return await response.text()


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float | None:
    matching = [
        one for (sample, pairs), one in found.items() if sample == name and labels.items() <= dict(pairs).items()
    ]
    assert len(matching) <= 1, (name, labels)
    return matching[0] if matching else None


async def until(url: str, condition, seconds: float = 30) -> Samples:
    async with asyncio.timeout(seconds):
        while not condition(found := samples(await page(url))):
            await asyncio.sleep(0.1)
    return found


def settings(url: str, **more: str):
    return load_settings(None, {"SPECDEC_VLLM_URL": url, "SPECDEC_LISTEN": "127.0.0.1:0", **more})


async def mixed_traffic(url: str, seconds: float) -> Traffic:
    traffic = Traffic(TrafficOptions(url, model="lab", phases=(Phase(seconds, MIXED),), max_tokens=120))
    await traffic.run()
    assert traffic.summary.failed == 0
    assert traffic.summary.completed > 20
    return traffic


async def lint(text: str) -> tuple[int | None, bytes]:
    process = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate(text.encode())
    return process.returncode, out


COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "specdec_engine_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total": "specdec_engine_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "specdec_engine_accepted_tokens_total",
    "vllm:generation_tokens_total": "specdec_generation_tokens_total",
    "vllm:prompt_tokens_total": "specdec_prompt_tokens_total",
    "vllm:prefix_cache_queries_total": "specdec_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total": "specdec_prefix_cache_hits_total",
}


async def test_counters_grow_by_exactly_what_vllms_own_grew(lab):
    vllm = lab()
    await vllm.start()
    async with running(settings(vllm.url)) as address:
        ours = f"http://{address}"
        before = await until(ours, lambda found: value(found, "specdec_up") == 1)
        truth_before = samples(await page(vllm.url))
        traffic = await mixed_traffic(vllm.url, 60)
        truth = samples(await page(vllm.url))
        drafted = value(truth, "vllm:spec_decode_num_draft_tokens_total")
        found = await until(ours, lambda found: value(found, "specdec_engine_draft_tokens_total") == drafted)
        for theirs, name in COUNTERS.items():
            grown = value(truth, theirs) - value(truth_before, theirs)
            assert value(found, name) - value(before, name) == grown, name
        # vLLM's own per-request numbers say the same, to the token.
        assert drafted == sum(sums.draft_tokens for sums in traffic.summary.acceptance.values())
        for position in range(3):
            theirs = value(truth, "vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
            name = "specdec_engine_accepted_tokens_per_position_total"
            assert value(found, name, position=str(position)) == theirs
        assert await lint(await page(ours)) == (0, b"")


async def test_quantiles_agree_with_prometheus_over_the_same_window(lab, prometheus):
    vllm = lab()
    await vllm.start()
    async with running(settings(vllm.url)) as address, prometheus(vllm.url) as prom:
        await until(f"http://{address}", lambda found: value(found, "specdec_up") == 1)
        await mixed_traffic(vllm.url, 30)
        # Both have seen all of the traffic, which is all there ever was, so both windows are the same.
        total = value(samples(await page(vllm.url)), "vllm:generation_tokens_total")
        found = await until(f"http://{address}", lambda found: value(found, "specdec_generation_tokens_total") == total)
        async with asyncio.timeout(30):
            while await prom("vllm:generation_tokens_total") != total:
                await asyncio.sleep(0.2)
        phases = {
            "ttft": "time_to_first_token_seconds",
            "itl": "inter_token_latency_seconds",
            "tpot": "request_time_per_output_token_seconds",
            "e2e": "e2e_request_latency_seconds",
            "queue": "request_queue_time_seconds",
        }
        for phase, family in phases.items():
            for quantile in ("0.5", "0.9", "0.95", "0.99"):
                query = f"histogram_quantile({quantile}, vllm:{family}_bucket)"
                ours = value(found, "specdec_engine_latency_seconds", phase=phase, quantile=quantile)
                assert ours == pytest.approx(await prom(query), rel=1e-9), (phase, quantile)


async def test_vllm_killed_and_started_again(lab):
    vllm = lab()
    await vllm.start()
    async with running(settings(vllm.url)) as address:
        ours = f"http://{address}"
        await until(ours, lambda found: value(found, "specdec_up") == 1)
        await mixed_traffic(vllm.url, 10)
        drafted = value(samples(await page(vllm.url)), "vllm:spec_decode_num_draft_tokens_total")
        before = await until(ours, lambda found: value(found, "specdec_engine_draft_tokens_total") == drafted)
        await vllm.kill()
        killed = time.monotonic()
        down = await until(ours, lambda found: value(found, "specdec_up") == 0)
        # The interval is 1 s; the wait for it is what the test is about, so its bound is not a matter of speed.
        assert time.monotonic() - killed < 2 * value(before, "specdec_scrape_interval_seconds") + 0.5
        for gone in ("specdec_kv_cache_usage_ratio", "specdec_requests_running", "specdec_kv_cache_capacity_tokens"):
            assert value(down, gone) is None
        assert not [name for name, _ in down if name.startswith("specdec_engine_latency")]
        await vllm.start()
        back = await until(ours, lambda found: value(found, "specdec_up") == 1)
        assert value(back, "specdec_engine_draft_tokens_total") == drafted
        await mixed_traffic(vllm.url, 10)
        again = value(samples(await page(vllm.url)), "vllm:spec_decode_num_draft_tokens_total")
        await until(ours, lambda found: value(found, "specdec_engine_draft_tokens_total") == drafted + again)
        end = samples(await page(ours))
        falling = [key for key, old in before.items() if key[0].endswith("_total") and end.get(key, 0) < old]
        assert not falling
