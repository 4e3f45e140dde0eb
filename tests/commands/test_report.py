import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.verdict import Gate, Verdict
from sidecar.errors import BadStatus
from sidecar.export.status import status
from sidecar.wording.notes import LIMITATIONS
from tests.commands.commands_tools import command
from tests.export.reports import (
    NEVER_CONNECTED,
    STRUCTURED,
    difference,
    down,
    engine,
    group,
    judgement,
    model,
    report,
    shown,
    temperature,
    timed,
    timed_model,
    window,
)


@pytest.fixture
def reported(capsys, served):
    """What the report on a sidecar with this tree prints."""

    async def run(tree, *options):
        async def handler(_request):
            return web.json_response(status(shown(tree)))

        async with served(handler) as url:
            assert await asyncio.to_thread(command, "report", "--url", url, *options) == 0
        return capsys.readouterr().out.replace(url, "URL")

    return run


async def test_a_temperature_is_shown_as_the_sidecar_judged_it(reported):
    over_an_hour = judgement(Verdict.NET_NEGATIVE, 0.6, judged=replace(window(0.3), seconds=3000.0))
    losing = temperature("1+", Verdict.NET_NEGATIVE, 0.6, share=0.5, judgement=over_an_hour)
    by_time = timed("0", Verdict.NET_POSITIVE, 0.7, 30.0, 20.0)
    little = judgement(Verdict.INSUFFICIENT_DATA, 0.3, gate=Gate("min_requests", 20))
    tree = report(timed_model(by_time, losing, temperature("0.7-1", judgement=little), engines=()))
    text = await reported(tree)
    over = (
        "The acceptance rate is of the last 50 min, since the last 5 min had too little traffic."
        " Route this traffic to pods that do not speculate, or speculate fewer tokens."
    )
    rows = {
        line.split()[0]: line.split()
        for line in text.splitlines()
        if line.startswith(("0 ", "1+ "))
    }
    times = ["80.0", "200.0", "300.0", "20.0", "30.0", "40.0"]
    assert rows["0"] == [
        "0",
        "net_positive",
        "1.500",
        "0.700",
        "0.500",
        "0.700",
        "0.800",
        "50%",
        "40",
        *times,
    ]
    assert rows["1+"] == [
        "1+",
        "net_negative",
        "-",
        "0.300",
        "0.400",
        "0.600",
        "0.700",
        "50%",
        "40",
        *times,
    ]
    assert {
        f"  temperature 1+: {over}",
        "  temperature 0.7-1: No verdict: below thresholds.min_requests (20).",
        "  speedup 1.500 ± 0.020; break-even acceptance rate 0.310",
    } <= set(text.splitlines())
    page = status(shown(tree))
    assert text.startswith(
        f"Does speculation pay? {page['answer']['text']}\n\n{page['answer']['why']}\n"
    )
    assert page["plugin"]["text"] in text


