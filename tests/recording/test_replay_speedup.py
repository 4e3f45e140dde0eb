"""Speedup from recordings of a real vLLM.

It is compared with the clients' own times with and without speculation.
"""

import math
from collections import defaultdict
from random import Random

import pytest

from sidecar.analysis.speed.fit import blocks_of, fit
from sidecar.analysis.speed.plain import plain_token
from sidecar.analysis.speed.scatter import RequestSpread
from sidecar.analysis.speed.speedup import SlidingTimes
from sidecar.analysis.split.tallies import TemperatureBuckets
from sidecar.recording.recording import read_plugin, read_scrapes, replay, replay_events
from sidecar.settings import Settings
from tests.commands.commands_tools import LEVELS, watched
from tests.recording.recorder_tools import lines_of

BUCKETS = TemperatureBuckets()


def client_times(name):
    """[seconds after the first token, tokens after it] by level and bucket.

    As the clients of streams saw them.
    """
    times = defaultdict(lambda: [0.0, 0])
    for request in lines_of(LEVELS / name, "requests"):
        if request["stream"]:
            total = times[request["level"], BUCKETS.label(round(100 * request["temperature"]))]
            total[0] += request["chunks"][-1] - request["chunks"][0]
            total[1] += request["usage"]["completion_tokens"] - 1
    return times


@pytest.fixture(scope="module")
def truth():
    """Plain time of the tokens at the same level / their actual time, by bucket and for all."""
    plain_times = defaultdict(lambda: [0.0, 0])
    for (level, _), (seconds, tokens) in client_times("plain").items():
        plain_times[level][0] += seconds
        plain_times[level][1] += tokens
    plain, actual = defaultdict(float), defaultdict(float)
    for (level, label), (seconds, tokens) in client_times("k3").items():
        each = plain_times[level][0] / plain_times[level][1]
        for key in (label, "all"):
            plain[key] += tokens * each
            actual[key] += seconds
    return {key: plain[key] / actual[key] for key in actual}


@pytest.fixture(scope="module")
def curve():
    return watched(read_scrapes(LEVELS / "plain")).curves()["lab"]


def against(curve):
    """Settings with the measured plain step times."""
    return Settings(plain_steps={"lab": curve})


def speeds(report):
    """Speedup and its error by temperature, and of all."""
    (model,) = report.models
    split = {bucket.temperature: bucket.speedup for bucket in model.temperatures if bucket.speedup}
    return split | {"all": model.speed.speedup}


def test_the_clients_times_give_the_documented_speedups(truth):
    assert truth == pytest.approx(
        {"0-0.3": 1.016, "0.5-0.7": 1.035, "1+": 0.928, "all": 0.984}, abs=0.005
    )


def test_the_clients_speedup_is_within_the_stated_error(curve, truth):
    report = replay(LEVELS / "k3", against(curve))
    speedups = speeds(report)
    assert speedups.keys() == truth.keys()
    for label, speedup in speedups.items():
        assert abs(speedup.ratio - truth[label]) < min(speedup.error, 0.07), label
        # of a few minutes, so that half of it is what is assumed of noise that lasts
        assert speedup.error < 0.11
    # It breaks even, so about as much is accepted as has to be.
    speed = report.models[0].speed
    accepted = (speed.steps.tokens_per_step - 1) / speed.steps.drafted
    assert speed.break_even_acceptance == pytest.approx(accepted, abs=0.04)


def halves(periods, random):
    """A random half of the periods in stretches of five, in their order."""
    stretches = [periods[start : start + 5] for start in range(0, len(periods), 5)]
    kept = sorted(random.sample(range(len(stretches)), len(stretches) // 2))
    return [period for index in kept for period in stretches[index]]


def speedup(plain, speculating):
    curve, times = fit(blocks_of(plain)), SlidingTimes(300.0, RequestSpread())
    for at, steps in enumerate(speculating):
        if (each := plain_token(curve, steps.holding(curve.contexts[0]))) is not None:
            times.add(
                tokens=steps.generated,
                plain=each,
                actual=steps.request_seconds,
                requests=steps.first_tokens,
            )
            times.mark(float(at))
    return times.read()


@pytest.mark.slow
def test_random_halves_differ_as_the_stated_error_predicts():
    """Half of the data differs from all of it by the half's error / sqrt(2).

    Its variance is twice as large.
    """
    plain, speculating = (
        watched(read_scrapes(LEVELS / name)).periods["lab"] for name in ("plain", "k3")
    )
    whole = speedup(plain, speculating).ratio
    off = []
    for seed in range(100):
        random = Random(seed)
        half = speedup(halves(plain, random), halves(speculating, random))
        off.append((half.ratio - whole) / (half.error / math.sqrt(2)))
    assert sum(abs(deviation) < 2 for deviation in off) / len(off) >= 0.9
    assert sum(deviation**2 for deviation in off) / len(off) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize("every", [2, 5])
def test_fewer_polls_of_the_traffic_give_the_same_speedup(every, curve, truth):
    scrapes = list(read_scrapes(LEVELS / "k3"))[::every]
    speedups = speeds(replay_events(scrapes, read_plugin(LEVELS / "k3"), against(curve)))

    assert speedups["all"].ratio == pytest.approx(truth["all"], abs=0.06)


@pytest.mark.parametrize("every", [2, 5])
def test_a_baseline_with_fewer_polls_is_as_right_or_says_that_it_is_worse(every, curve, truth):
    """The load changes every 20 s here.

    So a poll of 5 s sees two loads at once every fourth time, and prefill cannot be told from them.
    """
    usual = speeds(replay(LEVELS / "k3", against(curve)))["all"]
    (rarer,) = watched(list(read_scrapes(LEVELS / "plain"))[::every]).curves().values()
    found = speeds(replay(LEVELS / "k3", against(rarer)))["all"]

    off = abs(found.ratio - truth["all"])
    assert off < 0.05 or (off < found.error and found.error > 1.1 * usual.error)
