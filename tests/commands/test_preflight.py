"""Each line of the list against traffic of known composition."""

import asyncio
import fcntl
import json
import signal
import socket
import termios

import pytest

from sidecar.commands.preflight import ObservedTraffic, Recommendation, checklist, conclusion, note
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.engine.names import Gauge
from sidecar.requests.messages import read_packet
from tests.analysis.analysis_tools import finished as finished_request
from tests.requests.packets import FINISHED, HELLO, counts, finishing, packet

PARAMETERS = "supported parameters"
MEASURE = "`specdec-sidecar sweep` with and without speculation, then `specdec-sidecar compare`"


def request(temperature=0, *, ttft=0.1, duration=2.0, arrival=100.0, **fields):
    times = {"arrival": arrival, "first_token": 100.0 + ttft, "last_token": 100.0 + duration}
    return finished_request(temperature, **{**times, "prompt_tokens": 50, "output_tokens": 100, **fields})


def hello(**fields):
    return read_packet(packet(hello=HELLO | {"speculation": None} | fields)).hello


def traffic(*requests, running=2.0, waiting=0.0, usage=0.2, **fields):
    gauges = {Gauge.REQUESTS_RUNNING: running, Gauge.REQUESTS_WAITING: waiting, Gauge.KV_CACHE_USAGE: usage}
    poll = {gauge: value for gauge, value in gauges.items() if value is not None}
    given = {"hellos": [hello()], **fields}
    return ObservedTraffic(seconds=10.0, requests=list(requests), polls=[poll] * 10, **given)


def answered(observed):
    lines = checklist(observed)
    return {line.condition: line.answer for line in lines}, conclusion(observed, lines)


def test_suitable_traffic_is_advised_to_use_it():
    answers, verdict = answered(traffic(*[request()] * 30))
    assert len(answers) == 9
    assert set(answers.values()) == {Recommendation.USE}
    assert verdict == f"Use it: all conditions are met. Measure the speedup ({MEASURE})."


@pytest.mark.parametrize(
    ("condition", "change", "answer"),
    [
        ("low temperatures", {"temperature": 100}, Recommendation.LEAVE),
        ("low temperatures", {"temperature": 70}, Recommendation.OPEN),
        ("time spent decoding", {"ttft": 1.5}, Recommendation.LEAVE),
        ("time spent decoding", {"ttft": 1.0}, Recommendation.OPEN),
        ("time spent decoding", {"arrival": None}, None),
        ("time spent decoding", {"arrival": 101.0}, None),
        ("long outputs", {"output_tokens": 10}, Recommendation.LEAVE),
        ("long outputs", {"output_tokens": 30}, Recommendation.OPEN),
        ("short prompts", {"prompt_tokens": 9000}, Recommendation.OPEN),
        ("free-form output", {"structured": True}, Recommendation.OPEN),
        ("light load", {"running": 20.0}, Recommendation.OPEN),
        ("light load", {"running": 64.0}, Recommendation.LEAVE),
        ("light load", {"running": None}, None),
        ("no queue", {"waiting": 3.0}, Recommendation.LEAVE),
        ("free KV cache", {"usage": 0.8}, Recommendation.OPEN),
        ("free KV cache", {"usage": 0.95}, Recommendation.LEAVE),
        ("free KV cache", {"usage": None}, None),
    ],
)
def test_each_line_is_answered_from_the_requests_or_from_the_page(condition, change, answer):
    page = {name: change[name] for name in ("running", "waiting", "usage") if name in change}
    requests = [request(**{name: value for name, value in change.items() if name not in page})] * 30
    answers, _ = answered(traffic(*requests, **page))
    assert answers.pop(condition, None) is answer
    assert set(answers.values()) == {Recommendation.USE}


def test_parameters_that_speculation_rejects_leave_it_off():
    used = [request(parameters=(name,)) for name in ("min_p", "logit_bias", "presence_penalty", "logprobs")]
    _, verdict = answered(traffic(*used * 5))
    assert verdict == "Leave it off for now: 50% of requests use parameters that speculation rejects."


