"""Acceptance by temperature on a real vLLM: exact to the token, inferred within the bar, and nothing harmed."""

import asyncio
import json
import math
import os
from collections import Counter
from contextlib import asynccontextmanager

import aiohttp
import pytest

from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.app import running
from sidecar.settings import load_settings
from tests.debian_servers import free_port
from tests.lab.conftest import send

pytestmark = pytest.mark.lab

# Five temperatures and none; the lab's own default is 1.0.
MIX = {0.0: 2, 0.2: 2, 0.4: 2, 0.6: 2, 0.9: 2, None: 1}
REQUESTS = 200  # of which the rarest temperature has eighteen
EXACT_REQUESTS = 80
WITHIN = 0.05


@asynccontextmanager
async def sidecar(vllm, source):
    """A sidecar with a source; gives its page's address and where requests go."""
    port = free_port()
    environment = {
        "SPECDEC_VLLM_URL": vllm.url,
        "SPECDEC_LISTEN": "127.0.0.1:0",
        "SPECDEC_REQUESTS__SOURCE": source,
        "SPECDEC_PROXY__LISTEN": f"127.0.0.1:{port}",
        "SPECDEC_TRACES__LISTEN": f"127.0.0.1:{vllm.traces_port}",
        "SPECDEC_MIDDLEWARE__SOCKET": str(vllm.socket),
    }
    async with running(load_settings(None, environment)) as address:
        yield f"http://{address}", f"http://127.0.0.1:{port}" if source == "proxy" else vllm.url


async def caught_up(samples, ours, target, source):
    """Our page with all that the middleware had queued: events come in order, and refused requests are counted at once.

    No other test of this file has a request refused.
    """
    up = await samples.until(ours, lambda found: found.value("specdec_up") == 1)
    if source != "middleware":
        return up
    body = ANSWER | {"max_tokens": -1}
    async with aiohttp.ClientSession() as session, session.post(f"{target}/v1/completions", json=body) as response:
        assert response.status == 400
    return await samples.until(ours, lambda found: found.sum("specdec_requests_total", outcome="error") == 1)


async def engine_counters(samples, url):
    found = await samples(url)
    return [found.value(f"vllm:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted")]


@pytest.mark.parametrize("source", ["proxy", "middleware"])
async def test_exact_attribution_equals_vllms_counters_to_the_token(shared, samples, source):
    vllm = shared(exact=True)
    await vllm.start()
    async with sidecar(vllm, source) as (ours, target):
        kept = await caught_up(samples, ours, target, source)
        before = await engine_counters(samples, vllm.url)
        summary = await send(target, MIX, EXACT_REQUESTS)
        after = await engine_counters(samples, vllm.url)

        def arrived(found):
            return found.since(kept).sum("specdec_requests_total", attribution="exact") == EXACT_REQUESTS

        page = await samples.until(ours, arrived)
    found = page.since(kept)
    drafted = found.sum("specdec_draft_tokens_total", attribution="exact")
    accepted = found.sum("specdec_accepted_tokens_total", attribution="exact")
    assert [drafted, accepted] == [after[0] - before[0], after[1] - before[1]]
    buckets = TemperatureBuckets()
    expected = Counter()
    for temperature, sums in summary.acceptance.items():
        label = buckets.label(temperature)
        expected[label, "requests"] += sums.requests
        expected[label, "draft_tokens"] += sums.draft_tokens
        expected[label, "accepted_tokens"] += sums.accepted_tokens
    for (label, name), amount in expected.items():
        assert found.sum(f"specdec_{name}_total", attribution="exact", temperature=label) == amount, (label, name)
    assert page.value("specdec_attribution_coverage_ratio") == pytest.approx(1, abs=0.02)


ANSWER = {
    "model": "lab",
    "prompt": "the quick brown fox",
    "max_tokens": 48,
    "temperature": 0,
    "seed": 7,
    "ignore_eos": True,
}


async def text_of(url, body):
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        return (await response.json())["choices"][0]["text"]


async def test_clients_run_unchanged_through_the_proxy(shared):
    vllm = shared(exact=True)
    await vllm.start()
    async with sidecar(vllm, "proxy") as (_, proxy):
        assert await text_of(proxy, ANSWER) == await text_of(vllm.url, ANSWER)
        executable = vllm.executable()
        client = await run(str(executable.with_name("python")), "-c", OPENAI_CLIENT, f"{proxy}/v1")
        assert json.loads(client) == {"chat": 40, "stream": 40, "completion": 40}
        bench = await run(
            *(str(executable), "bench", "serve", "--base-url", proxy, "--model", "lab", "--tokenizer", vllm.model()),
            *("--dataset-name", "random", "--random-input-len", "32", "--random-output-len", "32"),
            *("--num-prompts", "40", "--max-concurrency", "8"),
        )
        assert any(line.split() == ["Successful", "requests:", "40"] for line in bench.splitlines()), bench


async def run(*command):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()


OPENAI_CLIENT = """
import json, sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="none")
extra = {"ignore_eos": True}
messages = [{"role": "user", "content": "hello there"}]
chat = client.chat.completions.create(model="lab", messages=messages, max_tokens=40, temperature=0.5, extra_body=extra)
stream = client.chat.completions.create(
    model="lab", messages=messages, max_tokens=40, stream=True, stream_options={"include_usage": True}, extra_body=extra
)
streamed = [chunk.usage for chunk in stream if not chunk.choices][-1]
completion = client.completions.create(model="lab", prompt="hello", max_tokens=40, extra_body=extra)
print(json.dumps({"chat": chat.usage.completion_tokens, "stream": streamed.completion_tokens,
                  "completion": completion.usage.completion_tokens}))
"""


