"""Each line of the list against traffic of known composition."""

import asyncio
import json
import signal

import aiohttp
import pytest

from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.commands.preflight.answers import Answer, answers, conclusion
from sidecar.commands.preflight.watch import Watched
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.engine.names import Gauge
from sidecar.requests.observe.endpoint import CHAT
from sidecar.requests.observe.payload import read_request
from sidecar.requests.record import Outcome, RequestRecord
from tests.commands.commands_tools import command, sidecar_settings


def request(temperature=0.0, *, ttft=0.1, duration=2.0, tokens=100, **fields):
    given = {"path": CHAT, "model": "m", "choices": 1, "stream": True, "outcome": Outcome.COMPLETED}
    given |= {"start": 100.0, "first_token": 100.0 + ttft, "end": 100.0 + duration, "prompt_tokens": 50}
    return RequestRecord(id="1", temperature=temperature, completion_tokens=tokens, **given | fields)


def watched(*requests, running=2.0, waiting=0.0, usage=0.2, version="0.32.0", **fields):
    gauges = {Gauge.REQUESTS_RUNNING: running, Gauge.REQUESTS_WAITING: waiting, Gauge.KV_CACHE_USAGE: usage}
    poll = {gauge: value for gauge, value in gauges.items() if value is not None}
    return Watched(seconds=10.0, requests=list(requests), polls=[poll] * 10, version=version, **fields)


def answered(found, default=None):
    lines = answers(found, TemperatureBuckets(), default)
    return {line.question: line.answer for line in lines}, conclusion(found, lines)


def test_suitable_traffic_is_advised_to_use_it():
    found, verdict = answered(watched(*[request()] * 30))
    assert set(found.values()) == {Answer.USE}
    assert verdict.startswith("use it: ")


@pytest.mark.parametrize(
    ("question", "change", "answer"),
    [
        ("cool sampling", {"temperature": 1.0}, Answer.LEAVE),
        ("cool sampling", {"temperature": 0.7}, Answer.OPEN),
        ("cool sampling", {"temperature": None}, Answer.UNKNOWN),
        ("time goes to decoding (TPOT)", {"ttft": 1.5}, Answer.LEAVE),
        ("time goes to decoding (TPOT)", {"ttft": 1.0}, Answer.OPEN),
        ("time goes to decoding (TPOT)", {"first_token": None, "stream": False}, Answer.UNKNOWN),
        ("long outputs", {"tokens": 10}, Answer.LEAVE),
        ("long outputs", {"tokens": 30}, Answer.OPEN),
        ("long outputs", {"tokens": None}, Answer.UNKNOWN),
        ("no request that speculation breaks", {"parameters": ("min_p",)}, Answer.LEAVE),
        ("no request that speculation breaks", {"parameters": ("presence_penalty",)}, Answer.USE),
    ],
)
def test_each_line_about_requests_is_answered_from_them(question, change, answer):
    found, _ = answered(watched(*[request(**change)] * 30))
    assert found.pop(question) is answer
    assert set(found.values()) == {Answer.USE}


@pytest.mark.parametrize(
    ("question", "change", "answer"),
    [
        ("light load", {"running": 20.0}, Answer.OPEN),
        ("light load", {"running": 64.0}, Answer.LEAVE),
        ("light load", {"running": None}, Answer.UNKNOWN),
        ("no queue", {"waiting": 3.0}, Answer.LEAVE),
        ("room in the KV cache", {"usage": 0.8}, Answer.OPEN),
        ("room in the KV cache", {"usage": 0.95}, Answer.LEAVE),
        ("room in the KV cache", {"usage": None}, Answer.UNKNOWN),
    ],
)
def test_each_line_about_the_server_is_answered_from_its_page(question, change, answer):
    found, _ = answered(watched(*[request()] * 30, **change))
    assert found.pop(question) is answer
    assert set(found.values()) == {Answer.USE}


