"""The sidecar's own request to a vLLM that has no other: sent, counted and told apart."""

from sidecar.app import running
from sidecar.settings import load_settings
from sidecar.settings.groups import Probe
from tests.app.app_tools import sidecar_settings, work
from tests.page import Page

# Shorter than what can be set, so that the test need not wait for a minute.
QUICK = Probe.model_construct(interval=0.5, model=None, prompt="Hello", api_key=None)


async def test_an_idle_vllm_answers_probes_which_are_in_none_of_the_sidecars_tables(
    vllm, socket_path
):
    """vLLM's own counters have them; what the requests of others did is as it was."""
    given = sidecar_settings(vllm.url, PLUGIN__SOCKET=socket_path, LISTEN="127.0.0.1:0")
    settings = load_settings(None, given).model_copy(update={"probe": QUICK})

    async with running(settings) as address:
        page = Page(f"http://{address}")
        await work(vllm)
        before = await page.until(lambda now: now.sum("specdec_requests_total"), 3)
        generated = before.sum("specdec_generation_tokens_total")

        after = await page.until(
            lambda now: now.value("specdec_probes_total", outcome="answered") >= 3
        )

    assert after.value("specdec_probe_success") == 1
    assert after.value("specdec_probe_duration_seconds") > 0
    assert after.value("specdec_engine_healthy", reason="stalled") == 1
    assert after.sum("specdec_generation_tokens_total") >= generated + 2
    assert after.sum("specdec_requests_total") == 3
    assert after.sum("specdec_group_requests_total") == before.sum("specdec_group_requests_total")