async def test_a_client_killed_mid_stream_is_an_abort_for_vllm(shared, samples):
    vllm = shared(exact=True)
    await vllm.start()
    async with sidecar(vllm, "proxy") as (ours, proxy):
        before = (await samples(vllm.url)).value("vllm:generation_tokens_total")
        body = {**ANSWER, "max_tokens": 1500, "stream": True}
        async with aiohttp.ClientSession() as session:
            response = await session.post(f"{proxy}/v1/completions", json=body)
            await response.content.readany()
            response.close()
        # vLLM stops generating. Its own request_success{abort} stays 0, for a direct client as well (0.32).
        stopped = await samples.until(vllm.url, lambda found: found.value("vllm:num_requests_running") == 0)
        generated = stopped.value("vllm:generation_tokens_total")
        assert generated - before < 1500
        await text_of(vllm.url, {**ANSWER, "max_tokens": 1})
        assert (await samples(vllm.url)).value("vllm:generation_tokens_total") == generated + 1
        await samples.until(ours, lambda found: found.sum("specdec_proxy_exchanges_total", outcome="client_gone") == 1)


async def test_a_sidecar_that_goes_away_harms_no_request(shared, samples):
    vllm = shared(exact=True)
    await vllm.start()
    await send(vllm.url, MIX, 20)  # there is no sidecar
    for _ in range(2):
        async with sidecar(vllm, "middleware") as (ours, _):
            kept = await caught_up(samples, ours, vllm.url, "middleware")
            await send(vllm.url, MIX, 20)

            def arrived(found, kept=kept):
                return found.since(kept).sum("specdec_requests_total", outcome="completed") == 20

            await samples.until(ours, arrived)
            vllm.socket.unlink()
            await send(vllm.url, MIX, 20)
        await send(vllm.url, MIX, 20)  # it is gone


MARKER = "xyzzy-plugh-4711"


async def test_no_text_of_a_prompt_gets_out(shared, samples, caplog):
    vllm = shared(exact=True)
    await vllm.start()
    async with sidecar(vllm, "middleware") as (ours, _):
        kept = await caught_up(samples, ours, vllm.url, "middleware")
        for stream in (False, True):
            body = {**ANSWER, "prompt": MARKER, "echo": True, "stream": stream}
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{vllm.url}/v1/completions", json=body) as response,
            ):
                assert MARKER in await response.text()
        await samples.until(ours, lambda found: found.since(kept).sum("specdec_requests_total") == 2)
        async with aiohttp.ClientSession() as session:
            for path in ("/metrics", "/api/v1/status", "/"):
                async with session.get(ours + path) as response:
                    assert MARKER not in await response.text()
    assert MARKER not in caplog.text
    files = [path for path in vllm.socket.parent.rglob("*") if path.is_file()]
    written = [path for path in files if MARKER in path.read_text(errors="replace")]
    assert not written


def acceptances(found):
    """Acceptance by temperature, whatever the attribution."""
    told = {}
    for label in TemperatureBuckets().labels:
        drafted = found.sum("specdec_draft_tokens_total", temperature=label)
        if drafted:
            told[label] = found.sum("specdec_accepted_tokens_total", temperature=label) / drafted
    return told


def acceptances_of(sums_by_temperature, default_temperature):
    """Their acceptance by the label of their bucket."""
    buckets = TemperatureBuckets(default_temperature=default_temperature)
    drafted, accepted = Counter(), Counter()
    for temperature, sums in sums_by_temperature.items():
        drafted[buckets.label(temperature)] += sums.draft_tokens
        accepted[buckets.label(temperature)] += sums.accepted_tokens
    return {label: accepted[label] / drafted[label] for label in drafted}


@pytest.fixture(scope="session")
def truth():
    """Sums by temperature of the same traffic with per-request numbers; one run serves several tests.

    The requests name their seeds. Without them a bucket of 50 requests differs by 0.05 and more from one run to the
    next, by sampling alone.
    """
    known = {}

    async def get(vllm):
        if not known:
            await vllm.start()
            known.update((await send(vllm.url, MIX, REQUESTS, seeded=True)).acceptance)
        return known

    return get


@pytest.mark.parametrize(
    "way",
    # The middleware first: later it would also report the requests that it queued during the other tests.
    [("middleware", ()), ("proxy", ()), ("traces", ()), ("proxy", ("--api-server-count", "2"))],
    ids=["middleware", "proxy", "traces", "two-api-servers"],
)
async def test_inferred_acceptance_is_within_the_bar(shared, samples, truth, way):
    source, extra = way
    exact = await truth(shared(exact=True))
    vllm = shared(*extra, exact=False)
    await vllm.start()
    async with sidecar(vllm, source) as (ours, target):
        kept = await caught_up(samples, ours, target, source)
        await send(target, MIX, REQUESTS, seeded=True)

        def settled(page):
            found = page.since(kept)
            done = found.sum("specdec_requests_total", outcome="completed")
            drafted = found.sum("specdec_engine_draft_tokens_total")
            return done >= REQUESTS and found.sum("specdec_draft_tokens_total") > 0.9 * drafted

        found = (await samples.until(ours, settled)).since(kept)
    assert found.sum("specdec_requests_total", attribution="exact") == 0
    # A trace tells the temperature in force, which is the lab model's own 1.0 where a request names none.
    truth = acceptances_of(exact, 1.0 if source == "traces" else None)
    told = acceptances(found)
    print({label: f"{told.get(label, math.nan):.4f} for {value:.4f}" for label, value in truth.items()})  # noqa: T201 - shown by -rP
    assert told == pytest.approx(truth, abs=WITHIN)
