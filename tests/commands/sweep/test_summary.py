"""What is judged from requests of known speed and acceptance."""

from random import Random

import pytest

from sidecar.commands.sweep.client import Sample
from sidecar.commands.sweep.measured import LevelResult
from sidecar.commands.sweep.workload import Level, Load, Workload, alone
from tests.commands.compare.made_sweeps import swept
from tests.commands.sweep.sweep_tools import measured, printed, summarized

ALONE = alone(0.0)
MIX = Workload(((0.1, 50.0), (1.0, 50.0)))


def sample(tpot=0.01, drafts=None, accepted=0, **values):
    given = {"temperature": 0.0, "ttft": 0.1, "duration": 1.0, "tokens": 10, "draft_tokens": 3 * (drafts or 0)}
    return Sample(tpot=tpot, drafts=drafts, accepted_tokens=accepted, **given | values)


def level(samples, plain=None, workload=ALONE):
    """One request in flight; ``plain`` are the baseline's requests."""
    return LevelResult(
        level=Level(workload, Load(at_once=1)),
        speculating=measured(samples),
        baseline=None if plain is None else measured(plain),
    )


def requests(tpot, accepted=None, count=80):
    """Requests of ten steps whose time scatters; without ``accepted`` they do not speculate."""
    drafted = {} if accepted is None else {"drafts": 10, "accepted": accepted}
    return [sample(tpot * (1 + number % 7 / 100), **drafted) for number in range(count)]


def one(*levels, **thresholds):
    (found,) = summarized(swept(*levels), **thresholds)
    return found


@pytest.mark.parametrize(("speedup", "verdict"), [(1.9, "net_positive"), (1.0, "break_even"), (0.8, "net_negative")])
@pytest.mark.parametrize("accepted", [27, 3])
def test_a_measured_speedup_decides_whatever_the_acceptance(speedup, verdict, accepted):
    """By that alone it would be a gain or a loss."""
    ours = requests(0.01, accepted)
    assert one(level(ours)).verdict == ("net_positive" if accepted == 27 else "net_negative")
    found = one(level(ours, requests(0.01 * speedup)))
    assert found.speedup.value == pytest.approx(speedup)
    assert found.speedup.error < 0.1
    assert found.verdict == verdict
    assert (found.advice is None) == (verdict == "net_positive")


@pytest.mark.parametrize(
    ("accepted", "verdict", "action", "advice"),
    [
        (27, "net_positive", "confirm under your own load, then ship", "speculate more tokens"),
        (18, "break_even", "measure P99 under your own load before you decide", None),
        (3, "net_negative", "stop: speculation costs more than it saves here", "speculate fewer tokens"),
    ],
)
def test_without_a_baseline_the_acceptance_decides(accepted, verdict, action, advice):
    found = one(level(requests(0.01, accepted)))
    assert (found.verdict, found.action) == (verdict, action)
    assert (found.advice is None) if advice is None else (advice in found.advice)
    assert {f"{verdict}: {action}", "  temperature 0, concurrency 1"} <= set(
        printed(swept(level(requests(0.01, accepted))))
    )


def test_the_verdict_follows_the_thresholds():
    few = level(requests(0.01, 27, count=4))
    found = one(few)
    assert (found.verdict, found.action) == (
        "insufficient_data", "at least 20 requests are needed: raise --requests",
    )  # fmt: skip
    assert one(few, min_requests=4).verdict == "net_positive"


def test_acceptance_is_of_tokens_and_its_quantiles_of_requests():
    values = one(level([sample(drafts=10, accepted=30), sample(drafts=30, accepted=0)])).speculating
    assert (values["acceptance"], values["length"], values["tokens/s"]) == (30 / 120, 1 + 30 / 40, 10.0)
    quantiles = [values[f"acceptance P{share}"] for share in (10, 50, 90)]
    assert quantiles == pytest.approx([0.1, 0.5, 0.9])


def test_position_rates_are_shares_of_all_steps():
    found = one(level([sample(drafts=2, histogram=(1, 0, 1)), sample(drafts=2, histogram=(0, 2))]))
    assert found.position_rates == (3 / 4, 1 / 4)


def test_a_vllm_without_speculation_has_times_and_no_verdict():
    found = one(level([sample()]))
    assert (found.acceptance_from, found.speculating["acceptance"]) == ("none", None)
    assert found.speculating["TPOT P50"] == 0.01
    assert found.verdict == "insufficient_data"
    assert found.action == "neither the replies nor vLLM's counters show any drafts: is speculation on?"


def mixed(workload, cold=0.010, hot=0.030, count=2000, seed=1):
    """Requests whose TPOT scatters by a tenth."""
    random = Random(seed)
    return level(
        [
            sample((cold if temperature == 0.1 else hot) * random.uniform(1, 1.1), temperature=temperature)
            for temperature in workload.spread(count)
        ],
        workload=workload,
    )


@pytest.mark.parametrize(
    ("cold", "count", "error"),
    [
        (0.015, 2000, "(±"),
        # The mix's P99 is three times that of the cold ones alone, and yet no request is slower for it.
        (0.010, 2000, "(±"),
        (0.015, 60, "(not precise: raise --requests, P99 needs about 800)"),
    ],
)
def test_a_temperature_of_a_mix_is_compared_with_the_same_one_alone(cold, count, error):
    apart = [mixed(alone(temperature), count=count, seed=2) for temperature in (0.1, 1.0)]
    result = swept(*apart, mixed(MIX, cold=cold, count=count))
    changes = summarized(result)[2].changes
    assert changes[0.1].value == pytest.approx(cold / 0.010 - 1, abs=0.03)
    assert changes[1.0].value == pytest.approx(0, abs=0.03)
    (line,) = (
        line
        for line in printed(result)
        if line.startswith("mix 0.1:50,1:50, concurrency 1: TPOT P99 at temperature 0.1")
    )
    assert error in line


def test_a_mix_whose_temperatures_were_not_measured_alone_has_no_change():
    assert one(mixed(MIX)).changes == {0.1: None, 1.0: None}
