"""Differences are claimed if they exist, and only then."""

import json
import re
from dataclasses import replace

import pytest

from sidecar.commands.compare import Result, compare
from sidecar.commands.load.balance import sentence
from sidecar.commands.load.sweep_result import encode
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import generated_level, sweep_of

EMPTY = b'{"format":%d,"model":null,"max_tokens":1,"rounds":1,"complete":true,"fault":null,"levels":[],"requests":""}'


@pytest.fixture
def saved(tmp_path):
    """Saves sweeps of one level each; returns the names of their files."""

    def save(*levels):
        for number, level in enumerate(levels):
            (tmp_path / f"{number}.json").write_bytes(encode(sweep_of(level)))
        return [str(tmp_path / f"{number}.json") for number in range(len(levels))]

    return save


def compared(before, after):
    return compare(before, after, names=("A", "B"))


def shown(comparison):
    return [metric for level in comparison.levels for metric in level.shown]


def test_no_difference_is_claimed_between_two_runs_of_one_server():
    """Fifty pairs, fourteen differences each: none is claimed."""
    claimed = []
    for seed in range(0, 200, 4):
        cold, hot, *again = (
            generated_level(seed + number, temperature=temperature, acceptance=acceptance)
            for number, (temperature, acceptance) in enumerate(((0.0, 0.6), (1.0, 0.4)) * 2)
        )
        comparison = compared(sweep_of(cold, hot), sweep_of(*again))
        claimed += shown(comparison)
        assert comparison.result is Result.NO_DIFFERENCE or shown(comparison)
    assert len(claimed) <= 1


def test_faster_here_and_slower_there_is_mixed():
    before = sweep_of(generated_level(1), generated_level(2, temperature=1.0))
    after = sweep_of(generated_level(3, tpot=0.007), generated_level(4, temperature=1.0, tpot=0.014))
    assert compared(before, after).result is Result.MIXED


def test_acceptance_at_another_number_of_tokens_is_not_compared_but_length_is():
    comparison = compared(sweep_of(generated_level(1, k=3)), sweep_of(generated_level(2, k=5)))
    assert comparison.levels[0].changes["acceptance"] is None
    assert "length" in shown(comparison)
    assert any("numbers of speculative tokens differ" in note for note in comparison.notes)


def test_a_server_without_speculation_has_no_acceptance_to_compare():
    comparison = compared(sweep_of(generated_level(1, k=3)), sweep_of(generated_level(2, k=0, tpot=0.02)))
    (level,) = comparison.levels
    assert (level.after["acceptance"], level.changes["acceptance"]) == (None, None)
    assert comparison.result is Result.SLOWER
    assert not any("numbers of speculative tokens" in note for note in comparison.notes)


def test_nothing_is_claimed_from_one_round():
    """One round does not show how much the machine varies from minute to minute."""
    comparison = compared(sweep_of(generated_level(1), rounds=1), sweep_of(generated_level(2, tpot=0.02)))
    assert any("fewer than 4 rounds are not enough to compare speed" in note for note in comparison.notes)
    assert (shown(comparison), comparison.result) == ([], Result.INSUFFICIENT_DATA)


def test_levels_of_one_side_only_are_left_out_with_a_note():
    before = sweep_of(generated_level(1), generated_level(2, temperature=1.0))
    comparison = compared(before, sweep_of(generated_level(3)))
    assert [level.level.temperature for level in comparison.levels] == [0.0]
    assert "left out, since only one sweep measured them: 1 level" in comparison.notes


def test_a_faster_server_is_shown_and_described(saved, capsys):
    before, after = saved(generated_level(1), generated_level(2, tpot=0.007))
    assert command("compare", before, after) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"verdict: {after} is faster than {before}" in lines
    assert {"TPOT P50", "tokens/s"} <= {line.split(" is ")[0].strip() for line in lines if line.startswith("  ")}
    assert any(line.startswith("  TPOT P50 is ") and "lower at temperature 0, concurrency 4" in line for line in lines)


def with_cache(level, hits, capacity):
    cached = tuple((hits + number, 1000.0) for number in range(8))
    return replace(level, cached=cached, capacity_tokens=capacity)


def test_the_balance_of_the_same_requests_has_each_price_with_its_error(saved, capsys):
    before = with_cache(generated_level(1, k=0, tpot=0.02), 880, 4000)
    after = with_cache(generated_level(2, ttft=0.09), 700, 3520)
    assert command("compare", *saved(before, after)) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "saves" in line]
    number = r"\d[\d.]*"
    assert re.fullmatch(
        rf"  temperature 0, concurrency 4: saves {number} ± {number} ms per token, adds {number} ± {number} ms to the "
        rf"first token: pays off from [56] output tokens \({number} to {number}\); prefix-cache hits 70.3% ± {number}% "
        rf"instead of 88.3% ± {number}%; 12.0% less room; {number}% ± {number}% more requests a second",
        line,
    )


def test_a_balance_claims_no_length_where_both_are_unclear(saved, capsys):
    assert command("compare", *saved(generated_level(1), generated_level(2))) == 0
    shown_ = capsys.readouterr().out
    assert "no clear difference per token (" in shown_
    assert "pays off" not in shown_


