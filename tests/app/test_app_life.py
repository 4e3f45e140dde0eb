"""The sidecar beside a vLLM that starts late, dies, restarts or answers nonsense.

Also new settings, and a clock that is set.
"""

import asyncio
import time
from itertools import pairwise

import pytest
import structlog
from blockbuster import blockbuster_ctx
from structlog.testing import capture_logs

from sidecar.engine.scrape import Poller
from sidecar.requests.plugin import install
from sidecar.settings.groups import Thresholds
from sidecar.settings.reload import Reloader
from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.demo.traffic import MIXED, Traffic, TrafficOptions
from tests.app.app_tools import work
from tests.debian_servers import free_port
from tests.demo.http_vllm import HttpVllm
from tests.waiting import until

VERDICT = "specdec_model_verdict"
DERIVED = ("specdec_kv_cache_usage_ratio", "specdec_requests_running", "specdec_engine_limitation")


def drafted(samples):
    return samples.sum("specdec_engine_draft_tokens_total")


async def test_counters_keep_their_values_while_vllm_is_down_and_fall_only_with_its_restart(
    sidecar,
):
    """Sampled all the way: before vLLM starts, while it serves, is down, and is back."""
    seen, port = {}, free_port()

    def watch(samples):
        for key, value in samples.items():
            if key[0].endswith(("_total", "_bucket", "_count")) and not key[0].startswith(
                "process_"
            ):
                assert value >= seen.get(key, 0), key
                seen[key] = value
        return samples

    def server():
        return HttpVllm(SimulatorOptions(speed=50.0), port=port)

    async with sidecar(f"http://127.0.0.1:{port}") as page:
        await page.until(lambda samples: watch(samples).up, 0)  # vLLM starts later than the sidecar
        async with server() as simulated:
            await page.until(lambda samples: watch(samples).up)
            await work(simulated, 4)
            count = simulated.counter("spec_decode_num_draft_tokens")
            before = await page.until(
                lambda samples: (drafted(watch(samples)), samples.up), (count, 1)
            )
            assert before.names & {*DERIVED}
        down = await page.until(lambda samples: watch(samples).up, 0)
        assert not down.names & {*DERIVED}
        assert drafted(down) == drafted(before) > 0
        async with server() as simulated:
            await page.until(lambda samples: samples.sum("specdec_vllm_restarts_total"), 1)
            for key in [key for key in seen if ("engine", "0") in key[1]]:
                del seen[key]  # its own start again at 0
            await work(simulated, 1)
            count = simulated.counter("spec_decode_num_draft_tokens")
            await page.until(lambda samples: drafted(watch(samples)), count)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("error_500", "status"), ("html", "not_an_exposition"), ("hang", "timeout")],
)
async def test_a_fault_of_vllm_is_counted_logged_once_and_passes(fault, reason, *, vllm, sidecar):
    """Meanwhile vLLM's own series are gone.

    Repeated, they would show a server that is down as one that works.
    """

    def own(samples):
        return {name for name in samples.names if name.startswith("vllm:")}

    key = ("specdec_scrape_errors_total", frozenset({("reason", reason)}))
    given = {"scrape_timeout": "1s"} if reason == "timeout" else {}
    with capture_logs() as logs:
        async with sidecar(vllm.url, reexport="true", **given) as page:
            assert "vllm:num_requests_running" in own(await page.until(own))
            vllm.fault = fault
            assert own(await page.until(lambda samples: samples.up, 0)) == set()
            down = await page.until(lambda samples: samples[key] >= 2, seconds=30)
            assert down.up == 0
            vllm.fault = None
            up = await page.until(own)
            assert up.up
            failed = {labels for (name, labels), value in up.items() if name == key[0] and value}
            assert failed == {key[1]}
    assert {line["reason"] for line in logs if "reason" in line} == {reason}
    events = [line["event"] for line in logs if "vLLM" in line["event"]]
    assert events[:2] == ["cannot read vLLM's metrics", "vLLM responds again"]
    # A busy machine may time out once more.
    assert all(event != following for event, following in pairwise(events))


async def test_stopping_in_the_middle_of_polls_leaves_nothing_behind(vllm, sidecar):
    """No error is logged, no session stays open (warnings are errors), whenever it comes."""
    before = asyncio.all_tasks()
    with capture_logs() as logs:
        for _ in range(10):
            async with sidecar(vllm.url) as page:
                await page()
    assert [line for line in logs if line["log_level"] in {"error", "warning"}] == []
    await until(lambda: asyncio.all_tasks() - before, set())


