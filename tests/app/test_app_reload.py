"""New thresholds reach the verdicts and the page of a running sidecar."""

import asyncio

import structlog

from sidecar.app import running
from sidecar.demo.traffic import MIXED, Phase, Traffic, TrafficOptions
from sidecar.settings import load_settings
from sidecar.settings.reload import Reloader


async def test_verdicts_follow_new_thresholds(vllm, http, unused_tcp_port):
    environment = {
        "SPECDEC_VLLM_URL": vllm.url,
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{unused_tcp_port}",
        "SPECDEC_REQUESTS__SOURCE": "proxy",
        "SPECDEC_SCRAPE_INTERVAL": "100ms",
        "SPECDEC_SCRAPE_CPU_SHARE": "1",
        "SPECDEC_THRESHOLDS__MIN_DRAFTS_PER_SECOND": "0",
        "SPECDEC_THRESHOLDS__MIN_REQUESTS": "1",
        "SPECDEC_THRESHOLDS__MIN_BUCKET_SHARE": "0",
        "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0",
        "SPECDEC_THRESHOLDS__ACCEPTANCE_BREAK_EVEN": "0.01",
    }
    stricter = {
        "SPECDEC_THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0.98",
        "SPECDEC_THRESHOLDS__ACCEPTANCE_BREAK_EVEN": "0.99",
    }
    settings = load_settings(None, environment)
    reloader = Reloader(settings, lambda: load_settings(None, environment | stricter), structlog.get_logger("test"))

    async def until(line):
        while True:
            async with http.get(f"http://{address}/metrics") as response:
                if any(one.startswith(line) for one in (await response.text()).splitlines()):
                    return
            await asyncio.sleep(0.05)

    verdict = 'specdec_verdict{{model_name="demo",temperature="0-0.3",verdict="{}"}} 1.0'
    async with running(settings, reloader=reloader) as address:
        options = TrafficOptions(f"http://127.0.0.1:{unused_tcp_port}", phases=(Phase(300, MIXED),), max_requests=60)
        await Traffic(options).run()
        await until(verdict.format("net_positive"))
        reloader.request()
        await until('specdec_threshold{name="acceptance_net_negative"} 0.98')
        await until(verdict.format("net_negative"))
