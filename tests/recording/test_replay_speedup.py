"""Speedup from recordings of a real vLLM, against the clients' own times with and without speculation."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import pytest

from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.recording.recording import read_requests, read_scrapes
from sidecar.recording.replay import plain_curves, replay, replay_events

LEVELS = Path(__file__).parents[1] / "data" / "levels"
BUCKETS = TemperatureBuckets()


def times(name):
    """(seconds after the first token, tokens after it) by level and bucket, as the clients of streams saw them."""
    found = defaultdict(lambda: [0.0, 0])
    with gzip.open(LEVELS / name / "requests.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if line["stream"]:
                one = found[line["level"], BUCKETS.label(line["temperature"])]
                one[0] += line["chunks"][-1] - line["chunks"][0]
                one[1] += line["usage"]["completion_tokens"] - 1
    return found


@pytest.fixture(scope="module")
def truth():
    """Plain time of the tokens at the same level / their actual time, by bucket and for all."""
    plain_times = defaultdict(lambda: [0.0, 0])
    for (level, _), (seconds, tokens) in times("plain").items():
        plain_times[level][0] += seconds
        plain_times[level][1] += tokens
    plain, actual = defaultdict(float), defaultdict(float)
    for (level, label), (seconds, tokens) in times("k3").items():
        each = plain_times[level][0] / plain_times[level][1]
        for key in (label, "all"):
            plain[key] += tokens * each
            actual[key] += seconds
    return {key: plain[key] / actual[key] for key in actual}


@pytest.fixture(scope="module")
def curves():
    return plain_curves(read_scrapes(LEVELS / "plain"))


def test_the_truth_is_that_of_the_recordings_own_description(truth):
    assert truth == pytest.approx({"0-0.3": 1.016, "0.5-0.7": 1.035, "1+": 0.928, "all": 0.984}, abs=0.005)


@pytest.mark.parametrize("infer", [False, True])
def test_speedup_is_that_of_the_clients_times(infer, curves, truth):
    found = replay(LEVELS / "k3", infer=infer, curves=curves).as_json()
    assert found["reference"] == "baseline"
    assert found["withheld"] is None
    assert found["speedup"] == pytest.approx(truth["all"], abs=0.05)
    for label in ("0-0.3", "0.5-0.7", "1+"):
        assert found["temperatures"][label]["speedup"] == pytest.approx(truth[label], abs=0.05)
    assert found["break_even_acceptance"] == pytest.approx(0.495, abs=0.03)  # about what was accepted: it breaks even


@pytest.mark.parametrize("every", [2, 3, 5])
def test_speedup_with_fewer_polls(every, curves, truth):
    """The load changes every 20 s here, so a poll of 5 s sees two loads at once every fourth time."""
    scrapes = list(read_scrapes(LEVELS / "k3"))[::every]
    records = list(read_requests(LEVELS / "k3"))
    found = replay_events(scrapes, records, infer=False, buckets=BUCKETS, curves=curves).as_json()
    assert found["speedup"] == pytest.approx(truth["all"], abs=0.05)


@pytest.mark.parametrize("every", [1, 2, 3, 5])
def test_curve_with_fewer_polls(every, truth):
    curves = plain_curves(list(read_scrapes(LEVELS / "plain"))[::every])
    assert replay(LEVELS / "k3", infer=False, curves=curves).as_json()["speedup"] == pytest.approx(
        truth["all"], abs=0.05
    )


def test_without_a_baseline_no_speedup_is_claimed():
    found = replay(LEVELS / "k3", infer=False).as_json()
    assert (found["speedup"], found["reference"], found["withheld"]) == (None, None, "no_reference")
    assert found["temperatures"]["1+"]["speedup"] is None


def test_a_plain_engine_against_its_own_curve_has_nothing_to_compare(curves):
    found = replay(LEVELS / "plain", infer=False, curves=curves).as_json()
    assert found["speedup"] is None


def test_a_recording_that_speculates_is_no_baseline():
    assert plain_curves(read_scrapes(LEVELS / "k3")) == {}
