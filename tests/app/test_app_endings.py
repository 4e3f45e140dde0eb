"""How replies end, end to end: from a vLLM whose replies loop to the page and ``/metrics``."""

import json

import pytest

from specdec_tools.demo.scheduler import SimulatorOptions
from tests.app.app_tools import work
from tests.demo.http_vllm import HttpVllm
from tests.waiting import until

LONG = {"min_tokens": 100, "max_tokens": 120}  # long enough for a loop to show
REQUESTS = 60


def looping(samples):
    """1 if loops are found to be more than usual; None where that is not the finding."""
    return samples.value("specdec_finding", finding="looping")


@pytest.mark.parametrize(("usual", "found"), [(1, True), (50, False)])
async def test_replies_that_loop_are_found_unless_they_do_without_speculation(
    usual, found, sidecar, socket_path
):
    """Half of the replies at temperature 0 loop; ``usual`` of 100 did in the baseline."""
    options = SimulatorOptions(speed=50.0, loop_share=0.5)
    baseline = json.dumps({"demo": {"0": {"normal": 100 - usual, "loop": usual}}})
    async with (
        HttpVllm(options, plugin_socket=socket_path) as vllm,
        sidecar(vllm.url, plain_endings=baseline) as page,
    ):
        await work(vllm, REQUESTS, **LONG)
        samples = await page.until(
            lambda samples: samples.sum("specdec_request_endings_total"), REQUESTS
        )

        async def is_told():
            """The window's requests count a poll later than the totals."""
            (model,) = (await page.status())["models"]
            return model if model["endings"] and model["endings"]["requests"] == REQUESTS else None

        model = await until(is_told)
        text = (await page.get("/")).body.decode()

    loops = samples.value("specdec_request_endings_total", ending="loop", temperature="0")
    assert 10 <= loops <= 50
    assert model["endings"]["changes"]["loop"]["reference"] == "baseline"
    assert bool(looping(samples)) == found
    assert ("of the last 60 replies at temperature 0 (1% without speculation" in text) == found


async def test_a_pod_whose_every_reply_is_empty_says_so_from_its_start(sidecar, socket_path):
    """It drafts nothing, and nobody measured whether that is usual; but it is not idle."""
    options = SimulatorOptions(speed=50.0, empty_share=1.0)
    async with (
        HttpVllm(options, plugin_socket=socket_path) as vllm,
        sidecar(vllm.url) as page,
    ):
        await work(vllm, REQUESTS)

        async def is_told():
            status = await page.status()
            return status if "empty" in status["answer"]["text"] else None

        status = await until(is_told)
        samples = await page()

    (model,) = status["models"]
    assert status["answer"]["text"].startswith("Of the last replies, 100% are empty")
    assert [finding["code"] for finding in model["explanations"]] == ["empty_replies"]
    assert samples.value("specdec_finding", finding="empty_replies") is None  # no alert
    assert samples.sum("specdec_drafts_total") == 0
