"""What this product's own commands ask a vLLM, which is in no number of the users' requests."""

import re

import pytest

from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.measuring.client import Client
from specdec_tools.measuring.workload import RequestOptions
from tests.app.app_tools import work
from tests.demo.http_vllm import HttpVllm
from tests.waiting import until

USERS = 30
OURS = 20
OPTIONS = SimulatorOptions(speed=50.0)


async def measure(vllm, is_own):
    """Requests of another temperature and length than the users', as ``sweep`` sends them."""
    options = RequestOptions(endpoint="completions", max_tokens=64)
    async with Client(vllm.url, options, is_own=is_own) as client:
        await client.connect("the")
        for _ in range(OURS - 1):
            assert await client.ask("a prompt", 1.7) is not None


@pytest.mark.parametrize("is_own", [True, False])
async def test_requests_of_its_own_commands_are_in_no_temperature_and_the_page_says_so(
    is_own, sidecar, socket_path
):
    """They are in vLLM's own counters, as anybody's requests are."""
    async with HttpVllm(OPTIONS, plugin_socket=socket_path) as vllm, sidecar(vllm.url) as page:
        await measure(vllm, is_own)
        await work(vllm, USERS)
        drafts = vllm.counter("spec_decode_num_drafts")
        users = USERS if is_own else USERS + OURS
        await page.until(lambda samples: samples.sum("specdec_requests_total"), users)

        async def notes():
            (model,) = (await page.status())["models"]
            return [note for note in model["notes"] if "own commands" in note]

        said = await until(notes) if is_own else await notes()
        samples = await page()

    # what the first report has may be from before the sidecar listened
    sent = [
        int(number)
        for number in re.findall(r" (\d+) requests of the sidecar's own", " ".join(said))
    ]
    assert [OURS / 2 < number <= OURS for number in sent] == [True] * is_own
    assert (samples.value("specdec_drafts_total", temperature="1+") == 0) == is_own
    assert (samples.sum("specdec_drafts_total") < drafts) == is_own
    assert samples.sum("specdec_request_endings_total") == users
    assert samples.value("specdec_request_coverage_ratio") == 1