@pytest.mark.parametrize("change", [{"requests": "others"}, {"max_tokens": 9}, {"rounds": 4}, {"complete": False}])
def test_other_requests_or_fewer_have_no_balance(change):
    before, after = sweep_of(generated_level(1)), sweep_of(generated_level(2))
    assert compared(before, after).levels[0].balance is not None
    for pair in ((before, replace(after, **change)), (replace(before, **change), after)):
        comparison = compared(*pair)
        assert comparison.levels[0].balance is None
        assert any(note.startswith("no balance: ") for note in comparison.notes)


def between(before=(), after=(), **of_sweeps):
    """The balance in words, with these changes to the cache's numbers of each side."""
    levels = [with_cache(generated_level(seed), 700, 4000) for seed in (1, 2)]
    sides = zip(levels, (before, after), strict=True)
    changed = [replace(one, **dict(given)) for one, given in sides]
    return sentence(compared(*(sweep_of(one, **of_sweeps) for one in changed)).levels[0].balance)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0.0, 12.0, "12 preemptions instead of 0"),
        (12.0, 0.0, "0 preemptions instead of 12"),
        (0.0, 0.0, None),
        (None, 12.0, None),
        (12.0, None, None),
    ],
)
def test_preemptions_are_in_the_balance_if_both_are_known_and_there_are_any(before, after, expected):
    parts = between({"preemptions": before}, {"preemptions": after}).split("; ")
    assert [part for part in parts if "preemptions" in part] == ([expected] if expected else [])


def test_what_other_clients_did_to_the_cache_is_not_in_the_balance():
    ours = {"preemptions": 3.0}
    assert all(word in between(ours, ours) for word in ("hits", "preemptions"))
    for sides in ((ours | {"others": True}, ours), (ours, ours | {"others": True})):
        assert not any(word in between(*sides) for word in ("hits", "preemptions"))


@pytest.mark.parametrize(
    ("capacity", "expected"), [(4001, "the same room"), (4003, "0.1% more room"), (3900, "2.5% less room")]
)
def test_room_that_rounds_to_no_change_is_the_same(capacity, expected):
    assert expected in between(after={"capacity_tokens": capacity}).split("; ")


def test_a_balance_without_errors_claims_no_gain_and_no_loss():
    text = between(rounds=1)
    assert re.fullmatch(
        r"[+-][\d.]+ ms per token \(error unknown\), [+-][\d.]+ ms to the first token \(error unknown\); "
        r"prefix-cache hits .*; the same room; [+-][\d.]+% requests a second \(error unknown\)",
        text,
    )


def test_both_sides_and_the_change_are_rows_of_one_table(saved, capsys):
    assert command("compare", *saved(generated_level(1), generated_level(3, k=0, tpot=0.02))) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    header = next(number for number, line in enumerate(lines) if line[:1] == ["temperature"])
    before, after, change, error = lines[header + 1 : header + 5]
    assert before[:3] == ["0", "4", "before"]
    assert (after[:3], change[:3]) == (["after", "-", "-"], ["change", "-", "-"])
    assert change[-1].startswith("-")
    assert error[-1].startswith("±")


def test_json_has_the_result_and_the_changes_with_their_errors(saved, capsys):
    assert command("compare", *saved(generated_level(1), generated_level(2)), "--json") == 0
    comparison = json.loads(capsys.readouterr().out)
    (level,) = comparison["levels"]
    assert abs(level["changes"]["acceptance"]["value"]) < level["changes"]["acceptance"]["error"]
    assert (comparison["result"], level["shown"]) == ("no_difference_shown", [])


@pytest.mark.parametrize(
    ("tpot", "requests", "limit", "code", "reason"),
    [
        (0.012, 400, "5%", 1, "failed\nTPOT P50 at temperature 0, concurrency 4 is slower by "),
        (0.012, 400, "0.5", 0, "passed\n"),
        (0.010, 4000, "5%", 0, "passed\n"),
        (0.010, 40, "1%", 3, "undecided\nTTFT P50 at temperature 0, concurrency 4: a slowdown of 1.0% cannot be ruled"),
        (0.007, 4000, "5%", 0, "passed\n"),
    ],
)
def test_the_exit_code_says_whether_a_slowdown_is_within_the_limit(
    saved, capsys, *, tpot, requests, limit, code, reason
):
    files = saved(generated_level(1, requests=requests), generated_level(2, requests=requests, tpot=tpot))
    assert command("compare", *files, "--fail-if-slower", limit) == code
    assert capsys.readouterr().err.startswith(f"--fail-if-slower: {reason}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"{", "not a file that `sweep --save` of this version wrote"),
        (b"[" * 100_000, "not a file that `sweep --save` of this version wrote"),
        (EMPTY % 4, "no request was answered in it"),
        (EMPTY % 3, "not a file that `sweep --save` of this version wrote"),
    ],
)
def test_files_that_sweep_did_not_write_are_refused(tmp_path, capsys, content, reason):
    file = tmp_path / "a.json"
    if content is not None:
        file.write_bytes(content)
    assert command("compare", str(file), str(file)) == 2
    assert reason in capsys.readouterr().err
