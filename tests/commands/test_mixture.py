"""What is said of requests that are slower in the company of others."""

import re
from dataclasses import replace
from itertools import product

import pytest

from sidecar.errors import InputError
from specdec_tools.measuring.mixture import check_mix, mix_changes, mix_text, mixed_levels
from specdec_tools.measuring.sweep_result import SweepLevel
from tests.commands.commands_tools import command
from tests.commands.sweep_tools import (
    drifting,
    generated_level,
    measured_sweep,
    simulated,
    sweep_of,
)

MIX = ((0.0, 60.0), (1.0, 40.0))
ALONE = [SweepLevel(temperature, 4, MIX) for temperature, _ in MIX]
MIXED = SweepLevel(None, 4, MIX)


def test_the_mix_and_its_parts_are_the_same_requests():
    """So a difference between them is from the company alone."""
    mixed = MIXED.requests(50)
    parts = [level.requests(50) for level in ALONE]

    assert [len(part) for part in parts] == [30, 20]
    assert sorted(parts[0] + parts[1]) == sorted(mixed)
    assert [number for number, _ in mixed] == list(range(50))
    assert mixed == MIXED.requests(50)
    # Mixed well: neither temperature has a long stretch for itself.
    temperatures = [temperature for _, temperature in mixed]

    assert all(len(set(temperatures[start : start + 10])) == 2 for start in range(0, 50, 10))


def test_each_load_has_each_temperature_alone_and_all_together():
    """In turns at each load, so that all three meet the same machine."""
    levels = mixed_levels(MIX, (1, 8))

    expected = product((1, 8), (0.0, 1.0, None))

    assert levels == [SweepLevel(temperature, number, MIX) for number, temperature in expected]
    assert [level.name for level in levels[:3]] == [
        "temperature 0 of 0:60,1:40 alone",
        "temperature 1 of 0:60,1:40 alone",
        "mix 0:60,1:40",
    ]


def generated_mix(seed, *, slower=1.0, requests=64, rounds=8, slowdowns=None):
    """The first temperature takes so much longer in the mix; the second does not."""
    slowdowns = slowdowns or drifting(seed, rounds)
    same = {"requests": requests, "rounds": rounds, "slowdowns": slowdowns, "k": 1}
    alone = [
        replace(
            generated_level(3 * seed + place, temperature=level.temperature, **same), level=level
        )
        for place, level in enumerate(ALONE)
    ]
    company = [
        generated_level(3 * seed + 900_000, temperature=0.0, tpot=0.010 * slower, **same),
        generated_level(3 * seed + 900_001, temperature=1.0, **same),
    ]
    rounds_of_both = zip(*(level.rounds for level in company), strict=True)
    mixed = tuple(
        replace(first, samples=first.samples + second.samples) for first, second in rounds_of_both
    )
    return sweep_of(*alone, replace(company[0], level=MIXED, rounds=mixed))


def clear(seed, **given):
    changes = mix_changes(generated_mix(seed, **given))
    return [
        one.level.temperature for one in changes if one.change is not None and one.change.is_clear
    ]


def test_the_change_follows_from_the_two_times_beside_it():
    """However much rounds scatter."""
    slowdowns = [1 + number / 2 for number in range(8)]
    for one in mix_changes(generated_mix(1, requests=1600, slowdowns=slowdowns, slower=1.2)):
        ratio = one.mixed.value / one.alone.value

        assert one.change.error is not None
        assert one.change.value == pytest.approx(ratio - 1)


@pytest.mark.slow
def test_of_a_thousand_mixes_without_an_effect_at_most_five_percent_show_one():
    """The errors are those of a 95 % interval over all comparisons of a mix."""
    false_alarms = sum(bool(clear(seed)) for seed in range(1000))

    assert false_alarms <= 50


def test_the_temperature_that_suffers_is_named_and_the_other_is_not():
    """In 18 of 20 draws or more of an effect of a tenth."""
    results = [clear(seed, slower=1.1) for seed in range(20)]

    assert sum(result == [0.0] for result in results) >= 18


def test_the_tail_and_the_gap_have_an_error_with_200_requests_of_each_in_each_round():
    """One request fewer leaves them without, while the median keeps its own."""
    for requests, is_known in ((1600, True), (1592, False)):
        changes = mix_changes(generated_mix(1, requests=requests))
        errors = {one.metric: one.change.error for one in changes}

        assert errors["TPOT P50"] is not None
        assert (errors["TPOT P99"] is not None) == is_known
        assert (errors["TPOT P99 - P50"] is not None) == is_known