async def test_who_accepts_less_and_what_each_engine_does(reported):
    unjudged = judgement(Verdict.INSUFFICIENT_DATA)
    nothing = {"judgement": unjudged, "latencies": {}, "speculation": None, "coverage": None}
    limited = engine(limitations=frozenset({Limitation.NO_POSITIONS}), **nothing)
    groups = (
        group("prompt_tokens", "8k-32k", 0.4, difference=difference(0.4, 0.65)),
        group("output", "free"),
    )
    groups += (group("output", "structured", without_drafts=True),)
    text = await reported(
        report(model(temperature("0"), groups=groups, engines=(limited, engine(index="1"))))
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["prompts", "of", "8k-32k", "tokens", "40%", "25", "±", "2", "points", "50%"] in lines
    assert not any(line[:2] == ["free", "output"] for line in lines)
    assert "  No drafts in the window for structured output." in text.splitlines()
    assert ["0", *["-"] * 9] in lines
    times = ["20.0", "60.0", "100.0"] * 2
    assert ["1", "eagle3,", "3", "tokens", "0.600", "1.000", *times] in lines
    assert f"  {LIMITATIONS[Limitation.NO_POSITIONS]}" in text.splitlines()
    assert (
        "  No speedup for demo: the step time without speculation is not known; measure it " in text
    )


async def test_why_it_loses_and_what_to_change(reported):
    lines = (await reported(report(model(temperature("0"), findings=(STRUCTURED,))))).splitlines()
    (why,) = (
        line
        for line in lines
        if line.startswith("  structured_output: Requests with structured output accept")
    )
    after = lines[lines.index(why) + 1 :]
    assert after[0].startswith(
        "  Route these requests to pods that do not speculate, or that draft with n-gram"
    )
    assert after[1].startswith("  To verify: `specdec-sidecar sweep --url http://CHANGED:8000")


async def test_times_by_vllms_buckets_say_so_and_are_bounds_below_the_first(reported):
    fine = engine()
    coarse = {phase: replace(known, resolution=0.05) for phase, known in fine.latencies.items()}
    text = await reported(report(model(temperature("0"), engines=(engine(latencies=coarse),))))
    (header,) = [" ".join(line.split()) for line in text.splitlines() if line.startswith("engine ")]
    assert header.endswith("coverage TTFT by bucket P50 P95 P99 TPOT by bucket P50 P95 P99")
    assert " <50.0  60.0  100.0 " in text


async def test_markdown_has_tables_of_equal_width(reported):
    text = await reported(
        report(model(temperature("0"), temperature("1+"))), "--format", "markdown"
    )
    assert text.startswith("### Does speculation pay? ")
    tables = [
        [len(line.split("|")) for line in part.splitlines()]
        for part in text.split("\n\n")
        if part[:1] == "|"
    ]
    assert [len(table) for table in tables] == [2 + 2, 2 + 1]
    assert all(len(set(table)) == 1 for table in tables)


async def test_without_a_split_it_says_why_once(reported):
    text = await reported(report(model(), plugin=NEVER_CONNECTED))
    assert text.count("No plug-in has connected yet,") == 1


async def test_a_sidecar_whose_vllm_is_down_says_so(reported):
    """What is known of its models describes another moment."""
    text = await reported(report(model(temperature("0")), scrape=down(BadStatus("status 500"))))
    assert text.startswith(
        "Does speculation pay? The sidecar cannot read vLLM's metrics.\n\nstatus 500. "
    )
    assert text.splitlines()[-1] == "vLLM's metrics were last read at 2023-11-14 22:13:23 UTC."


def test_no_sidecar_at_the_address(capsys):
    assert command("report", "--url", "http://user:secret@127.0.0.1:1") == 1
    err = capsys.readouterr().err
    assert err.startswith("no report from http://***@127.0.0.1:1: ")
    assert err.endswith("; set --url to the address of a running sidecar, not of vLLM\n")
    assert "secret" not in err


async def test_a_sidecar_that_asks_for_a_password(capsys, served):
    async def handler(request):
        signed_in = request.headers.get("Authorization", "").startswith("Basic ")
        if not signed_in:
            return web.Response(status=401)
        return web.json_response(status(shown(report(model()))))

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url) == 1
        err = capsys.readouterr().err
        assert err.endswith(
            ": status 401 (status); it asks for a password: --url http://USER:PASSWORD@HOST:PORT\n"
        )
        assert (
            await asyncio.to_thread(command, "report", "--url", url.replace("//", "//user:secret@"))
            == 0
        )


@pytest.mark.parametrize(
    "body", ["[]", "{}", "<html>", '{"answer": 1}', '{"version": "1", "models": [{}]}']
)
async def test_another_server_is_told_from_a_sidecar(capsys, served, body):
    async def handler(_request):
        return web.Response(text=body)

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"no report from {url}: ")
    assert len(err.splitlines()) == 1