def test_a_mix_is_undecided_and_most_lines_against_it_leave_it_off():
    _, verdict = answered(traffic(*[request(0)] * 15, *[request(100)] * 15))
    assert verdict == f"Undecided: measure it ({MEASURE})."
    losing = request(100, ttft=1.9, output_tokens=5)
    _, verdict = answered(traffic(*[losing] * 30))
    assert verdict.startswith("Undecided: ")
    assert " against it: 100% of requests are sampled above a temperature of 0.8; requests spend only 5%" in verdict
    _, verdict = answered(traffic(*[losing] * 30, running=64.0, waiting=1.0))
    assert verdict == "Leave it off for now: requests were waiting 100% of the time."


@pytest.mark.parametrize(
    ("hot", "change", "is_noted"),
    [(9, {}, True), (8, {}, False), (30, {"speculates": True}, False)],
)
def test_the_sampling_of_the_draft_is_noted_where_much_of_the_traffic_is_hot(hot, change, is_noted):
    observed = traffic(*[request(81)] * hot, *[request(80)] * (30 - hot), **change)
    assert ("draft_sample_method" in note(observed)) == is_noted


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "Too few requests for an answer: saw 0, need at least 20. Watch longer, with --duration."),
        ({"hellos": []}, "No plug-in has connected: `specdec-sidecar plugin DIR` writes it"),
        ({"hellos": [hello(reason="add_request has other parameters")]}, "cannot report them: add_request has other"),
        ({"problem": "another process listens there"}, "cannot report them: another process listens there."),
        ({"speculates": True}, "This vLLM already speculates"),
    ],
)
def test_without_requests_it_says_why(change, reason):
    answers, verdict = answered(traffic(**change))
    assert reason in verdict
    assert set(answers) == {"light load", "no queue", "free KV cache"}


async def test_requests_that_the_plug_in_reports_are_answered_line_by_line(program, socket_path):
    """Thirty requests, of which a third use min_p and half have temperature 0."""
    async with SimulatedVllm(SimulatorOptions(num_speculative_tokens=0)) as vllm:
        settings = {"SPECDEC_VLLM_URL": vllm.url, "SPECDEC_PLUGIN__SOCKET": str(socket_path)}
        async with program("preflight", "--duration", "5m", "--json", **settings) as process:
            await process.stderr.readline()
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as plugin:
                while plugin.connect_ex(str(socket_path)):
                    await asyncio.sleep(0.02)
                plugin.send(packet(hello=HELLO | {"speculation": None}))
                done = FINISHED | dict.fromkeys(("drafts", "draft_tokens", "accepted_tokens"), 0) | {"lengths": []}
                for number in range(30):
                    used = {"parameters": ["min_p"] if number % 3 == 0 else []}
                    request_done = done | {"temperature": 100 * (number % 2)} | used
                    plugin.send(packet(report=finishing(request_done, end={"total": counts(), "lost": 0})))
                while any(fcntl.ioctl(plugin, termios.TIOCOUTQ, bytes(4))):  # not all has been read
                    await asyncio.sleep(0.02)
            process.send_signal(signal.SIGINT)
            out, _ = await process.communicate()
    assert process.returncode == 0
    answer = json.loads(out)
    lines = {line["condition"]: line for line in answer["lines"]}
    assert answer["note"].startswith("50% of requests are sampled above a temperature of 0.8. ")
    assert ": 30 requests, " in answer["seen"]
    assert lines["low temperatures"]["seen"] == "median 0.5; 50% up to 0.5, 50% above 0.8"
    assert lines["long outputs"]["seen"] == "P50 53 tokens, P95 53"
    assert lines[PARAMETERS]["seen"] == "min_p in 33%: rejected with status 400 (vLLM 0.14 and later)"
    assert answer["conclusion"] == "Leave it off for now: 33% of requests use parameters that speculation rejects."


async def test_a_vllm_that_speculates_already_is_not_traffic(finished):
    """Watching takes longer than a test may."""
    async with SimulatedVllm(SimulatorOptions()) as vllm:
        code, out, _ = await finished("preflight", "--duration", "1h", SPECDEC_VLLM_URL=vllm.url)
    assert code == 1
    assert out == "This vLLM already speculates: `specdec-sidecar run` shows whether it pays.\n"
