"""Differences are claimed if they exist, and only then."""

import json
import re
from dataclasses import replace

import pytest

from specdec_tools.commands.distributions import confidence_factor
from specdec_tools.measuring.comparison import compare, comparison_text, gate
from specdec_tools.measuring.conclusion import rounds_needed
from specdec_tools.measuring.metrics import Interval
from specdec_tools.measuring.sweep_result import encode
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import generated_level, sweep_of

SENT = b'"prompts":"","requests":1,"endpoint":"chat","extra_body":"{}","max_tokens":1,"rounds":1'
EMPTY = b'{"format":%d,"model":null,"complete":true,"fault":null,"levels":[],' + SENT + b"}"
LEVEL = b'[{"level":{"temperature":0,"concurrency":1},"rounds":[]}]'


@pytest.fixture
def saved(tmp_path):
    """Saves sweeps, each of one level or of several; returns the names of their files."""

    def save(*sweeps):
        for number, levels in enumerate(sweeps):
            result = sweep_of(*levels) if isinstance(levels, tuple) else sweep_of(levels)
            (tmp_path / f"{number}.json").write_bytes(encode(result))
        return [str(tmp_path / f"{number}.json") for number in range(len(sweeps))]

    return save


def compared(before, after):
    return compare(before, after, names=("A", "B"))


def shown(comparison):
    return [change.metric for change in comparison.changes if change.effect is not None]


def of(metric, comparison):
    """The only level's change of a metric."""
    (one,) = [change for change in comparison.changes if change.metric == metric]
    return one


@pytest.mark.slow
def test_no_difference_is_claimed_between_two_runs_of_one_server():
    """Fifty pairs, twelve differences with an error each: none is claimed."""
    claimed = []
    for seed in range(0, 200, 4):
        cold, hot, *again = (
            generated_level(seed + number, temperature=temperature, acceptance=acceptance)
            for number, (temperature, acceptance) in enumerate(((0.0, 0.6), (1.0, 0.4)) * 2)
        )
        comparison = compared(sweep_of(cold, hot), sweep_of(*again))
        claimed += shown(comparison)

        assert comparison.result == "no_difference_shown" or shown(comparison)

    assert len(claimed) <= 1


def test_a_ratio_to_a_time_that_varies_more_than_it_is_long_claims_nothing():
    """Rounds of 10 or 90 ms before, and of 10 ms after.

    The ratio alone would say that it is faster.
    """
    rounds = [part for seed in (1, 2, 3, 4) for part in generated_level(seed, rounds=2).rounds]
    slow = list(rounds)
    for place, part in enumerate(rounds):
        if place % 2:
            samples = tuple(one._replace(tpot=9 * one.tpot) for one in part.samples)
            slow[place] = replace(part, samples=samples)
    before, after = (replace(generated_level(1), rounds=tuple(parts)) for parts in (slow, rounds))
    change = of("TPOT P50", compared(sweep_of(before), sweep_of(after)))

    assert (change.change.is_clear, change.effect) == (True, None)


def test_it_concludes_on_acceptance_time_and_price():
    """Each in one sentence; with 64 requests a round, the acceptance is clear as well."""
    before = sweep_of(generated_level(1, acceptance=0.4, tpot=0.036))
    after = sweep_of(generated_level(2, acceptance=0.75, tpot=0.026))
    acceptance, time, price, *others = compared(before, after).conclusions
    level = before.levels[0].level

    assert re.match(rf"acceptance: 4.% became 7.% \(\+..%\) at {level}$", acceptance)
    assert re.match(
        rf"time: saves .+ ms ± .+ ms per token \(3.\.. ms became 2.\.. ms \(-2.%\)\) at {level}$",
        time,
    )
    assert price.startswith("price: no clear loss in time to first token, requests a second")
    assert others == []


