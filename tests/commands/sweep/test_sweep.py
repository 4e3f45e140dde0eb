"""Sweeps of simulated vLLMs, with and without speculation."""

import json
import signal

import pytest

from sidecar.commands.sweep.workload import Workload
from sidecar.errors import MeasurementError
from tests.app.app_tools import traffic
from tests.commands.sweep.sweep_tools import printed, simulated, summarized, swept

MARKER = "zebrafish"


async def test_exact_acceptance_is_the_sum_over_the_requests_own_numbers_in_all_rounds():
    asked = []
    async with simulated() as vllm:
        result = await swept(vllm.url, count=8, rounds=2, on_end=asked.append)
        drafted = vllm.counter("spec_decode_num_draft_tokens")
        accepted = vllm.counter("spec_decode_num_accepted_tokens")
    assert asked == (["temperature 0, concurrency 4"] * 8 + ["temperature 1.2, concurrency 4"] * 8) * 2
    assert result.complete
    found = summarized(result)
    assert [(one.acceptance_from, one.speculating["requests"], one.other_requests) for one in found] == [
        ("replies", 16, False)
    ] * 2
    # There is no other client, and a warm-up of one token drafts nothing: this is vLLM's count, to the token.
    acceptances = [level.speculating.acceptance for level in result.levels]
    assert sum(one.draft_tokens for one in acceptances) == drafted
    assert sum(one.accepted_tokens for one in acceptances) == accepted
    cold, hot = (one.speculating for one in found)
    assert cold["acceptance"] > 0.85
    assert hot["acceptance"] < 0.5
    assert cold["acceptance P10"] <= cold["acceptance P50"] <= cold["acceptance P90"]


async def test_requests_of_other_clients_are_noticed():
    async with simulated() as vllm, traffic(vllm):
        result = await swept(vllm.url, temperatures=(0.0,))
    assert any("vLLM also served other clients" in line for line in printed(result))
    assert summarized(result)[0].speculating["acceptance"] > 0.85  # ours alone


async def test_a_mix_is_measured_beside_its_temperatures():
    async with simulated() as vllm:
        result = await swept(vllm.url, temperatures=(), mixes=(Workload(((0.0, 3), (1.0, 1))),))
    rows = [line.split() for line in printed(result)]
    assert [row[0] for row in rows[3:8]] == [row[0] for row in rows[10:15]] == ["0", "1", "0:3,1:1", "0", "1"]
    assert [row[1:3] for row in rows[6:8]] == [["18", "-"], ["6", "-"]]


async def test_a_baseline_is_measured_at_the_same_levels():
    async with simulated() as vllm, simulated(num_speculative_tokens=0, model_name="plain") as plain:
        result = await swept(vllm.url, baseline_url=plain.url, at_once=(1, 2), count=4)
    assert result.complete
    levels = summarized(result)
    assert [level.baseline["requests"] for level in levels] == [4] * 4
    for level in levels:
        assert level.speedup.value == pytest.approx(level.baseline["TPOT P50"] / level.speculating["TPOT P50"])
    rows = [line.split() for line in printed(result)]
    times = [f"{name} P{share}" for name in ("TTFT", "TPOT") for share in (50, 95, 99)]
    for row, level in zip(rows[4:11:2], levels, strict=True):
        assert row[3:9] == [f"{level.baseline[name] * 1000:,.1f}" for name in times]
    assert rows[12][-2:] == ["speedup", "verdict"]
    assert [row[-1] for row in rows[13:17]] == [level.verdict for level in levels]


async def test_a_baseline_that_speculates_is_refused_before_any_level():
    asked = []
    async with simulated() as vllm, simulated() as other:
        with pytest.raises(MeasurementError, match=f"{other.url} speculates; --baseline-url is a vLLM without"):
            await swept(vllm.url, baseline_url=other.url, count=4, on_end=asked.append)
    assert asked == []


async def test_ctrl_c_prints_the_part_that_was_measured(program, eventually):
    async with simulated() as vllm:
        arguments = ("--url", vllm.url, "--concurrency", "2", "--requests", "5000", "--max-tokens", "16", "--json")
        async with program("sweep", *arguments) as process:
            await eventually(lambda: vllm.counter("request_success", finished_reason="length") >= 30)
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in err
    found = json.loads(out)
    assert not found["complete"]
    assert 0 < found["levels"][0]["speculating"]["requests"] < 5000
    assert not found["levels"][0]["complete"]


async def test_no_text_of_a_prompt_or_an_answer_is_printed_and_an_unwritable_file_loses_nothing(finished, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{MARKER} one\n{MARKER} two\n")
    async with simulated() as vllm:
        vllm_url = vllm.url
        arguments = ("--url", vllm_url, "--temperatures", "0", "--concurrency", "8", "--requests", "24")
        code, out, err = await finished("sweep", *arguments, "--prompts", str(prompts), "--save", str(tmp_path))
        failed = await finished("sweep", *arguments, "--model", "other")
    nowhere = await finished("sweep", SPECDEC_VLLM_URL="http://127.0.0.1:1")
    begun = "0/24 requests done; measuring temperature 0, concurrency 8"
    said = f"{begun}\n--save={tmp_path}: Is a directory; printed instead\n"
    assert (code, err) == (1, said)
    assert "net_positive: confirm under your own load, then ship\n  temperature 0, concurrency 8\n" in out
    assert MARKER not in out
    assert failed == (1, "", f"{vllm_url}: a request for other failed: status 400\n")
    said = "http://127.0.0.1:1: cannot connect (ClientConnectorError); is vLLM running, and is this its address?\n"
    assert nowhere[2] == said