async def test_the_sidecar_never_blocks_the_event_loop(vllm, sidecar):
    """Any call that would block it raises."""
    with blockbuster_ctx() as blockbuster:
        # Files of /proc are the kernel's memory: reading them waits for nothing.
        for function in blockbuster.functions.values():
            function.can_block_in("prometheus_client/process_collector.py", {"collect"})
            function.can_block_in("export/web.py", {"make_web"})  # once, before anything is served
        async with sidecar(vllm.url) as page:
            await page.until(lambda samples: samples.up)
            for path in ("/metrics", "/api/v1/status", "/", "/-/ready"):
                assert (await page.get(path)).status == 200


LAX = {
    "acceptance_net_negative": 0.0,
    "acceptance_break_even": 0.01,
    "min_requests": 1,
    "min_drafts_per_second": 0.0,
}
STRICT = LAX | {"acceptance_net_negative": 0.98, "acceptance_break_even": 0.99}


async def test_new_thresholds_change_the_verdict_and_the_page(vllm, sidecar):
    reloaders = []

    def reloader(settings):
        strict = settings.model_copy(update={"thresholds": Thresholds(**STRICT)})
        reloaders.append(Reloader(settings, lambda: strict, structlog.get_logger("test")))
        return reloaders[0]

    def verdict(samples):
        names = {
            dict(pairs)["verdict"]
            for (name, pairs), value in samples.items()
            if name == VERDICT and value == 1
        }
        return names, samples.value("specdec_threshold", name="acceptance_net_negative")

    lax = {f"thresholds__{name}": str(value) for name, value in LAX.items()}
    async with sidecar(vllm.url, reloader=reloader, **lax) as page:
        await page.until(lambda samples: samples.up)
        await work(vllm, 240)
        await page.until(verdict, ({"net_positive"}, 0))
        reloaders[0].request()
        await page.until(verdict, ({"net_negative"}, 0.98))


HOUR = 3600.0
REAL = time.time


class Wall:
    ahead = 0.0

    def __call__(self):
        return REAL() + self.ahead


@pytest.fixture
def wall(monkeypatch):
    """The clock of everything, the plug-in and the simulated vLLM included; it can be set."""
    clock = Wall()
    monkeypatch.setattr(time, "time", clock)
    monkeypatch.setitem(Poller.__init__.__kwdefaults__, "wall_clock", clock)
    defaults = tuple(clock if one is REAL else one for one in install.__defaults__)
    monkeypatch.setattr(install, "__defaults__", defaults)
    return clock


@pytest.mark.slow
@pytest.mark.parametrize("jump", [HOUR, -HOUR])
async def test_a_clock_that_is_set_leaves_no_number_wrong(jump, wall, socket_path, sidecar):
    """By an hour in either direction, under load; counts stay exact to the token."""
    async with (
        HttpVllm(SimulatorOptions(speed=20.0), plugin_socket=socket_path) as vllm,
        sidecar(vllm.url) as page,
    ):
        traffic = Traffic(vllm, TrafficOptions((MIXED,), max_requests=10**9, max_tokens=32))
        sending = asyncio.create_task(traffic.run())
        before = (
            await page.until(
                lambda samples: samples.sum("specdec_requests_total") > 100, seconds=30
            )
        ).names
        # Ticks that seem to be from before the engine's start are not compared with vLLM's
        # counters.
        before.discard("specdec_request_coverage_ratio")

        wall.ahead = jump
        await page.until(
            lambda samples: before <= samples.names and samples.sum("specdec_requests_total") > 200
        )
        traffic.stop()
        await sending
        # A clock set forward looks like a silent plug-in, whose split is withheld until its next
        # tick.
        after = await page.until(
            lambda samples: samples.sum("specdec_requests_total") == traffic.completed
        )
        for name in ("drafts", "draft_tokens", "accepted_tokens"):
            assert after.sum(f"specdec_{name}_total") == vllm.counter(f"spec_decode_num_{name}")
        # The eight in flight seem to have taken an hour more, or nothing; no other request does.
        assert 0 < after.sum("specdec_request_duration_seconds_sum") < 8.5 * HOUR
