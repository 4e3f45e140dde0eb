"""One model's speed, poll by poll and request by request."""

import pytest

from sidecar.analysis.speed.model_speed import ModelSpeed
from sidecar.analysis.speed.speedup import Withheld
from sidecar.engine.plan import EngineKey
from sidecar.settings.baselines import PlainStepTimes
from tests.analysis.analysis_tools import finished
from tests.analysis.decoding import KEY, Engine

FLAT = PlainStepTimes(running=(1.0, 16.0), seconds=(0.02, 0.02), errors=(0.0, 0.0))


class Model:
    """A model with one engine under observation."""

    def __init__(self, baseline):
        self.engine = Engine()
        self.speed = ModelSpeed(baseline, Withheld.NO_REFERENCE, window=300.0, history=900.0)

    def run(self, polls, running, step_seconds, **options):
        for _ in range(polls):
            before = self.engine.at
            self.engine.run(running, step_seconds, **options)
            self.speed.polled(before, self.engine.at, {KEY: self.engine.steps})
            self.speed.mark(self.engine.at)

    def request(self, temperature, *, tokens, seconds, wait=0.0, **changes):
        """One that has just ended; its ``tokens`` after the first took ``seconds``."""
        at = self.engine.at
        times = {"arrival": at - seconds - wait, "first_token": at - seconds, "last_token": at} | changes
        self.speed.finished({temperature: [finished(output_tokens=tokens + 1, **times)]})
        self.engine.at += 1
        self.speed.mark(self.engine.at)

    @property
    def whole(self):
        return self.speed.whole

    def at(self, temperature):
        return self.speed.temperature(temperature)


def test_speedup_by_temperature_against_a_baseline():
    """Steps of 30 ms where plain ones take 20: 2 tokens a step are faster, 1.2 slower."""
    model = Model(FLAT)
    for _ in range(20):
        model.run(6, 4, 0.03, length=1.6, drafted=3)
        model.request("cold", tokens=200, seconds=3.0)
        model.request("hot", tokens=120, seconds=3.0)
    assert model.whole.speedup.ratio == pytest.approx(1.6 * 0.02 / 0.03)
    cold, hot = model.at("cold"), model.at("hot")
    assert cold.speedup.ratio == pytest.approx(200 * 0.02 / 3)
    assert hot.speedup.ratio == pytest.approx(120 * 0.02 / 3)
    assert (cold.saved, cold.lost) == (pytest.approx(20 * (200 * 0.02 - 3)), 0)
    assert (hot.saved, hot.lost) == (0, pytest.approx(20 * (3 - 120 * 0.02)))


def test_a_request_is_compared_with_the_load_after_its_first_token():
    """It waits while 16 decode, and decodes alone."""
    rising = PlainStepTimes(running=(1.0, 16.0), seconds=(0.02, 0.04), errors=(0.0, 0.0))
    model = Model(rising)
    for _ in range(10):
        model.run(8, 16, 0.06, length=2, drafted=3)
        model.run(3, 1, 0.03, length=2, drafted=3)
        model.request("cold", tokens=200, seconds=3.0, wait=6.0)
    assert model.at("cold").speedup.ratio == pytest.approx(200 * 0.02 / 3)


def test_with_other_prompts_than_the_baseline_s_no_time_is_saved_or_lost():
    model = Model(FLAT)
    for _ in range(10):
        model.run(6, 5, 0.03, length=2, drafted=3, prompt_share=2)
        model.request("cold", tokens=200, seconds=3.0)
    assert model.whole.withheld is Withheld.PROMPTS
    assert (model.at("cold").speedup, model.at("cold").saved) == (None, 0)


@pytest.mark.parametrize("unknown", [{"first_token": None}, {"last_token": None}, {"last_token": 0.0}])
def test_a_request_whose_times_are_unknown_counts_nowhere(unknown):
    model = Model(FLAT)
    for _ in range(10):
        model.run(6, 4, 0.03, length=2, drafted=3)
        model.request("cold", tokens=200, seconds=3.0, **unknown)
    assert model.at("cold").speedup is None
    assert (model.at("cold").saved, model.at("cold").lost) == (0, 0)


def test_engines_that_left_are_forgotten_and_the_whole_stays():
    model = Model(FLAT)
    model.run(40, 4, 0.03, length=2, drafted=3)
    model.speed.forget_all_but([EngineKey("m", "1")])
    model.speed.mark(model.engine.at + 1)
    assert model.speed.engine(KEY) is None
    assert model.whole.speedup is not None
