"""Two servers that take turns: what is claimed, what can be seen, and how they are measured."""

import json
import re
import signal
from dataclasses import replace

import pytest

from specdec_tools.demo.scheduler import SimulatorOptions
from specdec_tools.measuring.comparison import compare
from specdec_tools.measuring.sweep_result import read_saved
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import generated_level, generated_pair, sweep_of
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


@pytest.mark.slow
def test_eight_rounds_in_turns_show_what_two_sweeps_cannot():
    """A machine that wanders by 3 % a round, and a server that is 10 % slower.

    In turns it is always found. Two separate sweeps find it no more often than a difference that is
    not there.
    """
    assert found(1.10) >= 0.95
    assert found(1.10, in_turns=False) <= 0.7

    nothing = [result(seed, in_turns=False) for seed in range(40)]
    assert nothing.count("no_difference_shown") <= 0.7 * len(nothing)


@pytest.mark.slow
def test_a_difference_below_one_percent_is_not_claimed_however_clear():
    """Nobody would act on it."""
    for seed in range(5):
        pair = generated_pair(seed, slower=1.005, requests=3200)
        changes = compare(*pair, names=("A", "B")).changes
        effects = {one.metric: one.effect for one in changes}

        assert (effects["TPOT P50"], effects["tokens/s"]) == (None, None)


def slowed(level, factors):
    """The level on a server that takes so many times as long in each round."""
    rounds = []
    for part, factor in zip(level.rounds, factors, strict=True):
        samples = [
            one._replace(ttft=factor * one.ttft, tpot=factor * one.tpot) for one in part.samples
        ]
        rounds.append(replace(part, samples=tuple(samples), seconds=factor * part.seconds))
    return replace(level, rounds=tuple(rounds))


def uneven_pair():
    """Two servers that took turns, of which the first is up to 4.5 times as slow by the round."""
    before = slowed(generated_level(1), [1 + number / 2 for number in range(8)])
    after = slowed(generated_level(2), [3] * 8)
    return [replace(sweep_of(level), turns="same", one_machine=True) for level in (before, after)]


def test_a_change_follows_from_the_two_numbers_beside_it_however_rounds_scatter():
    """A mean of the rounds' ratios would be another number than the ratio of what is shown."""
    changes = compare(*uneven_pair(), names=("A", "B")).changes
    speeds = [one for one in changes if one.metric in ("TTFT P50", "TPOT P50", "tokens/s")]

    assert len(speeds) == 3
    for one in speeds:
        before = one.before.value
        after = one.after.value

        assert one.change.value == pytest.approx(after / before - 1)
        assert one.difference.value == pytest.approx(after - before)


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


def test_what_the_numbers_are_is_said_where_servers_took_turns():
    """They are not those of the table above, which is over all requests."""
    note = (
        "but for acceptance and length, numbers with an error are means of the rounds' own;"
        " all others are of all requests"
    )

    for pair, is_said in (
        (generated_pair(1), True),
        (generated_pair(1, in_turns=False), False),
        (generated_pair(1, rounds=3), False),
    ):
        assert (note in compare(*pair, names=("A", "B")).notes) == is_said


@pytest.mark.slow
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

    # It says so before it begins, not after minutes of measuring.
    assert err.splitlines()[0] == (
        "--rounds 1: too few to tell a difference from chance, which takes 4 or more"
    )
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
            *("--rounds", "1"),
        )

    assert code == 0, err
    assert [level["verdict"] for level in json.loads(out)["levels"]] == [verdict]


@pytest.mark.slow
async def test_servers_in_turns_have_four_rounds_unless_told_otherwise(finished):
    """The fewest that give a difference an error."""
    fast = SimulatorOptions(speed=8)
    async with HttpVllm(fast) as one, HttpVllm(fast) as other:
        code, out, err = await finished(
            *("sweep", "--url", one.url, "--against", other.url, "--temperatures", "0", "--json"),
            *("--concurrency", "4", "--requests", "4", "--max-tokens", "1"),
        )

    assert code == 0, err
    assert json.loads(out)["comparison"]["rounds"] == 4
    assert "too few" not in err


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
