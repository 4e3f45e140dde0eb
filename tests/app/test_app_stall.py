"""An engine that hangs beside the whole sidecar, and the probe that asks for its restart."""

from urllib.parse import urlsplit

import pytest

from tests.app.app_tools import traffic
from tests.deploy.kubelet import probes, succeeds

FOR_EVER = 1e9  # seconds
STALLED_AFTER = 10  # seconds: the least that can be set
NOTICED = 6 * STALLED_AFTER  # at most, on a busy machine


def is_healthy(samples):
    """Whether no engine stalls, by what the alert reads; None if that is not known."""
    return samples.value("specdec_engine_healthy", reason="stalled")


def works(samples):
    return is_healthy(samples) == 1 and samples.sum("specdec_generation_tokens_total") > 0


async def hangs(vllm, page):
    """Makes the next step last for ever once the engine works; returns when the sidecar knows."""
    await page.until(works, seconds=NOTICED)
    vllm.engine.scheduler.duration = lambda _: FOR_EVER
    await page.until(is_healthy, 0, seconds=NOTICED)


async def pass_probes(page):
    """Whether each probe that is shipped succeeds."""
    port = urlsplit(page.url).port
    return {await succeeds(probe, port) for probe in probes()}


@pytest.mark.slow
async def test_a_crash_loop_ends_at_its_budget(vllm, sidecar):
    """An engine that hangs again after two restarts is left alone, and the alert goes on."""
    async with (
        sidecar(vllm.url, engine_health__stalled_after=f"{STALLED_AFTER}s") as page,
        traffic(vllm),
    ):
        for _ in range(2):
            await hangs(vllm, page)
            assert await pass_probes(page) == {False}
            await vllm.restart()

        await hangs(vllm, page)
        assert await pass_probes(page) == {True}
        answer = await page.get("/-/engine")

    assert answer.status == 200
    assert answer.body.startswith(b"left alone: engine 0 has been stalled since")
