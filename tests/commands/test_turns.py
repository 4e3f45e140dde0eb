"""Two servers that take turns: what is claimed, what can be seen, and how they are measured."""

import json
import re
import signal

import pytest

from sidecar.commands.load.comparison import compare
from sidecar.commands.load.sweep_result import read_saved
from sidecar.demo.scheduler import SimulatorOptions
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import generated_pair
from tests.demo.http_vllm import HttpVllm

NULL_PAIRS = 1000


def result(seed, **given):
    return compare(*generated_pair(seed, **given), names=("A", "B")).result


def found(slower, pairs=40, **given):
    """The share of pairs in which the second server, which is slower, is called slower."""
    results = [result(seed, slower=slower, **given) for seed in range(pairs)]
    return results.count("slower") / pairs


@pytest.mark.slow
def test_of_a_thousand_pairs_without_a_difference_at_most_five_percent_are_called_different():
    results = [result(seed) for seed in range(NULL_PAIRS)]

    assert results.count("no_difference_shown") >= 0.95 * NULL_PAIRS


def test_eight_rounds_in_turns_show_what_two_sweeps_cannot():
    """A machine that wanders by 3 % a round, and a server that is 10 % slower.

    In turns it is always found. Two separate sweeps find it no more often than a difference that is
    not there.
    """
    assert found(1.10) >= 0.95
    assert found(1.10, in_turns=False) <= 0.7

    nothing = [result(seed, in_turns=False) for seed in range(40)]
    assert nothing.count("no_difference_shown") <= 0.7 * len(nothing)


def test_a_difference_below_one_percent_is_not_claimed_however_clear():
    """Nobody would act on it."""
    for seed in range(5):
        pair = generated_pair(seed, slower=1.005, requests=3200)
        changes = compare(*pair, names=("A", "B")).changes
        effects = {one.metric: one.effect for one in changes}

        assert (effects["TPOT P50"], effects["tokens/s"]) == (None, None)


@pytest.mark.slow
async def test_two_servers_take_turns_and_are_compared_at_once_or_later(finished, tmp_path, capsys):
    """The saved files give the same comparison, since they know that they took turns."""
    plain = SimulatorOptions(speed=8, num_speculative_tokens=0)
    files = [tmp_path / "eagle.json", tmp_path / "plain.json"]
    async with HttpVllm(SimulatorOptions(speed=8)) as eagle, HttpVllm(plain) as off:
        title = f"{eagle.url} (after) against {off.url} (before); times in milliseconds"
        code, out, err = await finished(
            *("sweep", "--url", eagle.url, "--against", off.url, "--temperatures", "0,1"),
            *("--concurrency", "4", "--requests", "8", "--rounds", "4", "--max-tokens", "16"),
            *("--save", str(files[0]), "--save-against", str(files[1])),
        )
    assert code == 0, err
    assert title in out
    # Hot requests gain time although they accept little: no verdict by acceptance contradicts it.
    assert not re.search(r"net_|break_even|rule of thumb", out)
    assert re.search(r"^verdict: ", out, re.MULTILINE)

    saved = [read_saved(file) for file in files]
    assert len({one.turns for one in saved} - {None}) == 1
    assert [[len(level.rounds) for level in one.levels] for one in saved] == [[4, 4]] * 2
    drafts = [one.levels[0].whole.acceptance.drafts for one in saved]
    assert (drafts[0] > 0, drafts[1]) == (True, 0)

    assert command("compare", str(files[1]), str(files[0])) == 0
    later = capsys.readouterr().out.splitlines()
    assert later[2:]
    unnamed = [line for line in later[2:] if not line.startswith("verdict: ")]
    assert set(unnamed) <= set(out.splitlines())


async def test_json_has_the_comparison(finished):
    fast = SimulatorOptions(speed=8)
    async with HttpVllm(fast) as one, HttpVllm(fast) as other:
        urls = (other.url, one.url)
        code, out, err = await finished(
            *("sweep", "--url", one.url, "--against", other.url, "--temperatures", "0", "--json"),
            *("--concurrency", "4", "--requests", "4", "--rounds", "1", "--max-tokens", "4"),
        )
    assert code == 0, err
    document = json.loads(out)
    assert document["comparison"]["result"] == "insufficient_data"
    assert (document["comparison"]["before"], document["comparison"]["after"]) == urls


@pytest.mark.slow
async def test_stopped_in_the_first_round_it_says_that_it_was_stopped(program, eventually):
    """After the warm-up, whose requests are as many as there are built-in prompts."""
    fast = SimulatorOptions(speed=8)
    async with HttpVllm(fast) as one, HttpVllm(fast) as other:
        arguments = ("--url", one.url, "--against", other.url, "--requests", "5000")
        async with program("sweep", *arguments, "--max-tokens", "16") as process:
            await eventually(lambda: one.counter("request_success", finished_reason="length") >= 30)
            process.send_signal(signal.SIGINT)
            out, err = await process.communicate()
    lines = out.decode().splitlines()

    assert (process.returncode, b"Traceback" in err) == (1, False)
    assert any(line.startswith("The sweep is incomplete: it was stopped, or") for line in lines)
    assert lines[-1] == (
        "nothing to compare: a sweep was stopped, or all of its requests failed, before both"
        " servers had measured the same level"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("drafted", "verdict"), [(3, "net_positive"), (0, None)])
async def test_beside_a_vllm_without_speculation_time_decides_and_not_the_acceptance(
    finished, drafted, verdict
):
    """Beside another that drafts, the rule of thumb is all that says whether either pays."""
    other = SimulatorOptions(speed=8, num_speculative_tokens=drafted)
    async with HttpVllm(SimulatorOptions(speed=8)) as one, HttpVllm(other) as against:
        code, out, err = await finished(
            *("sweep", "--url", one.url, "--against", against.url, "--temperatures", "0"),
            *("--concurrency", "8", "--requests", "24", "--max-tokens", "8", "--json"),
        )

    assert code == 0, err
    assert [level["verdict"] for level in json.loads(out)["levels"]] == [verdict]


async def test_a_server_that_cannot_be_reached_is_named(finished):
    """It may be either of the two."""
    async with HttpVllm(SimulatorOptions(speed=8)) as one:
        arguments = ("--url", one.url, "--against", "http://127.0.0.1:9")
        code, _, err = await finished("sweep", *arguments, "--requests", "4")

    assert code == 1
    assert err.startswith("http://127.0.0.1:9: cannot connect")


def test_a_file_for_the_other_server_needs_one(tmp_path, capsys):
    assert command("sweep", "--save-against", str(tmp_path / "a.json")) == 2
    assert "--save-against: needs --against" in capsys.readouterr().err
