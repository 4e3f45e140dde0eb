"""What is judged from requests of known speed and acceptance."""

from random import Random

import pytest

from sidecar.commands.load.client import Sample
from sidecar.commands.load.sweep_result import LevelResult
from sidecar.commands.load.workload import Load, SweepLevel, Workload, alone
from tests.commands.sweep_tools import measurement, printed, summarized, sweep_of

ALONE = alone(0.0)
MIX = Workload(((0.1, 50.0), (1.0, 50.0)))


def sample(tpot=0.01, drafts=None, accepted=0, **values):
    given = {"temperature": 0.0, "ttft": 0.1, "duration": 1.0, "tokens": 10, "draft_tokens": 3 * (drafts or 0)}
    return Sample(tpot=tpot, drafts=drafts, accepted_tokens=accepted, **given | values)


def level(samples, plain=None, workload=ALONE):
    """One request in flight; ``plain`` are the baseline's requests."""
    baseline = None if plain is None else measurement(plain)
    return LevelResult(level=SweepLevel(workload, Load(at_once=1)), speculating=measurement(samples), baseline=baseline)


def requests(tpot, accepted=None, count=80):
    """Requests of ten steps whose time scatters; without ``accepted`` they do not speculate."""
    drafted = {} if accepted is None else {"drafts": 10, "accepted": accepted}
    return [sample(tpot * (1 + number % 7 / 100), **drafted) for number in range(count)]


def summary(level_result, **thresholds):
    (only,) = summarized(sweep_of(level_result), **thresholds)
    return only


@pytest.mark.parametrize(("speedup", "verdict"), [(1.9, "net_positive"), (1.0, "break_even"), (0.8, "net_negative")])
@pytest.mark.parametrize("accepted", [27, 3])
def test_a_measured_speedup_decides_whatever_the_acceptance(speedup, verdict, accepted):
    """By that alone it would be a gain or a loss."""
    with_baseline = summary(level(requests(0.01, accepted), requests(0.01 * speedup)))
    assert with_baseline.speedup.value == pytest.approx(speedup)
    assert with_baseline.speedup.error < 0.1
    assert with_baseline.verdict == verdict
    assert (with_baseline.advice is None) == (verdict == "net_positive")


@pytest.mark.parametrize(
    ("accepted", "verdict", "action", "advice"),
    [
        (27, "net_positive", "confirm under your own load, then ship", "speculate more tokens"),
        (18, "break_even", "measure P99 under your own load before you decide", ""),
        (3, "net_negative", "stop: speculation costs more than it saves here", "speculate fewer tokens"),
    ],
)
def test_without_a_baseline_the_acceptance_decides(accepted, verdict, action, advice):
    result = level(requests(0.01, accepted))
    judged = summary(result)
    assert (judged.verdict, judged.action) == (verdict, action)
    assert bool(judged.advice) == bool(advice)
    assert advice in (judged.advice or "")
    assert {f"{verdict}: {action}", "  temperature 0, concurrency 1"} <= set(printed(sweep_of(result)))


def test_the_verdict_follows_the_thresholds():
    few = level(requests(0.01, 27, count=4))
    judged = summary(few)
    assert judged.verdict == "insufficient_data"
    assert judged.action == "at least 20 requests are needed: raise --requests"
    assert summary(few, min_requests=4).verdict == "net_positive"


def test_acceptance_is_of_tokens_its_quantiles_of_requests_and_position_rates_of_steps():
    steps = [sample(drafts=10, accepted=30, histogram=(5, 0, 5)), sample(drafts=30, accepted=0, histogram=(20, 10))]
    judged = summary(level(steps))
    values = judged.speculating
    assert (values["acceptance"], values["length"], values["tokens/s"]) == (30 / 120, 1 + 30 / 40, 10.0)
    quantiles = [values[f"acceptance P{share}"] for share in (10, 50, 90)]
    assert quantiles == pytest.approx([0.1, 0.5, 0.9])
    assert judged.position_rates == (15 / 40, 5 / 40)


def test_a_vllm_without_speculation_has_times_and_no_verdict():
    judged = summary(level([sample()]))
    assert (judged.acceptance_from, judged.speculating["acceptance"]) == ("none", None)
    assert judged.speculating["TPOT P50"] == 0.01
    assert judged.verdict == "insufficient_data"
    assert judged.action == "neither the replies nor vLLM's counters show any drafts: is speculation on?"


def mixed(workload, cold=0.010, hot=0.030, count=2000, seed=1):
    """Requests whose TPOT scatters by a tenth."""
    random = Random(seed)
    samples = [
        sample((cold if temperature == 0.1 else hot) * random.uniform(1, 1.1), temperature=temperature)
        for temperature in workload.spread(count)
    ]
    return level(samples, workload=workload)


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
    result = sweep_of(*apart, mixed(MIX, cold=cold, count=count))
    changes = summarized(result)[2].changes
    assert changes[0.1].value == pytest.approx(cold / 0.010 - 1, abs=0.03)
    assert changes[1.0].value == pytest.approx(0, abs=0.03)
    start = "mix 0.1:50,1:50, concurrency 1: TPOT P99 at temperature 0.1 "
    (line,) = (line for line in printed(result) if line.startswith(start))
    assert error in line


def test_a_mix_whose_temperatures_were_not_measured_alone_has_no_change():
    assert summary(mixed(MIX)).changes == {0.1: None, 1.0: None}