def test_a_price_in_time_has_its_unit():
    """As exact as in the table, so that the percentage can be checked."""
    pair = (sweep_of(generated_level(1)), sweep_of(generated_level(2, ttft=0.09)))
    price = compared(*pair).conclusions[2]
    before, after, change = re.match(
        r"price: time to first token: ([\d.]+) ms became ([\d.]+) ms \(\+(\d+)%\) at ", price
    ).groups()

    assert 100 * (float(after) / float(before) - 1) == pytest.approx(float(change), abs=1)


@pytest.mark.parametrize(
    ("rounds", "tpot", "says"),
    [
        (
            8,
            0.0100,
            "at {} is not decided: an even chance that",
        ),  # a difference of 3 % cannot be ruled out
        (2, 0.0100, None),  # how much two rounds differ says nothing of how many it takes
        (8, 0.0200, None),
    ],
)
def test_where_the_time_is_not_decided_it_says_how_many_more_rounds_would(rounds, tpot, says):
    first = sweep_of(generated_level(1, rounds=rounds, requests=96))
    second = sweep_of(generated_level(2, rounds=rounds, requests=96, tpot=tpot))
    comparison = compared(first, second)
    undecided = [line for line in comparison.conclusions if "not decided" in line]

    assert len(undecided) == (says is not None)
    assert all(says.format(first.levels[0].level) in line for line in undecided)


def test_the_conclusion_and_the_balance_give_the_same_difference():
    """With its sign: the second is a little faster."""
    pair = (sweep_of(generated_level(1)), sweep_of(generated_level(2, tpot=0.0099)))
    comparison = compared(*pair)
    time = comparison.conclusions[1].removeprefix("time: ").partition(" at ")[0]

    assert re.fullmatch(r"no clear difference per token \(-.+ ms ± .+ ms\)", time)
    assert any(time in line for line in comparison_text(comparison) if "first token" in line)


def test_without_drafts_on_one_side_there_is_no_acceptance_to_conclude_on():
    """The conclusion says which of the two has none."""
    drafts, plain = sweep_of(generated_level(1, k=3)), sweep_of(generated_level(2, k=0))

    assert compared(drafts, plain).conclusions[0] == "acceptance: only one of the two drafts"
    assert compared(plain, plain).conclusions[0] == "acceptance: neither of the two drafts"


def test_faster_here_and_slower_there_is_mixed():
    """Neither gets the verdict."""
    before = sweep_of(generated_level(1), generated_level(2, temperature=1.0))
    after = sweep_of(
        generated_level(3, tpot=0.007), generated_level(4, temperature=1.0, tpot=0.014)
    )

    assert compared(before, after).result == "mixed"


def test_acceptance_at_another_number_of_tokens_is_not_compared_but_length_is():
    """The rate falls with the number of draft tokens; tokens per step do not lie."""
    comparison = compared(sweep_of(generated_level(1, k=3)), sweep_of(generated_level(2, k=5)))

    assert of("acceptance", comparison).change is None
    assert "length" in shown(comparison)
    assert any("numbers of speculative tokens differ" in note for note in comparison.notes)


def test_a_server_without_speculation_has_no_acceptance_to_compare():
    """Its times decide."""
    comparison = compared(
        sweep_of(generated_level(1, k=3)), sweep_of(generated_level(2, k=0, tpot=0.02))
    )
    acceptance = of("acceptance", comparison)

    assert (acceptance.after, acceptance.change) == (None, None)
    assert comparison.result == "slower"
    assert not any("numbers of speculative tokens" in note for note in comparison.notes)


def test_nothing_is_claimed_from_one_round():
    """One round does not show how much the machine varies from minute to minute.

    It says so, rather than that no difference was found, and once what would be enough.
    """
    comparison = compared(
        sweep_of(generated_level(1, rounds=1)), sweep_of(generated_level(2, tpot=0.02))
    )
    _, time, price, *others = comparison.conclusions

    assert comparison.notes[-1] == (
        "fewer than 4 rounds are not enough to compare speed: sweep with --rounds 8"
    )
    assert (shown(comparison), comparison.result) == ([], "insufficient_data")
    assert re.match(r"time: not tested \(10\.. ms and 20\.. ms per token\) at temperature 0", time)
    assert (price, others) == ("price: not tested", [])


