"""The split by temperature, end to end.

The running sidecar is beside a simulated vLLM that the plug-in observes.
"""

from specdec_tools.demo.scheduler import SimulatorOptions
from tests.app.app_tools import work
from tests.demo.http_vllm import HttpVllm
from tests.waiting import until

MIX = {0.0: 2, 0.2: 2, 0.6: 2, 1.0: 2}
COUNTERS = ("drafts", "draft_tokens", "accepted_tokens")


def sums(samples):
    """Drafts, draft tokens and accepted tokens over all temperatures."""
    return [samples.sum(f"specdec_{name}_total") for name in COUNTERS]


def counters(vllm):
    """vLLM's own counters of the same."""
    return [vllm.counter(f"spec_decode_num_{name}") for name in COUNTERS]


async def test_the_split_is_vllms_own_count_to_the_token_and_restarts_with_vllm_alone(
    vllm, sidecar
):
    """A restart of the sidecar is invisible in it."""
    async with sidecar(vllm.url) as page:
        await work(vllm, 40, mix=MIX)
        samples = await page.until(
            lambda samples: [*sums(samples), samples.sum("specdec_requests_total")],
            [*counters(vllm), 40],
        )
        for temperature in ("0", "0-0.3", "0.5-0.7", "0.7-1"):
            assert samples.sum("specdec_draft_tokens_total", temperature=temperature) > 0
        drafted = samples.sum("specdec_draft_tokens_total")
        assert samples.sum("specdec_draft_tokens_per_position_total") == drafted
        name, groups = "specdec_group_draft_tokens_total", ("prompt_tokens", "output")
        assert all(samples.sum(name, by=by) == drafted for by in groups)
        await page.until(lambda samples: samples.sum("specdec_request_acceptance_ratio_count"), 40)

        async def is_whole():
            """A report that was later than vLLM's page counts from there on alone."""
            await work(vllm, 1)
            return (await page()).sum("specdec_request_coverage_ratio") == 1

        await until(is_whole)
        assert (await page()).sum("specdec_plugin_info", state="observing") == 1
    await work(vllm, 20, mix=MIX)
    async with sidecar(vllm.url) as page:

        async def has_connected():
            """Within the requests of the next seconds: the plug-in has tried in vain before."""
            await work(vllm, 1)
            return any(sums(await page()))

        await until(has_connected)
        await page.until(sums, counters(vllm))
        await vllm.restart()
        await work(vllm, 10, mix=MIX)
        after = await page.until(sums, counters(vllm))
        assert after.sum("specdec_requests_total") == 10


async def test_without_a_plugin_everything_but_the_split_is_there(sidecar):
    async with HttpVllm(SimulatorOptions(speed=50.0)) as vllm, sidecar(vllm.url) as page:
        await work(vllm)
        samples = await page.until(
            lambda samples: samples.sum("specdec_engine_draft_tokens_total") > 0
        )
        assert not samples.names & {"specdec_plugin_info", "specdec_requests_total"}
        assert b"No plug-in has connected yet" in (await page.get("/")).body