@pytest.mark.parametrize(
    ("version", "parameter", "answer", "blocks"),
    [
        ("0.32.0", "logit_bias", Answer.LEAVE, True),
        ("0.32.0", "min_tokens", Answer.USE, False),
        ("0.12.0", "min_p", Answer.OPEN, False),
        ("0.12.0", "repetition_penalty", Answer.OPEN, False),
        ("0.12rc1.dev7+gabcdef", "min_p", Answer.OPEN, False),
        ("", "min_p", Answer.LEAVE, True),
    ],
)
def test_parameters_are_judged_by_the_version(version, parameter, answer, blocks):
    found, verdict = answered(watched(*[request(parameters=(parameter,))] * 30, version=version))
    assert found["no request that speculation breaks"] is answer
    assert ("leave it off as things are" in verdict) == blocks


def test_lines_about_requests_need_requests():
    found, verdict = answered(watched())
    assert set(list(found.values())[:3]) == {Answer.UNKNOWN}
    assert found["no request that speculation breaks"] is Answer.UNKNOWN
    assert verdict.startswith("too few requests: 0 seen")


def test_a_default_temperature_that_is_set_counts():
    found, _ = answered(watched(*[request(None)] * 30), default=1.0)
    assert found["cool sampling"] is Answer.LEAVE


def test_a_mix_or_too_few_requests_are_inconclusive():
    _, verdict = answered(watched(*[request(0.0)] * 15, *[request(1.0)] * 15))
    assert verdict == "undecided: measure it with `specdec-sidecar sweep --baseline-url`"
    _, verdict = answered(watched(*[request()] * 19))
    assert verdict.startswith("too few requests: 19 seen")
    _, verdict = answered(watched(*[request()] * 30, speculates=True))
    assert verdict.startswith("this vLLM speculates already")


@pytest.mark.parametrize(
    ("body", "parameters"),
    [
        ({"min_p": 0.1, "min_tokens": 3}, ("min_p", "min_tokens")),
        ({"min_p": 0, "logit_bias": {}, "repetition_penalty": 1.0, "presence_penalty": 0.0}, ()),
        ({"logit_bias": {"5": 1}, "repetition_penalty": 1.2}, ("repetition_penalty", "logit_bias")),
        ({"logit_bias": None, "min_p": None}, ()),
    ],
)
def test_parameters_are_read_from_the_body(body, parameters):
    assert read_request(CHAT, json.dumps({"model": "m"} | body).encode()).parameters == parameters


async def test_a_vllm_without_speculation_behind_the_proxy(program):
    """Thirty requests of which a third set min_p, half at temperature 0 and half at 1."""
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=0, speed=4)) as vllm:
        settings = sidecar_settings(vllm.url)
        async with program("preflight", "--duration", "5m", "--json", **settings) as process:
            await process.stderr.readline()
            url = f"http://{settings['SPECDEC_PROXY__LISTEN']}/v1/completions"
            async with aiohttp.ClientSession() as session, asyncio.timeout(120):
                for number in range(30):
                    body = {"prompt": "a b c", "max_tokens": 60, "ignore_eos": True, "temperature": float(number % 2)}
                    body |= {"stream": True} | ({"min_p": 0.1} if number % 3 == 0 else {})
                    await _post(session, url, body)
            process.send_signal(signal.SIGINT)
            out, _ = await process.communicate()
    assert process.returncode == 0
    found = json.loads(out)
    lines = {line["question"]: line for line in found["lines"]}
    assert found["seen"][0].split(": ")[1].startswith("30 requests (30 completed)")
    assert lines["cool sampling"]["seen"].startswith("median 0.5; up to 0.5: 50%, above 0.8: 50% (0: 50%, 0.7-1: 50%)")
    assert lines["long outputs"]["seen"].startswith("output P50 60 tokens, P95 60; prompt P50 2, P95 2")
    assert lines["no request that speculation breaks"]["seen"] == "min_p in 33%: rejected with 400 by vLLM 0.32.0"
    assert lines["time goes to decoding (TPOT)"]["answer"] == "use it"
    assert lines["room in the KV cache"]["answer"] == "use it"
    assert found["conclusion"] == "leave it off as things are; not met: no request that speculation breaks"


async def _post(session, url, body):
    while True:
        try:
            async with session.post(url, json=body) as response:
                assert response.status == 200
                await response.read()
                return
        except aiohttp.ClientConnectorError:  # the proxy does not listen yet
            await asyncio.sleep(0.05)


def test_without_a_source_there_is_nothing_to_watch(capsys):
    assert command("preflight") == 2
    assert "no request source to watch" in capsys.readouterr().err