def test_the_rounds_that_were_measured_count_not_those_that_were_asked_for():
    """A sweep that was stopped has fewer."""
    stopped = replace(sweep_of(generated_level(1, rounds=2)), rounds=8, complete=False)
    comparison = compared(stopped, sweep_of(generated_level(2)))

    assert any("fewer than 4 rounds" in note for note in comparison.notes)


def without_times(level):
    """As of a server whose replies are of one token."""
    rounds = []
    for part in level.rounds:
        samples = tuple(one._replace(tpot=None) for one in part.samples)
        rounds.append(replace(part, samples=samples))
    return replace(level, rounds=tuple(rounds))


def test_a_metric_that_was_not_measured_is_not_called_the_same():
    """On neither side, or on one."""
    timed = generated_level(1)
    untimed = without_times(generated_level(2))
    level = "temperature 0, concurrency 4"
    _, neither, *_ = compared(sweep_of(untimed), sweep_of(untimed)).conclusions
    _, one, *_ = compared(sweep_of(timed), sweep_of(untimed)).conclusions

    assert neither == f"time: not measured at {level}"
    assert one == f"time: measured on one side only (10.2 ms and - per token) at {level}"


def test_acceptance_without_an_error_says_what_it_needs():
    """Three prompts are too few."""
    few = generated_level(1, requests=24)
    comparison = compared(sweep_of(few), sweep_of(few))

    assert re.match(r"acceptance: not tested \(6\d% and 6\d%\)", comparison.conclusions[0])
    assert any(
        note.startswith("acceptance is tested only with 4 prompts or more")
        for note in comparison.notes
    )


def test_sweeps_without_a_common_level_say_why():
    """They measured other levels, or one of them was stopped before it had any."""
    cold = sweep_of(generated_level(1))
    hot = sweep_of(generated_level(2, temperature=1.0))
    stopped = replace(cold, levels=(), complete=False)
    reason = (
        "nothing to compare: a sweep was stopped, or all of its requests failed, before both"
        " servers had measured the same level"
    )

    assert compared(cold, hot).conclusions == (
        "nothing to compare: the two sweeps have no level in common",
    )
    for pair in ((cold, stopped), (stopped, cold), (stopped, stopped)):
        assert compared(*pair).conclusions == (reason,)
        assert compared(*pair).notes == ()


@pytest.mark.parametrize(("requests", "is_known"), [(1600, True), (1592, False)])
def test_a_p99_has_an_error_with_200_requests_in_each_round(requests, is_known):
    """Fewer have less than two values beyond it."""
    comparison = compared(*(sweep_of(generated_level(seed, requests=requests)) for seed in (1, 2)))

    assert (of("TPOT P99", comparison).change.error is not None) == is_known
    assert of("TPOT P50", comparison).change.error is not None


def test_levels_that_only_one_sweep_measured_are_named_and_pass_no_gate(saved, capsys):
    """Whichever of the two it is: a gate that did not measure everything is undecided."""
    levels = [
        generated_level(seed, temperature=temperature)
        for seed, temperature in ((1, 0.0), (2, 0.5), (3, 1.0))
    ]
    wide, narrow = saved(tuple(levels), levels[0])
    for pair in ((wide, narrow), (narrow, wide)):
        assert command("compare", *pair, "--fail-if-slower", "50%") == 3
        out, err = capsys.readouterr()
        line = (
            f"only {wide} measured temperature 0.5, concurrency 4; temperature 1, concurrency 4:"
            " not compared"
        )

        assert f"note: {line}" in out.splitlines()
        assert err.splitlines() == ["--fail-if-slower: undecided", line]


