import asyncio
import json

import pytest
from aiohttp import web

from sidecar.app import running
from sidecar.demo.options import SimulatorOptions
from sidecar.demo.server import SimulatedVllm
from sidecar.demo.traffic import Phase, TrafficOptions
from sidecar.settings import load_settings
from tests.commands.commands_tools import RECORDINGS, command, sidecar_settings
from tests.demo.counted_traffic import CountedTraffic


def test_a_recording_as_text(capsys):
    assert command("report", "--recording", str(RECORDINGS / "draft_model-k3")) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.startswith(("0 ", "0.3-0.5 ", "0.7-1 "))}
    assert rows["0"][:4] == ["0", "net_positive", "-", "0.695"]
    assert rows["0.7-1"][:4] == ["0.7-1", "net_negative", "-", "0.494"]
    assert rows["0.3-0.5"][7:10] == ["19%", "95", "exact"]
    advised = [line.partition(":")[0].strip() for line in lines if "pods that don't speculate" in line]
    assert advised == ["temperature 0.7-1"]  # the one that loses


def test_a_recording_against_a_baseline_is_judged_by_speedup(capsys, tmp_path):
    file, levels = tmp_path / "baseline.yaml", RECORDINGS.parent / "levels"
    assert command("baseline", "--recording", str(levels / "plain"), "--out", str(file)) == 0
    capsys.readouterr()
    asked = ("report", "--recording", str(levels / "k3"), "--format", "json")
    assert command(*asked, BASELINE_FILE=str(file)) == 0
    rows = {row["temperature"]: row for row in json.loads(capsys.readouterr().out)["models"][0]["rows"]}
    assert rows["1+"]["speedup"] == pytest.approx(0.928, abs=0.05)
    assert rows["1+"]["verdict"] == "break_even"  # it accepts 39 %, and loses no more than the error of the baseline


def test_a_recording_with_too_few_requests_gets_no_advice(capsys):
    environment = {"THRESHOLDS__MIN_REQUESTS": "1000", "THRESHOLDS__ACCEPTANCE_FEWER_TOKENS": "0.6"}
    assert command("report", "--recording", str(RECORDINGS / "draft_model-k3"), "--format", "json", **environment) == 0
    rows = json.loads(capsys.readouterr().out)["models"][0]["rows"]
    assert {(row["verdict"], row["advice"]) for row in rows} == {("insufficient_data", None)}


def test_a_recording_as_markdown_is_one_table(capsys):
    assert command("report", "--recording", str(RECORDINGS / "draft_model-k3"), "--format", "markdown") == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + 3


def test_a_recording_as_json_agrees_with_its_replay(capsys):
    recording = str(RECORDINGS / "draft_model-k3")
    assert command("report", "--recording", recording, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert command("replay", recording, "--json") == 0
    expected = json.loads(capsys.readouterr().out)["temperatures"]
    rows = {row["temperature"]: row for row in found["models"][0]["rows"]}
    assert rows.keys() == expected.keys()
    for label, row in rows.items():
        for key in ("requests", "draft_tokens", "acceptance", "p10", "p50", "p90", "attribution"):
            assert row[key] == expected[label][key]
        assert 0 < row["ttft"]["p50"] < row["ttft"]["p99"]
        assert 0 < row["tpot"]["p50"] < row["tpot"]["p99"]
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)


def test_thresholds_of_the_settings_judge_a_recording(capsys):
    environment = {"THRESHOLDS__ACCEPTANCE_NET_NEGATIVE": "0.8", "THRESHOLDS__ACCEPTANCE_BREAK_EVEN": "0.9"}
    assert command("report", "--recording", str(RECORDINGS / "draft_model-k3"), "--format", "json", **environment) == 0
    rows = json.loads(capsys.readouterr().out)["models"][0]["rows"]
    assert {row["verdict"] for row in rows} == {"net_negative"}


def test_a_directory_without_a_recording(tmp_path, capsys):
    assert command("report", "--recording", str(tmp_path)) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def settings_for(url, source="proxy"):
    return load_settings(None, sidecar_settings(url, source))


async def test_a_running_sidecar(capsys):
    async with SimulatedVllm(SimulatorOptions(speed=5)) as vllm:
        settings = settings_for(vllm.url)
        async with running(settings):
            mix = {0.0: 1, 1.0: 1}
            options = TrafficOptions(f"http://{settings.proxy.listen}", phases=(Phase(60, mix),), max_requests=60)
            sent = await CountedTraffic(options).run()
            found = await _reported(capsys, settings, lambda rows: sum(row["requests"] for row in rows) == 60)
            assert await asyncio.to_thread(command, "report", LISTEN=str(settings.listen)) == 0
            text = capsys.readouterr().out
    rows = {row["temperature"]: row for row in found["models"][0]["rows"]}
    assert rows.keys() == {"0", "0.7-1"}
    for label, temperature in (("0", 0.0), ("0.7-1", 1.0)):
        assert rows[label]["requests"] == sent.acceptance[temperature].requests
        assert rows[label]["draft_tokens"] == sent.acceptance[temperature].draft_tokens
        assert rows[label]["attribution"] == "exact"
        assert 0 < rows[label]["ttft"]["p50"] <= rows[label]["ttft"]["p99"]
        assert 0 < rows[label]["tpot"]["p50"] <= rows[label]["tpot"]["p99"]
    drafted = sum(one.draft_tokens for one in sent.acceptance.values())
    assert rows["0"]["share"] == sent.acceptance[0.0].draft_tokens / drafted
    assert found["engines"][0]["ttft"]["p50"] > 0
    assert f"\n0  {' ' * 9}" in text


