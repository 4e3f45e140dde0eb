"""Plain pods as the reference, in a real Prometheus over running sidecars."""

import asyncio
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from sidecar.app import running
from sidecar.settings import load_settings
from specdec_tools.demo.scheduler import Request, SamplingParams, SimulatorOptions
from specdec_tools.demo.server import SimulatedVllm
from tests.alerts.chain_tools import INTERVAL, faster
from tests.alerts.scene import RULES
from tests.app.app_tools import sidecar_settings
from tests.debian_servers import running_prometheus, scraping

AT_ONCE = 4


async def ask(vllm, prompt_tokens):
    """One request after the other, whose lengths differ."""
    random = Random(prompt_tokens)
    while True:
        request = Request(
            request_id=secrets.token_hex(8),
            sampling_params=SamplingParams(0.0),
            num_prompt_tokens=prompt_tokens,
            max_tokens=random.randint(40, 80),
            arrival_time=time.time(),
            random=Random(random.getrandbits(64)),
        )
        outputs = vllm.engine.submit(request)
        try:
            while (await outputs.get()).finish_reason is None:
                pass
        finally:
            vllm.engine.close(request)


@asynccontextmanager
async def pod(folder, tokens, prompt_tokens):
    """A vLLM that drafts so many tokens, its sidecar and traffic; yields the sidecar's address."""
    options = SimulatorOptions(
        num_speculative_tokens=tokens, prefix_hits=1.0, cached_share=1.0, step_seconds=0.02
    )
    socket = folder / f"{tokens}-{prompt_tokens}.sock"
    environment = {
        "LISTEN": "127.0.0.1:0",
        "PLUGIN__SOCKET": socket,
        "SCRAPE_INTERVAL": INTERVAL,
        "LATENCY_WINDOW": "15s",
        "HISTORY": "60s",
    }
    async with SimulatedVllm(options, plugin_socket=socket) as vllm:
        settings = load_settings(None, sidecar_settings(vllm.url, **environment))
        asking = [asyncio.create_task(ask(vllm, prompt_tokens)) for _ in range(AT_ONCE)]
        try:
            async with running(settings) as address:
                yield f"127.0.0.1:{address.port}"
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)


@pytest.mark.slow
@pytest.mark.servers
async def test_plain_pods_judge_only_pods_at_about_their_context(http, tmp_path):
    """Both pods that speculate are faster; plain decoding was only seen with short prompts."""
    (tmp_path / "recording.yaml").write_text(faster((RULES / "recording.yaml").read_text()))
    async with AsyncExitStack() as stack:
        plain, alike, longer = [
            await stack.enter_async_context(pod(tmp_path, tokens, prompt_tokens))
            for tokens, prompt_tokens in ((0, 500), (3, 500), (3, 3000))
        ]
        config = scraping(plain, alike, longer, interval=INTERVAL)
        config["rule_files"] = ["recording.yaml"]
        prometheus = await stack.enter_async_context(running_prometheus(http, tmp_path, config))

        await prometheus.until(f'specdec_context_tokens{{instance="{longer}"}} > 2500')
        await prometheus.until("model:specdec_plain_context_tokens:max")
        await prometheus.until(f'pod:specdec_speculates:bool{{instance="{longer}"}} == 1')
        # The reference exists at its load, so nothing but its context keeps it back.
        at_its_load = "on (model_name, running) model_running:specdec_plain_step_seconds:rate5m"
        decodes = f'specdec_decode_tokens_total{{instance="{longer}"}}'
        await prometheus.until(f"rate({decodes}[15s]) > 0 and {at_its_load}")
        await prometheus.until(f'pod:specdec_speedup:fleet{{instance="{alike}"}} > 1.3')
        judged = await prometheus.instant("pod:specdec_speedup:fleet")

    assert {labels["instance"] for labels, _ in judged} <= {plain, alike}
