"""Speedup from recordings of a real vLLM.

It is compared with the clients' own times with and without speculation.
"""

from collections import defaultdict

import pytest

from sidecar.analysis.split.tallies import TemperatureBuckets
from sidecar.settings import Settings
from specdec_tools.recording.recording import read_plugin, read_scrapes, replay, replay_events
from tests.commands.commands_tools import LEVELS, PLAIN
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


AGAINST = Settings(plain_steps={"lab": PLAIN})


def speeds(report):
    """Speedup and its error by temperature, and of all."""
    (model,) = report.models
    split = {bucket.temperature: bucket.speedup for bucket in model.temperatures if bucket.speedup}
    return split | {"all": model.speed.speedup}


def test_the_clients_times_give_the_documented_speedups(truth):
    assert truth == pytest.approx(
        {"0-0.3": 1.016, "0.5-0.7": 1.035, "1+": 0.928, "all": 0.984}, abs=0.005
    )


@pytest.mark.slow
def test_the_clients_speedup_is_within_the_stated_error(truth):
    report = replay(LEVELS / "k3", AGAINST)
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


@pytest.mark.parametrize("every", [2, 5])
def test_fewer_polls_of_the_traffic_give_the_same_speedup(every, truth):
    scrapes = list(read_scrapes(LEVELS / "k3"))[::every]
    speedups = speeds(replay_events(scrapes, read_plugin(LEVELS / "k3"), AGAINST))

    assert speedups["all"].ratio == pytest.approx(truth["all"], abs=0.07)
