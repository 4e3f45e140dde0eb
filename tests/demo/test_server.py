"""The simulated vLLM as a server: counters against responses, aborts, restarts, limits, load."""

import asyncio
import json
from io import BytesIO
from urllib.parse import urlsplit

import aiohttp
import pytest

from sidecar.demo.driver import Delta, Mailbox
from sidecar.demo.generation import FinishReason
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.traffic import MIXED, Phase, TrafficOptions
from tests.demo.counted_traffic import CountedTraffic
from tests.demo.faulty_vllm import FaultyVllm

FAST = SimulatorOptions(speed=20.0)
LONG = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}


def value(counters, sample, *labels):
    return counters[f"vllm:{sample}"][labels]


async def test_sums_of_responses_equal_the_counters_to_the_token(counters):
    async with FaultyVllm(FAST) as sim:
        traffic = CountedTraffic(
            TrafficOptions(sim.url, phases=(Phase(600.0, MIXED),), max_requests=150, concurrency=24)
        )
        summary = await traffic.run()
        read = await counters(sim)
    assert (summary.sent, summary.completed, summary.failed) == (150, 150, 0)
    sums = summary.acceptance.values()
    assert sum(one.requests for one in sums) == 150
    drafts = sum(one.drafts for one in sums)
    assert value(read, "spec_decode_num_drafts_total") == drafts > 0
    assert value(read, "spec_decode_num_draft_tokens_total") == sum(one.draft_tokens for one in sums)
    accepted = sum(one.accepted_tokens for one in sums)
    assert value(read, "spec_decode_num_accepted_tokens_total") == accepted
    assert sum(read["vllm:spec_decode_num_accepted_tokens_per_pos_total"].values()) == accepted
    assert value(read, "generation_tokens_total") == summary.completion_tokens
    assert value(read, "request_success_total", ("finished_reason", "length")) == 150
    assert value(read, "inter_token_latency_seconds_count") == drafts  # as in the recordings of the real one
    for once in ("e2e_request_latency_seconds", "time_to_first_token_seconds"):
        assert value(read, f"{once}_count") == 150
    computed = value(read, "prompt_tokens_total") - value(read, "prefix_cache_hits_total")
    assert value(read, "iteration_tokens_total_sum") == computed + summary.completion_tokens
    assert value(read, "prefix_cache_queries_total") == value(read, "prompt_tokens_total")
    assert 0 < value(read, "prefix_cache_hits_total") < value(read, "prompt_tokens_total")
    assert value(read, "num_requests_running") == value(read, "kv_cache_usage_perc") == 0
    rates = {temperature: one.accepted_tokens / one.draft_tokens for temperature, one in summary.acceptance.items()}
    assert rates[0.0] > rates[0.3] > rates[0.7] > rates[1.0]
    assert abs(rates[None] - rates[1.0]) < 0.15  # the model's default temperature


async def test_requests_for_several_choices_draft_and_carry_no_acceptance(client, counters):
    async with FaultyVllm(FAST) as sim:
        body = {"prompt": "a", "max_tokens": 40, "n": 2, "temperature": 1.0, "ignore_eos": True}
        _, reply = await read_all(client, f"{sim.url}/v1/completions", body)
        read = await counters(sim)
    assert json.loads(reply)["metrics"] is None
    assert value(read, "spec_decode_num_drafts_total") > 0
    assert value(read, "e2e_request_latency_seconds_count") == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_client_that_goes_away_ends_its_generation(client, counters, eventually, stream):
    async with FaultyVllm() as sim:
        request = asyncio.create_task(read_all(client, f"{sim.url}/v1/completions", LONG | {"stream": stream}))
        await eventually(lambda: sim.counter("generation_tokens") > 5)
        assert sim.engine.load.running == 1
        request.cancel()
        await eventually(lambda: sim.engine.load.running == 0)
        read = await counters(sim)
        assert value(read, "request_success_total", ("finished_reason", "abort")) == 0  # as vLLM 0.32
        assert value(read, "num_requests_running") == value(read, "kv_cache_usage_perc") == 0
        tokens = value(read, "generation_tokens_total")
        assert (await read_all(client, f"{sim.url}/v1/completions", {"prompt": "b", "max_tokens": 1}))[0] == 200
        assert value(await counters(sim), "generation_tokens_total") == tokens + 1


async def read_all(client, url, body):
    async with client.post(url, json=body) as response:
        return response.status, await response.read()


async def test_restart_starts_over_and_breaks_off_what_runs(client, counters, eventually):
    async with FaultyVllm() as sim:
        url = f"{sim.url}/v1/completions"
        await read_all(client, url, {"prompt": "a", "max_tokens": 4})
        before = await counters(sim)
        running = [asyncio.create_task(read_all(client, url, LONG | {"stream": stream})) for stream in (True, False)]
        # Streams break off within their body, so the first bytes must be out.
        await eventually(lambda: sim.engine.load.running == 2 and sim.counter("generation_tokens") > 20)
        await sim.restart()
        for request in running:
            with pytest.raises(aiohttp.ClientError):
                await request
        read = await counters(sim)
        for sample, series in read.items():
            if sample.startswith("vllm:") and sample.endswith(("_total", "_count", "_sum", "_bucket")):
                assert set(series.values()) == {0.0}, sample
        assert value(read, "num_requests_running") == value(read, "kv_cache_usage_perc") == 0
        for start in ("process_start_time_seconds", "vllm:spec_decode_num_drafts_created"):
            assert read[start][()] > before[start][()]
        assert (await read_all(client, url, {"prompt": "a", "max_tokens": 4}))[0] == 200
        assert value(await counters(sim), "request_success_total", ("finished_reason", "abort")) == 0


