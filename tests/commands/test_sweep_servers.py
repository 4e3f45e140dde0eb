"""Sweeps of servers that count, fail, hang or redirect; what is sent."""

import asyncio
import json

import pytest
from aiohttp import web

from sidecar.errors import MeasurementError
from tests.commands.sweep_tools import measured_sweep, printed, summarized


def server(seen):
    """Answers as vLLM does, with three tokens, and keeps the requests."""

    async def handler(request):
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.method == "GET":
            return web.Response(status=404)
        seen.append((request.path, await request.json(), request.headers.get("Authorization")))
        chunk = {"choices": [{"index": 0, "text": "x"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 3}}
        events = [*map(json.dumps, (chunk, chunk, chunk, usage)), "[DONE]"]
        body = "".join(f"data: {event}\n\n" for event in events)
        return web.Response(text=body, content_type="text/event-stream")

    return handler


async def test_the_load_is_as_asked_for(served):
    """Concurrency, temperatures and prompts, as a server sees them; a warm-up comes first."""
    in_flight, seen, all_three = [0, 0], [], asyncio.Barrier(3)
    answer = server(seen)

    async def counting(request):
        in_flight[0] += 1
        in_flight[1] = max(in_flight)
        if request.method == "POST" and len(seen) == 2:  # after the warm-up
            await all_three.wait()
        try:
            return await answer(request)
        finally:
            in_flight[0] -= 1

    async with served(counting) as url:
        load = {"temperatures": (0.0, 0.5), "concurrency": 3, "count": 10}
        extra = {"top_k": 20, "temperature": 2, "min_tokens": 48}
        result = await measured_sweep(
            url, ("one", "two"), **load, endpoint="completions", extra_body=extra
        )
    assert result.complete
    assert in_flight[1] == 3
    asked = [(body["temperature"], body["max_tokens"], body["prompt"]) for _, body, _ in seen]
    assert sorted(asked[:2]) == [(0.0, 1, "one"), (0.0, 1, "two")]  # the warm-up
    for part, temperature in ((asked[2:12], 0.0), (asked[12:], 0.5)):
        assert sorted(part) == [(temperature, 48, "one")] * 5 + [(temperature, 48, "two")] * 5
    assert {path for path, _, _ in seen} == {"/v1/completions"}
    assert ["min_tokens" in body for _, body, _ in seen] == [False] * 2 + [
        True
    ] * 20  # not above max_tokens
    assert {(body["top_k"], key) for _, body, key in seen} == {(20, None)}
    assert len(result.levels[0].whole.samples) == 10


def page_of(drafted, generated=0):
    values = {"drafts": drafted / 4, "draft_tokens": drafted, "accepted_tokens": drafted / 2}
    labels = 'engine="0",model_name="m"'
    lines = [
        f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}" for name, value in values.items()
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{place}"}}'
        f" {drafted / 4 * share}"
        for place, share in enumerate((0.9, 0.6, 0.5, 0.0))
    ]
    counters = {
        "generation_tokens": generated,
        "prefix_cache_queries": 100 + drafted,
        "num_preemptions": drafted / 8,
    }
    lines += [f"vllm:{name}_total{{{labels}}} {value}" for name, value in counters.items()]
    lines.append(f"vllm:prefix_cache_hits_total{{{labels}}} {drafted / 4}")
    return web.Response(text="\n".join((*lines, "")), content_type="text/plain")


async def test_counters_that_come_late_are_waited_for(served):
    """The counters lag behind the answers.

    vLLM's engine reports to its API server with such a delay.
    """
    seen, shown = [], [0.0]
    answer = server(seen)

    async def late(request):
        if request.path != "/metrics":
            return await answer(request)
        shown[0] = min(8.0 * len(seen), shown[0] + 50)
        return page_of(shown[0])

    async with served(late) as url:
        result = await measured_sweep(url, ("one",), count=20)
    for level in summarized(result):
        values = level.metrics
        assert (values["draft tokens"], values["acceptance"], level.acceptance_from) == (
            160,
            0.5,
            "counters",
        )
        assert values["acceptance P50"] is None
        assert level.position_rates == pytest.approx((0.9, 0.6, 0.5, 0.0))


