"""The sidecar's own request: what is sent, how it may end, and that one fault is one line."""

import asyncio
import json
from dataclasses import dataclass, field

import pytest
import structlog
from aiohttp import web
from structlog.testing import capture_logs

from sidecar.engine.probe import ProbeOutcome, Prober, ProbeTarget
from sidecar.log import StateLog
from sidecar.settings.groups import Probe, Scrape

COMPLETION = {"data": {"object": "text_completion", "choices": [{"text": "A"}]}}
FOR_EVER = 3600  # seconds
TARGET = ProbeTarget("org/m", None)


@dataclass
class Subject:
    """Wants one request after the other."""

    target: ProbeTarget | None = TARGET
    judged: ProbeOutcome | None = None  # instead of how it ended
    sent_at: list[float] = field(default_factory=list)
    put_off_at: list[float] = field(default_factory=list)
    outcomes: list[ProbeOutcome] = field(default_factory=list)

    def due(self, at):
        return self.target

    def put_off(self, at):
        self.put_off_at.append(at)

    def sent(self, at):
        self.sent_at.append(at)

    def ended(self, outcome, seconds):
        self.outcomes.append(outcome)
        return self.judged or outcome


async def awake():
    return False


async def paused():
    return True


def prober(url, subject, *, is_paused=awake, timeout=60.0, scrape=None, **probe):
    return Prober(
        Scrape(vllm_url=url, **(scrape or {})),
        Probe(interval=60, **probe),
        subject,
        is_paused,
        StateLog(structlog.get_logger("sidecar.test")),
        timeout=timeout,
        clock=lambda: 7.0,
        every=0,
    )


def answering(asked, **response):
    """A handler that answers so, and notes path, headers and body of what was asked."""

    async def answer(request):
        asked.append((request.path, request.headers, await request.json()))
        return web.json_response(**response)

    return answer


async def test_one_token_at_temperature_0_is_asked_for_under_the_products_own_mark(served):
    """The plug-in leaves what has the mark out of every table."""
    subject = Subject()
    asked = []
    async with served(answering(asked, **COMPLETION)) as url:
        await prober(url, subject).look()

    ((path, headers, body),) = asked
    assert path == "/v1/completions"
    assert body == {"model": "org/m", "prompt": "Hello", "max_tokens": 1, "temperature": 0.0}
    assert headers["X-Request-Id"].startswith("specdec-own-")
    assert not {"Authorization", "X-data-parallel-rank"} & set(headers)
    assert subject.outcomes == [ProbeOutcome.ANSWERED]
    assert subject.sent_at == [7.0]


async def test_model_prompt_key_and_rank_are_the_given_ones(served):
    """The key takes the place of credentials in the URL: one of the two can be sent."""
    asked = []
    async with served(answering(asked, **COMPLETION)) as url:
        with_user = url.replace("http://", "http://user:hidden@")
        named = {"model": "other", "prompt": "1, 2,", "api_key": "sk-1"}
        await prober(with_user, Subject(ProbeTarget("org/m", "3")), **named).look()

    ((_, headers, body),) = asked
    assert (body["model"], body["prompt"]) == ("other", "1, 2,")
    assert headers["Authorization"] == "Bearer sk-1"
    assert headers["X-data-parallel-rank"] == "3"


async def test_nothing_is_sent_unless_it_is_due(served):
    asked = []
    async with served(answering(asked, **COMPLETION)) as url:
        await prober(url, Subject(target=None)).look()

    assert not asked


