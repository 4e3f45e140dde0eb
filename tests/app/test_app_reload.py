"""New thresholds reach the verdicts and the page of a running sidecar."""

from contextlib import AsyncExitStack

import structlog

from sidecar.demo.options import SimulatorOptions
from sidecar.settings.groups import Thresholds
from sidecar.settings.reload import Reloader
from tests.app.app_tools import is_up, work
from tests.demo.faulty_vllm import FaultyVllm

LAX = {"acceptance_net_negative": 0.0, "acceptance_break_even": 0.01, "min_requests": 1, "min_drafts_per_second": 0.0}
STRICT = LAX | {"acceptance_net_negative": 0.98, "acceptance_break_even": 0.99}


async def test_verdicts_follow_new_thresholds(socket_path, sidecar, unused_tcp_port):
    reloaders = []

    def reloader(settings):
        strict = settings.model_copy(update={"thresholds": Thresholds(**STRICT)})
        reloaders.append(Reloader(settings, lambda: strict, structlog.get_logger("test")))
        return reloaders[0]

    def verdict(name):
        pairs = {"model_name": "demo", "temperature": "0", "verdict": name}
        return "specdec_verdict", frozenset(pairs.items())

    lax = {f"thresholds__{name}": str(value) for name, value in LAX.items()}
    options = {"port": unused_tcp_port, "plugin_socket": socket_path}
    async with (
        AsyncExitStack() as stack,
        sidecar(f"http://127.0.0.1:{unused_tcp_port}", reloader=reloader, **lax) as page,
    ):
        vllm = await stack.enter_async_context(FaultyVllm(SimulatorOptions(speed=50.0), **options))
        await page.until(is_up)
        await work(vllm, 60)
        await page.until(lambda samples: samples.get(verdict("net_positive")) == 1)
        reloaders[0].request()
        await page.until(lambda samples: samples.get(verdict("net_negative")) == 1)
        threshold = ("specdec_threshold", frozenset({("name", "acceptance_net_negative")}))
        assert (await page())[threshold] == 0.98