async def test_256_streams_run_at_once(eventually):
    options = SimulatorOptions(max_num_seqs=256, num_gpu_blocks=16_384, speed=5.0)
    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with (
        FaultyVllm(options) as sim,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        url = f"{sim.url}/v1/completions"
        requests = [asyncio.create_task(read_all(session, url, body)) for _ in range(256)]
        await eventually(lambda: sim.engine.load.running == 256)
        replies = await asyncio.gather(*requests)
        assert sim.counter("generation_tokens") == 256 * 400
    assert all(status == 200 and reply.endswith(b"[DONE]\n\n") for status, reply in replies)


async def test_slow_reader_finds_steps_merged_and_no_token_lost():
    mailbox = Mailbox()
    mailbox.put(0, 1, None)
    mailbox.put(1, 4, FinishReason.STOP)
    mailbox.put(0, 3, None)
    mailbox.put(0, 2, FinishReason.LENGTH)
    assert await mailbox.take() == [Delta(0, 6, FinishReason.LENGTH), Delta(1, 4, FinishReason.STOP)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await mailbox.take()


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/completions", b"{", 400, None),
        ("/v1/completions", b"[" * 100_000, 400, None),
        ("/v1/completions", b'{"prompt": "\xff"}', 400, None),
        ("/v1/completions", b'{"prompt": "secret", "temperature": "hot"}', 400, None),
        ("/v1/completions", b'{"prompt": "secret", "max_tokens": 0}', 400, "max_tokens"),
        ("/v1/completions", b'{"prompt": "secret", "n": 0}', 400, "n"),
        ("/v1/completions", b'{"prompt": "secret", "n": 2, "temperature": 0}', 400, None),
        ("/v1/completions", b'{"prompt": "secret", "n": 1000}', 400, None),
        ("/v1/completions", b'{"prompt": [["secret"], 1]}', 400, "prompt"),
        ("/v1/completions", b'{"prompt": []}', 400, "prompt"),
        ("/v1/chat/completions", b'{"messages": []}', 400, "messages"),
        ("/v1/chat/completions", b'{"messages": ["secret"]}', 400, "messages"),
        ("/v1/completions", b'{"prompt": "' + b"secret" * 10_000 + b'"}', 400, None),  # beyond max_model_len
        ("/v1/completions", b'{"prompt": "' + b"secret" * 1_000_000 + b'"}', 413, None),
    ],
)
async def test_unusable_requests_get_an_openai_error_without_their_text(client, path, body, status, param):
    async with FaultyVllm() as sim, client.post(sim.url + path, data=BytesIO(body)) as response:
        assert response.status == status
        text = await response.text()
    assert "secret" not in text
    error = json.loads(text)["error"]
    assert (error["code"], error["param"], error["type"]) == (status, param, "BadRequestError")


@pytest.mark.parametrize("prompt", ["text", [1, 2, 3], ["a", "b"], [[1, 2], [3]]])
async def test_prompts_may_be_text_or_tokens(client, prompt):
    async with FaultyVllm(FAST) as sim:
        status, reply = await read_all(client, f"{sim.url}/v1/completions", {"prompt": prompt, "max_tokens": 2})
    choices = 2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert status == 200
    assert len(json.loads(reply)["choices"]) == choices


async def test_chat_prefers_max_completion_tokens_and_takes_content_parts(client):
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "max_tokens": 9,
        "max_completion_tokens": 3,
        "ignore_eos": True,
    }
    async with FaultyVllm(FAST) as sim:
        _, reply = await read_all(client, f"{sim.url}/v1/chat/completions", body)
    assert json.loads(reply)["usage"]["completion_tokens"] == 3


async def test_service_endpoints_answer(client):
    async with FaultyVllm() as sim:
        async with client.get(f"{sim.url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["demo"]
        async with client.get(f"{sim.url}/version") as response:
            assert await response.json() == {"version": "0.32.0"}
        for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
            async with client.request(method, sim.url + path) as response:
                assert (response.status, await response.read()) == (200, b"")


def test_url_of_a_server_that_does_not_run_is_an_error():
    with pytest.raises(RuntimeError):
        _ = FaultyVllm().url


async def test_clients_that_leave_mid_stream_are_no_error(caplog):
    """A write may happen after a client has disconnected and before the server notices."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    body = json.dumps({"prompt": "x", "stream": True, "max_tokens": 500, "ignore_eos": True}).encode()
    async with FaultyVllm(FAST) as sim:

        async def leave(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(sim.url).port)
            writer.write(head % len(body) + body)
            for _ in range(number % 7 + 1):
                await reader.readuntil(b"data: ")
            writer.transport.abort()

        await asyncio.gather(*(leave(number) for number in range(64)))
        async with asyncio.timeout(120):
            while sim.engine.load.running:
                await asyncio.sleep(0.005)
    assert [line for line in caplog.messages if "Error" in line] == []