def test_both_sides_the_change_and_the_verdict_are_shown(saved, capsys):
    """In one row for each metric, with a word only where the change is clear."""
    before, after = saved(generated_level(1), generated_level(2, tpot=0.007))
    assert command("compare", before, after) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["before", "after", "change", "error", "clearly"]
    assert lines[3] == "temperature 0, concurrency 4"
    # no clear difference
    assert re.fullmatch(r"  acceptance +0\.\d+ +0\.\d+ +[+-]\d\.\d% +±\d\.\d%", lines[4])
    (row,) = [line for line in lines if line.startswith("  TPOT P50 ")]

    assert re.fullmatch(r"  TPOT P50 +10\.\d +7\.\d +-3\d\.\d% +±\d\.\d%  faster", row)
    assert f"verdict: {after} is faster than {before}" in lines


def with_cache(level, hits, **numbers):
    """Of 1,000 prompt tokens in each round it found so many in the prefix cache.

    From round to round it found one more.
    """
    given = {"queries": 1000.0, "capacity_tokens": 4000, "preemptions": 0.0} | numbers
    rounds = enumerate(level.rounds)
    return replace(
        level, rounds=tuple(replace(part, hits=hits + place, **given) for place, part in rounds)
    )


def with_failures(level):
    return replace(level, rounds=tuple(replace(part, failed=2) for part in level.rounds))


def test_what_was_0_before_is_clearly_higher_and_failed_requests_pass_no_gate(saved):
    """There is no ratio to 0, but something where there was nothing is a change."""
    before, after = (
        with_cache(generated_level(seed), 700, preemptions=n) for seed, n in ((1, 0.0), (2, 30.0))
    )
    preempted = of("preemptions/request", compared(sweep_of(before), sweep_of(after)))

    assert (preempted.change, preempted.effect) == (None, "higher")
    assert command("compare", *saved(before, after), "--fail-if-slower", "20%") == 0
    assert command("compare", *saved(before, with_failures(after)), "--fail-if-slower", "20%") == 3


def test_the_same_requests_have_the_other_prices_with_their_errors(saved, capsys):
    """Throughput, cache and preemptions, and from which length on a request gains."""
    before = with_cache(generated_level(1, k=0, tpot=0.02), 880, preemptions=2.0)
    after = with_cache(generated_level(2, ttft=0.09), 700, capacity_tokens=3000)
    assert command("compare", *saved(before, after)) == 0
    lines = capsys.readouterr().out.splitlines()
    number = r"\d+\.\d"
    expected = (
        r"  acceptance +- +0\.\d+ +- +-",
        rf"  requests/s +{number}+ +{number}+ +\+{number}% +±{number}%  higher",
        rf"  cache hit ratio +0.88\d +0.70\d +-20.4% +±{number}%  lower",
        r"  KV cache tokens +4,000 +3,000 +-25.0% +±0.0%  lower",
        r"  preemptions/request +0.080 +0.000 +-100.0% +±0.0%  lower",
        (
            r"temperature 0, concurrency 4: saves 9\.\d+ ms ± 0\.\d+ ms per token, adds 40 ms ±"
            r" \d(\.\d)? ms to the "
            r"first token; a request gains time from 6 output tokens on \(5 to 6\)"
        ),
    )
    for pattern in expected:
        assert [line for line in lines if re.fullmatch(pattern, line)], pattern


