"""What is judged from requests of known speed and acceptance."""

from random import Random

import pytest

from sidecar.commands.sweep.results import LevelResult
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.workload import Level, Load, Workload, alone
from tests.commands.compare.made_sweeps import swept
from tests.commands.sweep.sweep_tools import measured, printed, summarized

MIX = Workload(((0.1, 50.0), (1.0, 50.0)))


def sample(tpot=0.01, drafts=None, accepted=0, **values):
    given = {"temperature": 0.0, "ttft": 0.1, "duration": 1.0, "tokens": 10, "draft_tokens": 3 * (drafts or 0)}
    return Sample(tpot=tpot, drafts=drafts, accepted_tokens=accepted, **given | values)


def requests(tpot, accepted=27, count=80):
    """Requests of ten steps whose time scatters."""
    return measured(sample(tpot * (1 + number % 7 / 100), drafts=10, accepted=accepted) for number in range(count))


def level(at_once, speedup=None, accepted=27):
    """A level, with a baseline that is slower by ``speedup``."""
    plain = [sample(0.01 * speedup * (1 + number % 7 / 100)) for number in range(80)] if speedup else None
    return LevelResult(
        level=Level(alone(0.0), Load(at_once=at_once)),
        speculating=requests(0.01, accepted),
        baseline=None if plain is None else measured(plain),
    )


@pytest.mark.parametrize(
    ("speedups", "said", "verdict"),
    [
        ((1.9, 1.4, 1.3), "faster at every load up to 4 at once", "net_positive"),
        ((1.9, 1.4, 0.9), "faster up to 2 at once, no longer at 4 at once", "break_even"),
        ((1.9, 0.8, 1.3), "faster up to 1 at once, no longer at 2 at once", "break_even"),
        ((0.9, 0.8, 0.7), "not faster, even at 1 at once", "net_negative"),
    ],
)
@pytest.mark.parametrize("accepted", [27, 3])
def test_measured_speedups_decide_up_to_which_load_it_pays(speedups, said, verdict, accepted):
    """Whatever the acceptance; by that alone it would be one gain or one loss."""
    by_acceptance = "net_positive" if accepted == 27 else "net_negative"
    assert summarized(swept(level(1, accepted=accepted))).temperatures[0].verdict == by_acceptance
    levels = [level(at_once, one, accepted) for at_once, one in zip((1, 2, 4), speedups, strict=True)]
    found = summarized(swept(*levels))
    assert [one.speedup.value for one in found.levels] == pytest.approx(speedups)
    assert all(one.speedup.error < 0.1 for one in found.levels)
    (one,) = found.temperatures
    assert f"measured: {said}" in one.notes
    assert one.verdict == verdict
    advised = [note for note in one.notes if not note.startswith("measured: ")]
    assert (not advised) == (verdict == "net_positive")


def test_a_level_without_data_leaves_the_verdict_to_the_others():
    few = LevelResult(
        level=Level(alone(0.0), Load(at_once=2)),
        speculating=requests(0.01, count=4),
        baseline=measured([sample(0.02)] * 4),
    )
    assert summarized(swept(level(1, 1.5), few)).temperatures[0].verdict == "net_positive"
    (found,) = summarized(swept(few)).temperatures
    assert found.verdict == "insufficient_data"
    assert found.action == "4 requests at a load, at least 20 needed: raise --requests"


@pytest.mark.parametrize(
    ("accepted", "verdict", "action", "advice"),
    [
        (27, "net_positive", "confirm under your own load, then ship", "speculate more tokens"),
        (18, "break_even", "measure P99 under your own load before you decide", None),
        (3, "net_negative", "stop: speculation costs more than it gives here", "speculate fewer tokens"),
    ],
)
def test_without_a_baseline_the_acceptance_decides(accepted, verdict, action, advice):
    (found,) = summarized(swept(level(1, accepted=accepted))).temperatures
    assert (found.verdict, found.action) == (verdict, action)
    assert [advice in note for note in found.notes] == ([True] if advice else [])


def test_the_verdict_follows_the_thresholds():
    few = swept(LevelResult(level=Level(alone(0.0), Load(at_once=1)), speculating=requests(0.01, count=4)))
    (found,) = summarized(few).temperatures
    assert found.verdict == "insufficient_data"
    assert found.action == "4 requests, at least 20 needed: raise --requests"
    assert summarized(few, min_requests=4).temperatures[0].verdict == "net_positive"


def test_acceptance_is_of_tokens_and_its_quantiles_of_requests():
    found = measured([sample(drafts=10, accepted=30), sample(drafts=30, accepted=0)], seconds=5.0)
    told = summarized(swept(LevelResult(level=Level(alone(0.0), Load(at_once=1)), speculating=found)))
    (one,), values = told.temperatures, told.levels[0].speculating
    assert (values["acceptance"], values["length"], values["tokens/s"]) == (30 / 120, 1 + 30 / 40, 4.0)
    assert (one.acceptance, one.p10, one.p50, one.p90) == pytest.approx((0.25, 0.1, 0.5, 0.9))


def test_position_rates_are_shares_of_all_steps():
    found = measured([sample(drafts=2, histogram=(1, 0, 1)), sample(drafts=2, histogram=(0, 2))])
    assert found.acceptance.position_rates == (3 / 4, 1 / 4)


def test_a_vllm_without_speculation_has_times_and_no_verdict():
    told = summarized(swept(LevelResult(level=Level(alone(0.0), Load(at_once=1)), speculating=measured([sample()]))))
    (one,), values = told.temperatures, told.levels[0].speculating
    assert (one.acceptance_from, one.acceptance, values["acceptance"], values["TPOT P50"]) == ("none", None, None, 0.01)
    assert one.verdict == "insufficient_data"
    assert one.action == "nothing was drafted, in replies or in vLLM's counters: is speculation on?"


def mixed(workload, cold=0.010, hot=0.030, count=2000, seed=1):
    """Requests whose TPOT scatters by a tenth, one in flight."""
    random = Random(seed)
    samples = [
        sample((cold if temperature == 0.1 else hot) * random.uniform(1, 1.1), temperature=temperature)
        for temperature in workload.spread(count)
    ]
    return LevelResult(level=Level(workload, Load(at_once=1)), speculating=measured(samples))


@pytest.mark.parametrize(
    ("cold", "count", "said"),
    [
        (0.015, 2000, "requests at temperature 0.1 are slower in the mix: route them to separate pods"),
        # The mix's P99 is three times that of the cold ones alone, and yet no request is slower for it.
        (0.010, 2000, "no temperature is shown to be slower in the mix: separate pods would not help"),
        (0.015, 60, "too few requests to compare P99: raise --requests (about 800 of each temperature)"),
    ],
)
def test_a_temperature_that_is_slower_in_the_mix_is_named(cold, count, said):
    apart = [mixed(alone(temperature), count=count, seed=2) for temperature in (0.1, 1.0)]
    result = swept(*apart, mixed(MIX, cold=cold, count=count))
    assert f"mix 0.1:50,1:50, 1 at once: {said}" in printed(result)
    changes = summarized(result).levels[2].changes
    assert changes[0.1].value == pytest.approx(cold / 0.010 - 1, abs=0.03)
    assert changes[1.0].value == pytest.approx(0, abs=0.03)


def test_a_mix_whose_temperatures_were_not_measured_alone_has_no_change():
    assert summarized(swept(mixed(MIX))).levels[0].changes == {0.1: None, 1.0: None}
