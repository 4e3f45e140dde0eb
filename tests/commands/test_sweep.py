"""Sweeps of a simulated vLLM; the command's arguments and output."""

import json
import re
import signal

import pytest

from tests.app.app_tools import traffic
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import measured_sweep, printed, simulated, summarized

MARKER = "zebrafish"


async def test_exact_acceptance_is_the_sum_over_the_requests_own_numbers_in_all_rounds():
    """Equal to vLLM's own counters, to the token."""
    begun = []
    async with simulated() as vllm:
        result = await measured_sweep(
            vllm.url, count=8, rounds=3, on_begin=lambda *place: begun.append(place)
        )
        drafted = vllm.counter("spec_decode_num_draft_tokens")
        accepted = vllm.counter("spec_decode_num_accepted_tokens")
    cold, hot = (level.level for level in result.levels)
    assert (str(cold), str(hot)) == (
        "temperature 0, concurrency 4",
        "temperature 1.2, concurrency 4",
    )
    # Every other round goes backwards, so that a drift meets both alike.
    assert begun == [*enumerate((cold, hot, hot, cold, cold, hot))]
    assert result.complete
    levels = summarized(result)
    for level in levels:
        assert (level.acceptance_from, level.metrics["requests"]) == ("replies", 24)
        # So few requests may leave it open on which side of a threshold the rate is.
        assert all(caveat.startswith("no verdict: ") for caveat in level.caveats)
    # There is no other client, and a warm-up of one token drafts nothing: this is vLLM's count, to
    # the token.
    acceptances = [level.whole.acceptance for level in result.levels]
    assert sum(acceptance.draft_tokens for acceptance in acceptances) == drafted
    assert sum(acceptance.accepted_tokens for acceptance in acceptances) == accepted
    cold, hot = (level.metrics for level in levels)
    assert cold["acceptance"] > 0.85
    assert hot["acceptance"] < 0.5
    assert cold["acceptance P10"] <= cold["acceptance P50"] <= cold["acceptance P90"]


@pytest.mark.slow
async def test_requests_of_other_clients_are_noticed():
    """The acceptance stays that of the sweep alone."""
    async with simulated() as vllm, traffic(vllm):
        result = await measured_sweep(vllm.url, temperatures=(0.0,))
    assert "vLLM also served other clients, which affects the times: every level" in printed(result)
    assert summarized(result)[0].metrics["acceptance"] > 0.85  # ours alone


async def test_the_command_measures_saves_and_shows_its_progress(finished, tmp_path):
    """Each level once, however often it was named."""
    saved = tmp_path / "sweep.json"
    async with simulated() as vllm:
        arguments = (
            "--url",
            vllm.url,
            "--concurrency",
            "4,2,4",
            "--temperatures",
            "1,0,1",
            "--requests",
            "8",
        )
        code, out, err = await finished(
            "sweep", *arguments, "--max-tokens", "8", "--json", "--save", str(saved)
        )
    assert code == 0, err
    first, second = err.splitlines()[:2]
    assert first == "measuring temperature 1, concurrency 2 (1 of 4)"
    assert re.fullmatch(
        r"measuring temperature 1, concurrency 4 \(2 of 4, about \d+ s left\)", second
    )
    shown, written = json.loads(out), json.loads(saved.read_text())
    levels = [tuple(level["level"].values()) for level in shown["levels"]]
    assert [level[:2] for level in levels] == [(1.0, 2), (1.0, 4), (0.0, 2), (0.0, 4)]
    assert [tuple(level["level"].values()) for level in written["levels"]] == levels
    assert [[len(part["samples"]) for part in level["rounds"]] for level in written["levels"]] == [
        [8]
    ] * 4
    assert [level["metrics"]["requests"] for level in shown["levels"]] == [8] * 4


@pytest.mark.slow
async def test_ctrl_c_prints_the_part_that_was_measured(program, eventually):
    """The exit code and the JSON say that it is incomplete."""
    async with simulated() as vllm:
        arguments = (
            "--url",
            vllm.url,
            "--concurrency",
            "2",
            "--requests",
            "5000",
            "--max-tokens",
            "16",
            "--json",
        )
        async with program("sweep", *arguments) as process:
            await eventually(
                lambda: vllm.counter("request_success", finished_reason="length") >= 30
            )
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    assert process.returncode == 1
    assert b"Traceback" not in err
    result = json.loads(out)
    assert not result["complete"]
    assert 0 < result["levels"][0]["metrics"]["requests"] < 5000


async def test_no_text_of_a_prompt_or_an_answer_is_printed_and_a_full_disk_loses_nothing(
    finished, tmp_path
):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{MARKER} one\n{MARKER} two\n")
    async with simulated() as vllm:
        url = vllm.url
        arguments = ("--url", url, "--temperatures", "0", "--concurrency", "8", "--requests", "24")
        code, out, err = await finished(
            "sweep", *arguments, "--prompts", str(prompts), "--save", "/dev/full"
        )
        failed = await finished("sweep", *arguments, "--model", "other")
    progress = "measuring temperature 0, concurrency 8 (1 of 1)"
    assert (code, err) == (
        1,
        f"{progress}\n--save=/dev/full: No space left on device; printed instead\n",
    )
    assert "Verdicts go by the acceptance rate, not by time: a rule of thumb" in out
    assert out.splitlines()[-1].endswith("then `specdec-sidecar compare WITHOUT.json WITH.json`.")
    assert MARKER not in out
    assert failed == (1, "", f"{url}: a request for other failed: status 404\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--prompts", "/none"), "/none: No such file or directory"),
        (
            ("--api-key-env", "SPECDEC_TEST_NO_SUCH"),
            "--api-key-env=SPECDEC_TEST_NO_SUCH: empty or not set",
        ),
    ],
)
def test_unusable_arguments_are_refused(capsys, arguments, reason):
    assert command("sweep", *arguments) == 2
    assert capsys.readouterr().err.startswith(reason)