async def test_a_paused_vllm_is_left_alone(served):
    """Its request would wait until vLLM is resumed."""
    subject = Subject()
    asked = []
    async with served(answering(asked, **COMPLETION)) as url:
        await prober(url, subject, is_paused=paused).look()

    assert not asked
    assert (subject.put_off_at, subject.sent_at) == ([7.0], [])


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"data": {"error": "secret"}, "status": 401}, "status 401; is probe.api_key the key"),
        ({"data": {"error": "secret"}, "status": 404}, "status 404; does it serve /v1/completions"),
        ({"data": {}, "status": 503}, "status 503"),
        ({"data": {}, "status": 307, "headers": {"Location": "/"}}, "status 307"),
        ({"data": {"choices": []}}, "the answer is not a completion"),
        ({"text": "not JSON"}, "the answer is not a completion"),
        ({"text": "[" * 60_000}, "the answer is not a completion"),
        ({"text": '{"choices": [1]' + " " * 70_000 + "}"}, "the answer has more than 65536 bytes"),
    ],
    ids=["401", "404", "503", "redirect", "empty", "text", "nested", "endless"],
)
async def test_an_answer_that_is_no_completion_is_a_refusal(served, response, reason):
    """It says why, and repeats nothing of the answer."""
    subject = Subject()
    asked = []
    async with served(answering(asked, **response)) as url:
        with capture_logs() as lines:
            await prober(url, subject).look()

    assert len(asked) == 1
    assert subject.outcomes == [ProbeOutcome.REFUSED]
    assert [line["reason"][: len(reason)] for line in lines] == [reason]
    assert "secret" not in json.dumps(lines)


async def test_a_server_that_is_gone_is_unreachable(served):
    subject = Subject()
    async with served(answering([])) as url:
        pass
    await prober(url, subject).look()

    assert subject.outcomes == [ProbeOutcome.UNREACHABLE]


async def test_a_certificate_that_cannot_be_read_any_more_is_no_crash(served, tmp_path, authority):
    """The files are read for each request, since they may be renewed."""
    subject = Subject()
    async with served(answering([], **COMPLETION)) as url:
        missing = {"vllm_cert_file": tmp_path / "gone.pem"}
        scrape = Scrape(vllm_url=url).model_copy(
            update={"vllm_url": url.replace("http:", "https:"), **missing}
        )
        one = prober(url, subject)
        one._scrape = scrape
        await one.look()

    assert subject.outcomes == [ProbeOutcome.UNREACHABLE]


@pytest.mark.parametrize("begins", [False, True], ids=["silent", "headers_only"])
async def test_an_engine_that_does_not_answer_in_time(served, begins):
    """Whether nothing comes at all, or the answer never ends."""
    subject = Subject()

    async def never(request):
        if begins:
            answer = web.StreamResponse()
            await answer.prepare(request)
        await asyncio.sleep(FOR_EVER)

    async with served(never) as url:
        await prober(url, subject, timeout=0.05).look()

    assert subject.outcomes == [ProbeOutcome.UNANSWERED]


async def test_a_fault_that_lasts_is_one_line_and_so_is_its_end(served):
    """What other requests came before is no fault."""
    subject = Subject()
    responses = [{"data": {}, "status": 500}] * 3 + [COMPLETION] * 2

    async def answer(_):
        return web.json_response(**responses.pop(0))

    async with served(answer) as url:
        one = prober(url, subject)
        with capture_logs() as lines:
            for _ in range(5):
                await one.look()

            subject.judged = ProbeOutcome.OVERTAKEN
            responses.append({"data": {}, "status": 500})
            await one.look()

    assert [line["event"] for line in lines] == [
        "vLLM did not answer the sidecar's probe",
        "vLLM answers the sidecar's probe again",
    ]


async def test_a_request_that_is_out_ends_with_the_sidecar(served):
    """It is not counted as out for ever, and its connection is closed."""
    subject = Subject()
    arrived = asyncio.Event()
    gone = asyncio.Event()

    async def never(_):
        arrived.set()
        try:
            await asyncio.sleep(FOR_EVER)
        finally:
            gone.set()

    async with served(never) as url:
        running = asyncio.create_task(prober(url, subject).run())
        await arrived.wait()
        running.cancel()
        await gone.wait()

    assert subject.outcomes == [ProbeOutcome.UNREACHABLE]
