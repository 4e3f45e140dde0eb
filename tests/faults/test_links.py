"""The link to vLLM becomes slow, is cut, or goes dead."""

import pytest

from sidecar.app import running
from sidecar.settings import load_settings
from tests.debian_servers import free_port
from tests.faults.conftest import ended


@pytest.fixture
async def proxied(link):
    """A sidecar whose proxy and polls reach vLLM over the link: its page's address and the proxy's."""
    proxy = free_port()
    settings = {
        "SPECDEC_VLLM_URL": f"http://127.0.0.1:{link.port}",
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_REQUESTS__SOURCE": "proxy",
        "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{proxy}",
        "SPECDEC_SCRAPE_INTERVAL": "100ms",
        "SPECDEC_SCRAPE_BACKOFF_MAX": "5m",
        "SPECDEC_SCRAPE_CPU_SHARE": "1",
    }
    async with running(load_settings(None, settings)) as address:
        yield f"http://{address}", f"http://127.0.0.1:{proxy}"


async def test_a_slow_link_fails_nothing(link, proxied, sending, until):
    page, proxy = proxied
    await until(page, "specdec_up", 1)
    link.delay, link.rate = 0.02, 100_000
    clients = sending(proxy)
    await ended(clients, 12)
    link.delay = link.rate = 0
    await clients.stop()
    assert not clients.since().failures
    await until(page, "specdec_requests_total", len(clients.ended))


async def test_a_cut_link_is_noticed_at_once_when_it_is_back(link, proxied, until, counted):
    """However long the backoff: attempts that reach nobody go on at every interval."""
    page, _ = proxied
    await until(page, "specdec_up", 1)
    link.cut()
    await until(page, "specdec_up", 0)
    assert await counted(page, "specdec_kv_cache_usage_ratio") is None
    await until(page, "specdec_scrape_errors_total", 12, least=True)  # 100 ms, doubled as often, are 7 min
    await link.listen()
    await until(page, "specdec_up", 1)


async def test_a_dead_link_leaves_no_stale_number(link, proxied, until, counted):
    page, _ = proxied
    await until(page, "specdec_up", 1)
    link.dead = True
    await until(page, "specdec_up", 0)
    for name in ("specdec_kv_cache_usage_ratio", "specdec_requests_running"):
        assert await counted(page, name) is None
    link.dead = False
    await until(page, "specdec_up", 1)