def test_the_errors_widen_with_each_change_that_has_one():
    """The hit ratio is a seventh; the capacity, which is exact, is none."""

    def error(*levels):
        return of("TPOT P50", compared(*map(sweep_of, levels))).change.error

    levels = [generated_level(seed) for seed in (1, 2)]
    wider = confidence_factor(1 - 0.05 / 7, 7) / confidence_factor(1 - 0.05 / 6, 7)

    assert error(*(with_cache(level, 700) for level in levels)) / error(*levels) == pytest.approx(
        wider
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),  # neither is clear
        ({"rounds": 1}, {"rounds": 1, "tpot": 0.005, "ttft": 0.09}),  # without errors
        ({}, {"tpot": 0.005}),  # at any length
        ({}, {"tpot": 0.02, "ttft": 0.09}),  # never
    ],
)
def test_a_length_from_which_a_request_gains_is_named_only_where_both_times_clearly_differ(
    first, second
):
    comparison = compared(
        sweep_of(generated_level(1, **first)), sweep_of(generated_level(2, **second))
    )

    assert comparison.gains_from == {}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompts": 64 * "b"}, "other --prompts"),
        ({"requests": 9}, "other --requests (25 and 9)"),
        ({"endpoint": "completions"}, "other --endpoint (chat and completions)"),
        ({"extra_body": '{"top_k": 20}'}, 'other --extra-body ({} and {"top_k": 20})'),
        ({"extra_body": f'{{"user": "{60 * "x"}"}}'}, "other --extra-body"),
        (
            {"max_tokens": 9, "rounds": 4},
            "other --max-tokens (100 and 9), other --rounds (8 and 4)",
        ),
        ({"complete": False}, "a sweep ended early"),
        ({"levels": (with_failures(generated_level(2, tpot=0.005, ttft=0.09)),)}, "some failed"),
    ],
)
def test_prices_of_other_requests_are_not_compared(change, reason):
    """Their times are; the note says what differs."""
    levels = generated_level(1), generated_level(2, tpot=0.005, ttft=0.09)
    before, after = (sweep_of(with_cache(level, 700)) for level in levels)
    balance = ("requests/s", "cache hit ratio")
    same = compared(before, after)
    assert None not in [of(name, same).change for name in balance]
    assert list(same.gains_from) == ["temperature 0, concurrency 4"]
    for pair in ((replace(before, **change), after), (before, replace(after, **change))):
        comparison = compared(*pair)
        assert [of(name, comparison).change for name in balance] == [None] * 2
        assert of("TPOT P50", comparison).change is not None
        assert (comparison.gains_from, comparison.same_requests) == ({}, False)

    assert any(
        note.startswith(f"not the same requests: {reason}; times") for note in comparison.notes
    )


def test_a_price_that_one_round_does_not_have_is_unknown():
    """A sum over the other rounds would be of other requests."""
    level = with_cache(generated_level(1), 700)
    without = replace(
        level, rounds=(replace(level.rounds[0], hits=None, preemptions=None), *level.rounds[1:])
    )
    comparison = compared(sweep_of(level), sweep_of(without))
    for name in ("cache hit ratio", "preemptions/request"):
        assert (of(name, comparison).after, of(name, comparison).change) == (None, None)


def test_other_clients_are_noted():
    """Whichever of the two sweeps they disturbed."""
    level = generated_level(1)
    shared = replace(level, rounds=(replace(level.rounds[0], others=True), *level.rounds[1:]))
    for pair in ((shared, level), (level, shared)):
        notes = compared(*map(sweep_of, pair)).notes
        assert "vLLM served other clients during a sweep, which affects its times" in notes


def test_json_has_the_result_and_the_changes_with_their_errors(saved, capsys):
    assert command("compare", *saved(generated_level(1), generated_level(2)), "--json") == 0
    comparison = json.loads(capsys.readouterr().out)
    (acceptance,) = [one for one in comparison["changes"] if one["metric"] == "acceptance"]

    assert acceptance["level"] == {"temperature": 0.0, "concurrency": 4, "mix": []}
    assert abs(acceptance["change"]["value"]) < acceptance["change"]["error"]
    assert (comparison["result"], acceptance["effect"]) == ("no_difference_shown", None)


