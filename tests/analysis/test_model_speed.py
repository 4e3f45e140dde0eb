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

    def __init__(self, baseline=FLAT):
        self.engine = Engine()
        self.speed = ModelSpeed(baseline, Withheld.NO_REFERENCE, window=300.0, history=900.0)

    def run(self, polls, running, step_seconds, *, length=2, **options):
        for _ in range(polls):
            before = self.engine.at
            self.engine.run(running, step_seconds, length=length, drafted=3, **options)
            self.speed.polled(before, self.engine.at, {KEY: self.engine.steps})
            self.speed.mark(self.engine.at)

    def request(self, temperature="cold", *, tokens=200, wait=0.0, **changes):
        """One that has just ended; its ``tokens`` after the first took three seconds."""
        at = self.engine.at
        times = {"arrival": at - 3.0 - wait, "first_token": at - 3.0, "last_token": at} | changes
        self.speed.finished({temperature: [finished(output_tokens=tokens + 1, **times)]})
        self.engine.at += 1
        self.speed.mark(self.engine.at)


def test_a_request_is_compared_with_the_load_after_its_first_token():
    """It waits while 16 decode, and decodes alone."""
    model = Model(PlainStepTimes(running=(1.0, 16.0), seconds=(0.02, 0.04), errors=(0.0, 0.0)))
    for _ in range(10):
        model.run(8, 16, 0.06)
        model.run(3, 1, 0.03)
        model.request(wait=6.0)
    assert model.speed.temperature("cold").speedup.ratio == pytest.approx(200 * 0.02 / 3)


@pytest.mark.parametrize(
    ("prompt_share", "times"),
    [
        (2, {}),  # other prompts than the baseline's
        (0, {"first_token": None}),
        (0, {"last_token": None}),
        (0, {"last_token": 0.0}),
    ],
)
def test_a_request_with_other_prompts_or_unknown_times_saves_and_loses_nothing(prompt_share, times):
    model = Model()
    for _ in range(10):
        model.run(6, 5, 0.03, prompt_share=prompt_share)
        model.request(**times)
    cold = model.speed.temperature("cold")
    assert model.speed.whole.withheld is (Withheld.PROMPTS if prompt_share else None)
    assert (cold.speedup, cold.saved, cold.lost) == (None, 0, 0)


def test_engines_that_left_are_forgotten_and_the_whole_stays():
    model = Model()
    model.run(40, 4, 0.03)
    model.speed.forget_all_but([EngineKey("m", "1")])
    model.speed.mark(model.engine.at + 1)
    assert model.speed.engine(KEY) is None
    assert model.speed.whole.speedup is not None
