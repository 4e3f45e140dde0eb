"""A real vLLM whose engine hangs answers /health with 200; the sidecar's own probe tells.

So does the alert, through Debian's Prometheus and Alertmanager.
"""

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.alerts.chain_tools import Receivers, alertmanager, prometheus
from tests.deploy.kubelet import probes, succeeds
from tests.lab.conftest import page_until, sidecar
from tests.page import Page
from tests.waiting import until

pytestmark = pytest.mark.lab

STALLED_AFTER = 20  # seconds
# As long as it would take to notice a stall: time to be asked whether vLLM is paused included.
NOTICED = STALLED_AFTER + 30
# vLLM's CPU build can sleep only at level 0, where requests stay and nothing moves.
HALTS = (("/pause?mode=keep", "/resume"), ("/sleep?level=0&mode=keep", "/wake_up"))
STALLED = "SpecDecodeEngineStalled"
HEALTHY = (200, "healthy\n")
PROBED_AFTER = 60  # seconds without work; the least that can be set
SETTINGS = {"engine_health__stalled_after": f"{STALLED_AFTER}s"}


@asynccontextmanager
async def long_requests(url, count=4, headers=None, tokens=1500):
    """Requests of so many tokens, one after the other: some always run. The last are cut off."""
    body = {
        "model": "lab",
        "prompt": "a long reply",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }

    async def one(http):
        while True:
            sent = http.post(f"{url}/v1/completions", json=body, headers=headers)
            async with sent as response:
                assert response.status == 200
                async for _ in response.content:
                    pass

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        sending = [asyncio.create_task(one(http)) for _ in range(count)]
        try:
            yield
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)


def engine_core(server):
    """The process of a server's engine core; other servers may run as well."""
    found = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/comm")
        if path.read_text().startswith("VLLM::EngineCor")
    ]
    (core,) = [process for process in found if os.getsid(process) == server.session]
    return core


async def running(url):
    """Waits until vLLM's page says that requests run."""

    async def some_run():
        return (await Page(url)()).sum("vllm:num_requests_running") >= 2

    await until(some_run, seconds=120, pause=0.2)


async def probed(ours):
    """The status of the engine's probe, and what it says."""
    answer = await ours.get("/-/engine")
    return answer.status, answer.body.decode()


async def healthy_for(ours, seconds):
    """Whether the probe says so at every poll of so long a time, by the sidecar's own polls."""
    page = await page_until(ours, lambda page: page.up)
    first = page.value("specdec_last_scrape_timestamp_seconds")
    seen = set()

    async def time_has_passed():
        seen.add(await probed(ours))
        return (await ours()).value("specdec_last_scrape_timestamp_seconds") >= first + seconds

    await until(time_has_passed, seconds=3 * seconds, pause=0.5)
    return seen == {HEALTHY}


@asynccontextmanager
async def only_healthy(ours):
    """The probe says so whenever it is asked within the block, whether there is a poll or not."""
    seen = set()

    async def ask():
        while True:
            seen.add(await probed(ours))
            await asyncio.sleep(0.5)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert seen == {HEALTHY}


async def pass_probes(ours):
    """Whether each probe that is shipped succeeds."""
    port = urlsplit(ours.url).port
    return [await succeeds(probe, port) for probe in probes()]


async def stalled_value(ours):
    """1 while the engine is known not to be stalled, 0 while it is, None while nobody knows."""
    return (await ours()).value("specdec_engine_healthy", reason="stalled")


@contextmanager
def stopped(process):
    """Nothing of it runs within the block."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@pytest.fixture
def on_call(http, served, tmp_path):
    """Whom Alertmanager notifies of what the shipped rules, at a fast pace, say of a sidecar."""

    @asynccontextmanager
    async def notified_of(ours):
        receivers = Receivers()
        async with (
            served(receivers.take) as url,
            alertmanager(http, tmp_path, url) as address,
            prometheus(http, tmp_path, ours.url, address),
        ):
            yield receivers

    return notified_of


async def stalls(vllm, ours, notified, record_property, *, within=3 * NOTICED):
    """Stops the engine's process until the probe and the alert have noticed, and lets it go on.

    The probe has to notice ``within`` so many seconds. On a busy machine a poll may be late; the
    probe succeeds while nobody knows, so one look at it proves neither state.
    """
    assert await pass_probes(ours) == [True, True]

    begun = time.monotonic()
    with stopped(engine_core(vllm)):

        async def is_stalled():
            status_code, text = await probed(ours)
            status = await ours.status()
            return (
                status_code == 503
                and text.startswith("unhealthy: engine 0 has been stalled since")
                and await stalled_value(ours) == 0
                and status["answer"]["text"] == "vLLM's engine hangs."
                and await pass_probes(ours) == [False, False]
            )

        await until(is_stalled, seconds=within, pause=0.5)
        record_property("stalled after seconds", time.monotonic() - begun)
        assert (await Page(vllm.url).get("/health")).status == 200

        await notified.until(STALLED, "firing", None)
        record_property("notified after seconds", time.monotonic() - begun)

    begun = time.monotonic()

    async def works_again():
        return await stalled_value(ours) == 1

    await until(works_again, seconds=60, pause=0.2)
    record_property("works again after seconds", time.monotonic() - begun)
    assert await pass_probes(ours) == [True, True]
    await notified.until(STALLED, "resolved", None)
    record_property("resolved after seconds", time.monotonic() - begun)


async def test_a_hanging_engine_is_stalled_and_one_that_pauses_sleeps_or_is_idle_is_not(
    lab, folder, monkeypatch, on_call, record_property
):
    """vLLM's own /health answers 200 throughout; the hang is all that anybody is paged for."""
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")  # for /pause and /sleep
    vllm = lab("draft_model", folder=folder)
    async with sidecar(vllm, **SETTINGS) as ours, on_call(ours) as notified:
        async with only_healthy(ours):
            await vllm.start()  # it loads for longer than a stall takes to be noticed
        assert await healthy_for(ours, NOTICED)  # idle

        async with long_requests(vllm.url):
            await running(vllm.url)
            await stalls(vllm, ours, notified, record_property)

            for halt, go_on in HALTS:
                await Page(vllm.url).get(halt, method="POST")
                try:
                    assert await healthy_for(ours, NOTICED)
                finally:
                    await Page(vllm.url).get(go_on, method="POST")

    assert [page["event_action"] for page in notified.pages] == ["trigger", "resolve"]
    assert notified.statuses(STALLED) == ["firing", "resolved"]


