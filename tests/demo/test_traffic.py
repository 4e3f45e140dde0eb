"""The traffic generator: its mix, its limits, its end."""

import asyncio

import pytest
from aiohttp import web

from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import COLD, HOT, Phase, Traffic, TrafficOptions, cold_hot_cold
from tests.demo.counted_traffic import CountedTraffic


@pytest.fixture
async def serve():
    """Starts servers that answer everything with a handler; ``stop`` ends them before the test does."""
    runners = []

    async def start(handler):
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def stop():
        while runners:
            await runners.pop().cleanup()

    start.stop = stop
    yield start
    await stop()


async def test_requests_have_the_mix_asked_for(serve):
    seen = []

    async def answer(request):
        body = await request.json()
        seen.append((request.path, body.get("temperature", "none"), bool(body.get("stream"))))
        text = 'data: {"usage":{"completion_tokens":2}}\n\ndata: [DONE]\n\n'
        return web.Response(text=text if body.get("stream") else '{"usage":{"completion_tokens":2}}')

    url = await serve(answer)
    mix = {0.0: 6, 0.7: 2, None: 2}
    options = TrafficOptions(url, phases=(Phase(600.0, mix),), max_requests=400, concurrency=4)
    summary = await CountedTraffic(options).run()
    assert (summary.sent, summary.completed, summary.failed, len(seen)) == (400, 400, 0, 400)
    assert summary.completion_tokens == 800
    assert summary.acceptance == {}
    counts = {kind: sum(one[1] == kind for one in seen) for kind in (0.0, 0.7, "none")}
    assert counts == pytest.approx({0.0: 240, 0.7: 80, "none": 80}, abs=32)
    assert summary.by_temperature == {0.0: counts[0.0], 0.7: counts[0.7], None: counts["none"]}
    assert {(path, stream) for path, _, stream in seen} == {
        (path, stream) for path in ("/v1/completions", "/v1/chat/completions") for stream in (False, True)
    }
    assert sum(stream for _, _, stream in seen) / 400 == pytest.approx(0.7, abs=0.08)


@pytest.mark.parametrize("repeat", [False, True])
async def test_phases_follow_each_other_and_then_end_or_repeat(serve, repeat):
    seen = []

    async def answer(request):
        seen.append((await request.json())["temperature"])
        return web.Response(text="{}")

    phases = (Phase(20.0, {0.0: 1}), Phase(10.0, {1.0: 1}))
    options = TrafficOptions(
        await serve(answer), phases=phases, repeat=repeat, concurrency=1, max_requests=50, streamed=0.0
    )
    # Each request takes a second of this clock.
    await Traffic(options, clock=lambda: float(len(seen))).run()
    assert seen == [0.0] * 20 + [1.0] * 10 + ([0.0] * 20 if repeat else [])


def test_schedule_goes_from_cold_to_hot_and_back():
    phases = cold_hot_cold(100.0)
    assert sum(phase.seconds for phase in phases) == 100.0
    assert (phases[0].mix, phases[2].mix, phases[4].mix) == (COLD, HOT, COLD)


async def test_refused_requests_are_failures(serve):
    async def handler(_request):
        return web.Response(status=503)

    url = await serve(handler)
    options = TrafficOptions(url, phases=(Phase(600.0, COLD),), max_requests=4, streamed=0.0)
    summary = await Traffic(options).run()
    assert (summary.sent, summary.completed, summary.failed) == (4, 0, 4)


@pytest.mark.parametrize(
    "text",
    ["", "data: {}\n\n", "data: [DONE]\n\n", "data: {}\n\n" * 2, "x" * 1_000_000],
    ids=["empty", "unended", "no event", "no mark", "long"],
)
async def test_streams_that_end_badly_are_failures(serve, text):
    async def handler(_request):
        return web.Response(text=text, content_type="text/event-stream")

    url = await serve(handler)
    options = TrafficOptions(url, phases=(Phase(600.0, COLD),), max_requests=2, streamed=1.0)
    summary = await Traffic(options).run()
    assert (summary.completed, summary.failed) == (0, 2)


async def test_server_that_is_down_or_too_slow_is_a_failure(serve):
    async def handler(_request):
        await asyncio.Event().wait()

    url = await serve(handler)
    options = TrafficOptions(url, phases=(Phase(600.0, COLD),), max_requests=2, request_seconds=0.1)
    assert (await Traffic(options).run()).failed == 2
    await serve.stop()
    assert (await Traffic(options).run()).failed == 2


async def test_seeded_requests_can_be_sent_again(serve):
    seen = []

    async def answer(request):
        seen.append(await request.json())
        return web.Response(text='{"usage":{"completion_tokens":2}}')

    url = await serve(answer)
    options = TrafficOptions(url, phases=(Phase(600.0, COLD),), max_requests=20, concurrency=1, streamed=0, seeded=True)
    for _ in range(2):
        await Traffic(options).run()
    assert seen[:20] == seen[20:]
    assert len({body["seed"] for body in seen}) == 20


async def test_cancelled_traffic_leaves_nothing_running(eventually):
    async with SimulatedVllm() as sim:
        options = TrafficOptions(sim.url, phases=(Phase(0.01, COLD),), repeat=True, min_tokens=5000, max_tokens=5000)
        traffic = Traffic(options)
        task = asyncio.create_task(traffic.run())
        await eventually(lambda: sim.engine.load.running == 8)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: sim.engine.load.running == 0)
    assert traffic.summary.sent == 8