def test_a_tail_of_a_few_requests_is_not_shown():
    """Of five requests P99 is the slowest one."""
    few = {"requests": 5, "rounds": 1}
    changes = {one.metric: one for one in mix_changes(generated_mix(1, **few))}

    assert changes["TPOT P50"].change is not None
    for metric in ("TPOT P99", "TPOT P99 - P50"):
        one = changes[metric]
        assert (one.alone, one.mixed, one.change) == (None, None, None)


def test_the_text_says_who_waits_for_whom():
    lines = list(mix_text(mix_changes(generated_mix(1, slower=1.2))))

    (sentence,) = [line for line in lines if line.startswith("temperature 0, concurrency 4: ")]
    (other,) = [line for line in lines if line.startswith("temperature 1, concurrency 4: ")]

    longer = r"in the mix, the median time per token is \d+\.\d% ± \d+\.\d% longer than alone"
    nothing = r"the mix makes no clear difference to the median time per token \([+-]\d.\d% ± .+%\)"
    assert re.fullmatch(f"temperature 0, concurrency 4: {longer}", sentence)
    assert re.fullmatch(f"temperature 1, concurrency 4: {nothing}", other)
    assert lines[-2] == (
        "Times beside an error are means of the rounds' own; others are of all requests."
    )
    assert lines[-1] == (
        "P99 and the gap need 200 requests of a temperature, and their errors as many in each "
        "round; every error needs 4 rounds."
    )


def test_without_an_error_the_text_says_so():
    """One round has none."""
    lines = list(mix_text(mix_changes(generated_mix(1, slower=1.2, rounds=1))))

    assert any(line.endswith("longer than alone, with an unknown error") for line in lines)


@pytest.mark.parametrize(
    ("mix", "requests", "temperature", "enough"),
    [
        (((0.0, 99.0), (1.0, 1.0)), 5, "1, whose weight is 1 of 100", 100),
        (((0.0, 1.0), (0.5, 1.0), (1.0, 1.0)), 2, "0.5, whose weight is 1 of 3", 3),
        (((0.0, 0.5), (1.0, 9.5)), 9, "0, whose weight is 0.5 of 10", 20),
    ],
)
def test_too_few_requests_for_a_weight_are_refused_with_a_number_that_is_enough(
    mix, requests, temperature, enough
):
    with pytest.raises(InputError) as error:
        check_mix(mix, requests)

    assert str(error.value) == (
        f"--mix: none of {requests} requests would be at temperature {temperature}: "
        f"use --requests {enough} or another weight"
    )
    check_mix(mix, enough)


def test_the_command_refuses_them_before_it_asks_a_server(capsys):
    assert command("sweep", "--mix", "0:99,1:1", "--requests", "5") == 2
    assert capsys.readouterr().err.startswith("--mix: none of 5 requests would be at temperature 1")


async def test_a_mix_is_measured_at_its_temperatures():
    async with simulated() as vllm:
        result = await measured_sweep(vllm.url, count=10, levels=tuple(mixed_levels(MIX, (4,))))

    samples = [level.whole.samples for level in result.levels]

    assert [len(part) for part in samples] == [6, 4, 10]
    assert sorted(one.temperature for one in samples[2]) == [0.0] * 6 + [1.0] * 4
    assert [one.metric for one in mix_changes(result)] == 2 * [
        "TPOT P50",
        "TPOT P99",
        "TPOT P99 - P50",
    ]


@pytest.mark.parametrize("mix", ["0:1", "0:1,0:2", "0,1", "0:1,1:-1", "x:1,1:1"])
def test_a_mix_without_two_weighted_temperatures_is_refused(capsys, mix):
    with pytest.raises(SystemExit) as refused:
        command("sweep", "--mix", mix)

    assert refused.value.code == 2
    assert "--mix" in capsys.readouterr().err


@pytest.mark.slow
async def test_the_command_measures_only_the_mix_unless_temperatures_are_given(finished):
    async with simulated() as vllm:
        code, out, err = await finished(
            *("sweep", "--url", vllm.url, "--mix", "0:1,1:1", "--concurrency", "2"),
            *("--requests", "8", "--max-tokens", "8", "--rounds", "1"),
        )
    assert code == 0, err
    warning, *lines = err.splitlines()
    begun = [line.split(" (")[0] for line in lines]

    # It says so before it begins, not after minutes of measuring.
    assert warning == "--rounds 1: too few to tell a difference from chance, which takes 4 or more"

    assert begun == [
        "measuring temperature 0 of 0:1,1:1 alone, concurrency 2",
        "measuring temperature 1 of 0:1,1:1 alone, concurrency 2",
        "measuring mix 0:1,1:1, concurrency 2",
    ]
    assert "milliseconds per token" in out