@pytest.mark.parametrize(
    ("tpot", "requests", "limit", "code", "reason"),
    [
        (0.012, 400, "5%", 1, "failed\nTPOT P50 at temperature 0, concurrency 4 is slower by "),
        (0.012, 400, "0.5", 0, "passed\n"),
        (0.010, 4000, "5%", 0, "passed\n"),
        (
            0.010,
            40,
            "1%",
            3,
            (
                "undecided\nTTFT P50 at temperature 0, concurrency 4: a slowdown of 1.0% cannot be"
                " ruled"
            ),
        ),
        (0.007, 4000, "5%", 0, "passed\n"),
    ],
)
def test_the_exit_code_says_whether_a_slowdown_is_within_the_limit(
    saved, capsys, *, tpot, requests, limit, code, reason
):
    """A pipeline can tell "slower" from "not decided"."""
    files = saved(
        generated_level(1, requests=requests), generated_level(2, requests=requests, tpot=tpot)
    )

    assert command("compare", *files, "--fail-if-slower", limit) == code
    assert capsys.readouterr().err.startswith(f"--fail-if-slower: {reason}")


def test_a_change_that_is_clear_only_as_a_ratio_is_not_decided_either():
    """Its difference has an error of its own, which rounds shrink as well."""
    pair = [sweep_of(generated_level(seed)) for seed in (1, 2)]
    one = replace(
        of("TPOT P50", compared(*pair)),
        change=Interval(-0.4, 0.3),
        difference=Interval(-0.010, 0.015),
        effect=None,
    )

    assert list(rounds_needed([one], 8, 0.03).values()) == [10]


def failing(change, error, limit=0.05, metric="tokens/s", rounds=8):
    """The gate's code and lines on a level of which only this is known."""
    pair = [sweep_of(generated_level(seed)) for seed in (1, 2)]
    comparison = compared(*pair)
    one = replace(
        of(metric, comparison),
        change=Interval(change, error),
        difference=None,
        effect="slower" if error else None,
    )
    return gate(replace(comparison, changes=(one,), rounds=rounds), limit)


def test_the_gate_fails_only_on_what_is_slower_by_the_limit_at_the_least():
    """Slower for certain, but perhaps by less than the limit, is not decided."""
    level = "tokens/s at temperature 0, concurrency 4"
    undecided = (
        f"{level}: a slowdown of 5.0% cannot be ruled out (10.8% ± 6.7%): an even chance that 3"
        " more rounds decide it"
    )

    assert failing(-0.108, 0.067) == (3, [undecided])
    assert failing(-0.12, 0.067) == (
        1,
        [f"{level} is slower by 12.0% ± 6.7%, at least 5.3%; 5.0% is allowed"],
    )


def test_the_gate_says_how_many_more_rounds_would_decide_and_where_none_would():
    """For each metric that it checks; without an error, rounds are not what decides it alone."""
    undecided = {
        ("TTFT P50", 0.01, 0.08): ": an even chance that 24 more rounds decide it",
        ("TPOT P50", 0.0501, 0.08): ": too close to what is allowed for rounds to decide it",
        ("TTFT P50", 0.01, None): " (1.0%, unknown error)",
    }
    for (metric, change, error), end in undecided.items():
        code, (line,) = failing(change, error, metric=metric)

        assert code == 3
        assert line.endswith(end)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file or directory"),
        (b"{", "not a file that `sweep --save` of this version wrote"),
        (b"[" * 100_000, "not a file that `sweep --save` of this version wrote"),
        (EMPTY % 7, "no request was answered in it"),
        (EMPTY.replace(b"[]", LEVEL) % 7, "not a file that `sweep --save` of this version wrote"),
        (EMPTY % 6, "not a file that `sweep --save` of this version wrote"),
    ],
)
def test_files_that_sweep_did_not_write_are_refused(tmp_path, capsys, content, reason):
    """Also those of another version, and files without a reply in them."""
    file = tmp_path / "a.json"
    if content is not None:
        file.write_bytes(content)

    assert command("compare", str(file), str(file)) == 2
    assert reason in capsys.readouterr().err