@pytest.mark.parametrize("others", [0, 1])
async def test_counters_with_the_drafts_of_other_clients_tell_no_acceptance_and_no_verdict(
    served, others
):
    """Three tokens are each request's own.

    The others' requests come and go in between, so that no page shows them.
    """
    seen = []
    answer = server(seen)

    async def shared(request):
        if request.path != "/metrics":
            return await answer(request)
        return page_of(8.0 * len(seen), (3 + others) * len(seen))

    async with served(shared) as url:
        result = await measured_sweep(url, ("one",), count=20, temperatures=(1.0,))
    (level,), lines = summarized(result), printed(result)
    expected = (None if others else 0.5, "none" if others else "counters", "insufficient_data")
    assert (level.metrics["acceptance"], level.acceptance_from, level.verdict) == expected
    prices = [level.metrics[name] for name in ("cache hit ratio", "preemptions/request")]
    assert prices == ([None, None] if others else [0.25, 1.0])
    for caveat in (
        "the acceptance is unknown, since vLLM's counters include the drafts",
        "vLLM also served other",
    ):
        assert any(line.startswith(caveat) for line in lines) == bool(others)


async def test_a_level_without_a_completed_request_has_no_acceptance(served):
    """Whatever the counters grew by meanwhile."""
    asked, stop = [], asyncio.Event()

    async def hangs(request):
        if request.path == "/metrics":
            return page_of(8.0 * len(asked))
        if request.method == "POST" and (await request.json())["max_tokens"] > 1:
            asked.append(request)
            stop.set()
            await asyncio.Event().wait()
        return await server([])(request)

    async with served(hangs) as url:
        result = await measured_sweep(url, ("one",), stop, count=20, temperatures=(1.0,))
    (level,) = summarized(result)
    values = level.metrics
    assert (values["requests"], values["acceptance"], level.verdict) == (
        0,
        None,
        "insufficient_data",
    )


async def test_a_key_goes_to_the_server_and_a_redirect_is_not_followed(served):
    elsewhere = []

    async def moved(request):
        if request.path == "/v1/models":
            assert request.headers["Authorization"] == "Bearer secret"
            return web.json_response({"data": [{"id": "m"}]})
        raise web.HTTPTemporaryRedirect(f"{other}{request.path}")

    async with served(server(elsewhere)) as other, served(moved) as url:
        with pytest.raises(MeasurementError, match=f"{url}: a request for m failed: status 307"):
            await measured_sweep(url, api_key="secret")
    assert elsewhere == []


async def test_a_server_that_fails_later_is_reported_with_what_was_measured(served):
    """Only a server that answers nothing is an error of the command."""
    answer, answered = server([]), iter(range(24))

    async def breaks(request):
        if request.method == "POST" and next(answered, None) is None:
            return web.Response(status=503)
        return await answer(request)

    async with served(breaks) as url:
        result = await measured_sweep(url, ("one",), count=10, temperatures=(0.0, 0.5, 1.0))
    assert [len(level.whole.samples) for level in result.levels] == [10, 10, 3]
    assert [level.whole.failed for level in result.levels] == [0, 0, 7]
    assert result.complete
    assert "requests failed; the last error: status 503" in printed(result)


@pytest.mark.parametrize("hangs_at", ["/v1/models", "/v1/chat/completions"])
async def test_the_whole_sweep_is_bounded_in_time(served, hangs_at):
    async def hangs(request):
        if request.path == hangs_at:
            await asyncio.Event().wait()
        return web.json_response({"data": [{"id": "m"}]})

    async with served(hangs) as url:
        result = await measured_sweep(url, seconds=0.2)
    assert (result.complete, result.levels) == (False, ())
    assert any(line.startswith("The sweep is incomplete") for line in printed(result))