async def _reported(capsys, settings, condition):
    """The JSON report once its rows are as wanted."""
    async with asyncio.timeout(120):
        while True:
            assert await asyncio.to_thread(command, "report", "--format", "json", LISTEN=str(settings.listen)) == 0
            out = capsys.readouterr().out
            found = json.loads(out[out.index("{\n") :])  # the sidecar's log lines come before it
            if condition([row for model in found["models"] for row in model["rows"]]):
                return found


async def test_without_a_request_source_it_says_so(capsys):
    async with SimulatedVllm() as vllm:
        settings = settings_for(vllm.url, "none")
        async with running(settings):
            assert await asyncio.to_thread(command, "report", "--url", f"http://{settings.listen}") == 0
    assert "No request source: acceptance is not split by temperature." in capsys.readouterr().out


async def test_a_sidecar_whose_vllm_is_down_says_so(capsys):
    settings = settings_for("http://127.0.0.1:1")
    async with running(settings):
        assert await asyncio.to_thread(command, "report", "--url", f"http://{settings.listen}") == 0
    assert "vllm cannot be scraped" in capsys.readouterr().out


def test_no_sidecar_at_the_address(capsys):
    assert command("report", "--url", "http://user:secret@127.0.0.1:1") == 1
    err = capsys.readouterr().err
    assert err.startswith("no report from http://***@127.0.0.1:1 (unreachable): ")
    assert err.endswith("; set --url to the address of a running sidecar, not of vLLM\n")
    assert "secret" not in err


def test_a_bad_url_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        command("report", "--url", "ftp://user:secret@x")
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "secret" not in err
    assert "expected http or https URL" in err


@pytest.mark.parametrize("body", ["[]", "{}", "<html>", '{"targets": 1}', '{"version": "1", "targets": [{}]}'])
async def test_another_server_is_told_from_a_sidecar(capsys, served, body):
    async def handler(_request):
        return web.Response(text=body)

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url) == 1
    err = capsys.readouterr().err
    assert "not_an_exposition" in err
    assert len(err.splitlines()) == 1


async def test_a_temperature_is_shown_as_the_status_has_it(capsys, served):
    bucket = {"verdict": "net_positive", "advice": None, "requests": 9, "draft_tokens": 5.0, "acceptance": 0.8}
    bucket |= dict.fromkeys(("p10", "p50", "p90")) | {"share": 0.25, "attribution": "exact, inferred"}
    times = {"ttft": {"p50": 0.075, "p99": 0.5}, "tpot": {"p50": None, "p99": None}}
    bucket |= times | {"basis": "acceptance", "speed": {"speedup": 1.234}}
    model = {"model_name": "m", "coverage": None, "residual": None, "temperatures": {"0": bucket}}
    status = status_of([model], attributed=9)

    (row,) = json.loads(await reported(capsys, served, status, "--format", "json"))["models"][0]["rows"]
    assert row["ttft"] == times["ttft"] | {"p50_below": None, "p99_below": None}
    line = next(line for line in (await reported(capsys, served, status)).splitlines() if line.startswith("0 "))
    assert line.split() == [
        *("0", "net_positive", "1.234", "0.800", "-", "-", "-", "25%", "9", "exact,", "inferred"),
        *("75.0", "500.0", "-", "-"),
    ]


async def test_an_engines_times_below_vllms_first_bucket_are_bounds(capsys, served):
    latency = {"resolution": 0.01, "quantiles": {"0.5": 0.005, "0.99": 0.035}}
    engine = {"model_name": "m", "engine": "0", "acceptance": None, "latency": {"tpot": latency}, "limitations": []}
    text = await reported(capsys, served, status_of([], engines=[engine]))
    assert "vllm: m, engine 0           -         -    -       <10  35.0" in text


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"ended": 924}, "vllm: 924 requests ended, none could be attributed."),
        ({}, "vllm: no request has ended within the window, or none is attributed yet."),
    ],
)
async def test_a_report_without_rows_says_why(capsys, served, found, expected):
    lines = (await reported(capsys, served, status_of([], notes=["Do this."], **found))).splitlines()
    assert [line.strip() for line in lines[-2:]] == [expected, "Do this."]


def status_of(models, engines=(), **changes):
    """A sidecar's status with what a report needs."""
    requests = {"models": models, "ended": 0, "attributed": 0, "notes": []} | changes
    target = {"name": "vllm", "up": True, "engines": list(engines), "models": [], "last_error": None}
    target["requests"] = requests
    marks = {"acceptance_net_negative": 0.5, "acceptance_break_even": 0.65}
    return {"version": "1", "thresholds": marks, "targets": [target]}


async def reported(capsys, served, status, *options):
    """What the report on a sidecar with this status prints."""

    async def handler(_request):
        return web.Response(text=json.dumps(status))

    async with served(handler) as url:
        assert await asyncio.to_thread(command, "report", "--url", url, *options) == 0
    return capsys.readouterr().out