async def test_an_engine_that_hangs_while_idle_is_stalled_by_the_sidecars_own_request(
    lab, folder, monkeypatch, on_call, record_property
):
    """Its page goes on to say that nothing runs. One that is paused, asleep or busy is not asked.

    What the sidecar sends is in none of its tables.
    """
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")  # for /pause and /sleep
    vllm = lab("draft_model", folder=folder)
    await vllm.start()
    settings = SETTINGS | {"probe__interval": f"{PROBED_AFTER}s"}

    def answered(page):
        return page.value("specdec_probes_total", outcome="answered")

    async with sidecar(vllm, **settings) as ours, on_call(ours) as notified:
        page = await page_until(ours, answered)
        record_property("the first took seconds", page.value("specdec_probe_duration_seconds"))
        assert page.value("specdec_probe_success") == 1
        assert page.sum("specdec_requests_total") == 0
        # That it answered says so for as long as a stall takes; idle after that, nobody knows.
        for known in (1, None):
            await page_until(
                ours,
                lambda page, known=known: (
                    page.value("specdec_engine_healthy", reason="stalled") == known
                ),
            )

        await stalls(vllm, ours, notified, record_property, within=PROBED_AFTER + 3 * NOTICED)
        before = answered(await page_until(ours, lambda page: answered(page) >= 2))

        for halt, go_on in HALTS:
            await Page(vllm.url).get(halt, method="POST")
            try:
                assert await healthy_for(ours, PROBED_AFTER + NOTICED)
            finally:
                await Page(vllm.url).get(go_on, method="POST")
        assert answered(await ours()) == before

        async with long_requests(vllm.url):
            await running(vllm.url)
            before = answered(await ours())
            assert await healthy_for(ours, PROBED_AFTER + NOTICED)
            page = await ours()

    assert answered(page) == before
    assert page.sum("specdec_probes_total") == before
    assert [page["event_action"] for page in notified.pages] == ["trigger", "resolve"]
    assert notified.statuses(STALLED) == ["firing", "resolved"]


async def test_a_vllm_that_shows_no_metrics_is_left_alone(lab, folder):
    """With --disable-log-stats nobody knows what moves, so the engine counts as healthy."""
    vllm = lab("draft_model", "--disable-log-stats", folder=folder)
    await vllm.start()

    async with (
        sidecar(vllm, **SETTINGS) as ours,
        long_requests(vllm.url),
        only_healthy(ours),
    ):
        await page_until(
            ours,
            lambda page: page.sum("specdec_scrape_errors_total", reason="no_log_stats") >= NOTICED,
        )


async def test_an_idle_rank_beside_a_busy_one_is_no_stall(lab, folder):
    """Data parallelism: all requests go to rank 0, and rank 1 stands still for long.

    By default vLLM starts an API server for each rank, whose common page tells nothing of a stall.
    """
    options = ("--data-parallel-size", "2", "--api-server-count", "1")
    vllm = lab("draft_model", *options, folder=folder)
    await vllm.start()
    async with (
        sidecar(vllm, **SETTINGS) as ours,
        long_requests(vllm.url, headers={"X-data-parallel-rank": "0"}),
    ):
        await running(vllm.url)

        assert await healthy_for(ours, NOTICED)
        # Where the server was too busy to be read for ten seconds, the next poll knows of none.
        healthy = {"reason": "stalled"}
        page = await page_until(
            ours, lambda page: page.value("specdec_engine_healthy", engine="0", **healthy) == 1
        )

    assert page.value("specdec_requests_running", engine="0") >= 2
    assert not page.sum("specdec_requests_running", engine="1")
    assert not page.sum("specdec_generation_tokens_total", engine="1")
    # one that hangs would look the same
    assert page.value("specdec_engine_healthy", engine="1", **healthy) is None
