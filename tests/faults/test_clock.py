"""The machine's wall clock is set while the sidecar runs."""

import asyncio
import time

import pytest

from sidecar.app import running
from sidecar.settings import load_settings

HOUR = 3600.0


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_is_set_leaves_no_number_wrong(
    jump, *, vllm, socket, sending, counted, until, http, monkeypatch
):
    ahead, real = 0.0, time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead)

    async def names():
        async with http.get(f"{page}/metrics") as response:
            return {line.partition(" ")[0].partition("{")[0] for line in (await response.text()).splitlines()} - {"#"}

    settings = {
        "SPECDEC_VLLM_URL": vllm.url,
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_REQUESTS__SOURCE": "middleware",
        "SPECDEC_MIDDLEWARE__SOCKET": socket,
        "SPECDEC_SCRAPE_INTERVAL": "100ms",
        "SPECDEC_SCRAPE_CPU_SHARE": "1",
    }
    async with running(load_settings(None, settings)) as address:
        page = f"http://{address}"
        clients = sending(vllm.url)

        await until(page, "specdec_requests_total", 100, least=True)
        before = await names()
        ahead = jump

        async with asyncio.timeout(120):
            while not (before <= await names() and await counted(page, "specdec_up") == 1):
                await asyncio.sleep(0.05)
        await clients.stop()
        await until(page, "specdec_requests_total", len(clients.ended))
        assert not clients.since().failures
        # Those in flight when it was set seem to have lasted longer than the history; they are counted all the same.
        assert await counted(page, "specdec_request_events_dropped_total") <= 3
        drafted = await counted(page, "specdec_engine_draft_tokens_total")
        assert await counted(page, "specdec_draft_tokens_total") == drafted
        assert 0 < await counted(page, "specdec_request_duration_seconds_sum") < HOUR / 2
