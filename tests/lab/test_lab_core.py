"""Claims about a real vLLM, verified on one."""

import asyncio

import pytest

from sidecar.app import running
from sidecar.commands.plugin import write_plugin
from sidecar.demo.traffic import MIXED
from sidecar.settings import load_settings
from tests.lab.conftest import completed

pytestmark = pytest.mark.lab


def settings(url: str, **more: str):
    given = {"SPECDEC_VLLM_URL": url, "SPECDEC_LISTEN": "127.0.0.1:0", "SPECDEC_SCRAPE_CPU_SHARE": "1"}
    return load_settings(None, given | more)


async def lint(text: str) -> list[str]:
    """What promtool says of a page, but that gauges have the label ``quantile`` (docs/metrics.md)."""
    process = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate(text.encode())
    return [line for line in out.decode().splitlines() if not line.endswith('should not have "quantile" label')]


COUNTERS = {
    "vllm:spec_decode_num_drafts_total": "specdec_engine_drafts_total",
    "vllm:spec_decode_num_draft_tokens_total": "specdec_engine_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "specdec_engine_accepted_tokens_total",
    "vllm:generation_tokens_total": "specdec_generation_tokens_total",
    "vllm:prompt_tokens_total": "specdec_prompt_tokens_total",
    "vllm:prefix_cache_queries_total": "specdec_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total": "specdec_prefix_cache_hits_total",
}


async def test_counters_grow_by_exactly_what_vllms_own_grew(observed, samples):
    vllm = observed
    await vllm.start()
    async with running(settings(vllm.url)) as address:
        ours = f"http://{address}"
        before = await samples.until(ours, lambda found: found.value("specdec_up") == 1)
        truth_before = await samples.idle(vllm.url)
        sent = await completed(vllm.url, MIXED, 100)
        truth = await samples.idle(vllm.url)
        drafted = truth.value("vllm:spec_decode_num_draft_tokens_total")
        generated = truth.value("vllm:generation_tokens_total")
        last = "specdec_generation_tokens_total"  # a request's last step may draft nothing
        found = await samples.until(ours, lambda found: found.value(last) == generated)
        for theirs, name in COUNTERS.items():
            grown = truth.value(theirs) - truth_before.value(theirs)
            assert found.value(name) - before.value(name) == grown, name
        # vLLM's own per-request numbers say the same, to the token.
        drafted_before = truth_before.value("vllm:spec_decode_num_draft_tokens_total")
        assert drafted - drafted_before == sum(sums.draft_tokens for sums in sent.acceptance.values())
        for position in range(3):
            theirs = truth.value("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
            name = "specdec_engine_accepted_tokens_per_position_total"
            assert found.value(name, position=str(position)) == theirs
        assert await lint(await samples.text(ours)) == []


async def test_quantiles_agree_with_prometheus_over_the_same_window(observed, samples, prometheus):
    vllm = observed
    await vllm.start()
    # A slow machine sends these requests for more than the five minutes of the default.
    window = {"SPECDEC_LATENCY_WINDOW": "30m", "SPECDEC_HISTORY": "30m"}
    async with running(settings(vllm.url, **window)) as address, prometheus(vllm.url) as prom:
        await samples.until(f"http://{address}", lambda found: found.value("specdec_up") == 1)
        # vLLM has nothing to do, so what both have seen so far is the same, and so are the windows that begin now.
        begun = await prom("timestamp(vllm:generation_tokens_total)")
        await completed(vllm.url, MIXED, 60)
        total = (await samples.idle(vllm.url)).value("vllm:generation_tokens_total")
        found = await samples.until(
            f"http://{address}", lambda found: found.value("specdec_generation_tokens_total") == total
        )
        async with asyncio.timeout(120):
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
            for quantile in ("0.5", "0.95", "0.99"):
                grown = f"vllm:{family}_bucket - (vllm:{family}_bucket @ {begun})"
                ours = found.value("specdec_engine_latency_seconds", phase=phase, quantile=quantile)
                theirs = await prom(f"histogram_quantile({quantile}, {grown})")
                assert ours == pytest.approx(theirs, rel=1e-9), (phase, quantile)


async def test_vllm_killed_and_started_again(lab, samples, tmp_path):
    write_plugin(tmp_path)
    socket = {"SPECDEC_PLUGIN__SOCKET": str(tmp_path / "plugin.sock")}
    vllm = lab(PYTHONPATH=str(tmp_path), **socket)

    def is_split(found, drafted):
        return found.sum("specdec_draft_tokens_total") == found.value("specdec_engine_draft_tokens_total") == drafted

    async with running(settings(vllm.url, **socket)) as address:
        await vllm.start()
        ours = f"http://{address}"
        await samples.until(ours, lambda found: found.value("specdec_up") == 1)
        await completed(vllm.url, MIXED, 20)
        drafted = (await samples.idle(vllm.url)).value("vllm:spec_decode_num_draft_tokens_total")
        before = await samples.until(ours, lambda found: is_split(found, drafted))
        vllm.kill()
        down = await samples.until(ours, lambda found: found.value("specdec_up") == 0)
        for gone in ("specdec_kv_cache_usage_ratio", "specdec_requests_running", "specdec_kv_cache_capacity_tokens"):
            assert down.value(gone) is None
        assert not [name for name, _ in down if name.startswith("specdec_engine_latency")]
        await vllm.start()
        back = await samples.until(ours, lambda found: found.value("specdec_up") == 1)
        assert is_split(back, drafted)
        await completed(vllm.url, MIXED, 20)
        again = (await samples.idle(vllm.url)).value("vllm:spec_decode_num_draft_tokens_total")
        end = await samples.until(ours, lambda found: is_split(found, drafted + again))
        await samples.until(ours, lambda found: found.value("specdec_request_coverage_ratio") == 1)
        falling = [key for key, old in before.items() if key[0].endswith("_total") and end.get(key, 0) < old]
        assert not falling
