"""One server's speed, poll by poll and request by request."""

import math

import pytest

from sidecar.analysis.attribution.attributors import Settled
from sidecar.analysis.attribution.result import Attribution, attributed
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.speed_state import SpeedOptions, SpeedState
from sidecar.analysis.speedup import Reference, Withheld
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.requests.record import Outcome, RequestRecord
from tests.analysis.decoding import KEY, Engine

CURVE = PlainCurve(running=(1.0, 16.0), seconds=(0.02, 0.02), deviations=((0.0,), (0.0,)), prompt_share=0.0)
LABELS = ("cold", "hot")


class Server:
    """A model's engine under observation."""

    def __init__(self, *, curves=None, speculating=True):
        self.engine = Engine(speculating=speculating)
        self.state = SpeedState(SpeedOptions(curves=curves or {}, temperatures=LABELS))
        self.poll()

    def poll(self, **options):
        self.state.scraped(self.engine.at, {KEY: self.engine.timeline}, **{"several_processes": False, **options})

    def run(self, polls, running, step_seconds, **options):
        for _ in range(polls):
            self.engine.run(running, step_seconds, **options)
            self.poll()

    def request(
        self, temperature, *, tokens, steps, seconds, wait=0.0, drafts=None, attribution=Attribution.EXACT, stream=True
    ):
        """One that has just ended; it took ``seconds`` from its first token on. ``drafts``: else each step drafted."""
        end = self.engine.at
        record = RequestRecord(
            id="r",
            path="/v1/completions",
            model="m",
            temperature=None,
            choices=1,
            stream=stream,
            start=end - seconds - wait,
            first_token=end - seconds if stream else None,
            end=end,
            outcome=Outcome.COMPLETED,
            completion_tokens=tokens + 1,
        )
        drafts = steps if drafts is None else drafts
        work = (drafts, 3.0 * drafts, float(tokens - steps))
        found = attributed(record, temperature, attribution, work if attribution is not Attribution.NONE else (0, 0, 0))
        self.state.finished(end, [Settled("m", found)])

    @property
    def model(self):
        return self.state.models(self.engine.at)["m"]


def test_speedup_by_temperature_against_a_baseline():
    """Steps of 30 ms where plain ones take 20: 2 tokens a step are faster, 1.2 slower."""
    server = Server(curves={"m": CURVE})
    for _ in range(20):
        server.run(6, 4, 0.03, length=1.6, drafted=3)
        server.request("cold", tokens=200, steps=100, seconds=3.0)
        server.request("hot", tokens=120, steps=100, seconds=3.0)
    model = server.model
    assert model.reference is Reference.BASELINE
    assert model.whole.speedup.ratio == pytest.approx(1.6 * 0.02 / 0.03)
    assert model.temperatures["cold"].speedup.ratio == pytest.approx(200 * 0.02 / 3)
    assert model.temperatures["hot"].speedup.ratio == pytest.approx(120 * 0.02 / 3)
    assert not model.temperatures["cold"].contradicts
    assert model.temperatures["cold"].saved_seconds == pytest.approx(20 * (200 * 0.02 - 3))
    assert model.temperatures["cold"].lost_seconds == 0
    assert model.temperatures["hot"].lost_seconds == pytest.approx(20 * (3 - 120 * 0.02))


def test_streams_need_no_attribution_and_other_replies_no_stream():
    for options in ({"attribution": Attribution.NONE}, {"stream": False}):
        server = Server(curves={"m": CURVE})
        for _ in range(10):
            server.run(6, 4, 0.03, length=2, drafted=3)
            server.request("cold", tokens=200, steps=100, seconds=3.0, **options)
        assert server.model.temperatures["cold"].speedup.ratio == pytest.approx(200 * 0.02 / 3)


def test_a_stream_is_compared_with_the_load_after_its_first_token():
    """It waits while 16 decode, and decodes alone."""
    curve = PlainCurve(running=(1.0, 16.0), seconds=(0.02, 0.04), deviations=((0.0,), (0.0,)), prompt_share=0.0)
    server = Server(curves={"m": curve})
    for _ in range(10):
        server.run(8, 16, 0.06, length=2, drafted=3)
        server.run(3, 1, 0.03, length=2, drafted=3)
        server.request("cold", tokens=200, steps=100, seconds=3.0, wait=6.0)
    assert server.model.temperatures["cold"].speedup.ratio == pytest.approx(200 * 0.02 / 3)


def test_time_saved_includes_what_other_prompts_add_to_plain_steps():
    curve = PlainCurve(
        running=(1.0, 16.0), seconds=(0.02, 0.02), deviations=((0.0,), (0.0,)), prompt_share=0.0, prompt_seconds=0.001
    )
    server = Server(curves={"m": curve})
    for _ in range(10):
        server.run(6, 5, 0.03, length=2, drafted=3, prompt_share=2)
        server.request("cold", tokens=200, steps=100, seconds=3.0)
    found = server.model.temperatures["cold"]
    assert found.speedup.ratio == pytest.approx(200 * 0.028 / 3)
    assert found.saved_seconds == pytest.approx(10 * (200 * 0.028 - 3))


def test_steps_without_drafts_take_time_too():
    """As with n-gram: 100 steps, of which 40 drafted."""
    server = Server(curves={"m": CURVE})
    for _ in range(10):
        server.run(6, 4, 0.03, length=1.2, drafted=1)
        server.request("cold", tokens=120, steps=100, drafts=40, seconds=3.0, stream=False)
    assert server.model.temperatures["cold"].speedup.ratio == pytest.approx(120 * 0.02 / 3)


def test_a_reply_that_is_neither_counts_nowhere():
    server = Server(curves={"m": CURVE})
    for _ in range(10):
        server.run(6, 4, 0.03, length=2, drafted=3)
        server.request("cold", tokens=200, steps=100, seconds=3.0, attribution=Attribution.NONE, stream=False)
    assert server.model.temperatures["cold"].speedup is None
    assert server.model.temperatures["cold"].saved_seconds == 0


def test_a_source_that_sees_other_times_than_the_engine_contradicts_it():
    server = Server(curves={"m": CURVE})
    for _ in range(10):
        server.run(12, 4, 0.03, length=2, drafted=3)
        server.request("cold", tokens=200, steps=100, seconds=6.0)  # a client that reads slowly
    found = server.model.temperatures["cold"]
    assert found.contradicts
    assert found.speedup.ratio + 2 * found.speedup.error >= 200 * 0.02 / 3


@pytest.mark.parametrize(("curves", "why"), [({}, Withheld.NO_REFERENCE), ({"other": CURVE}, Withheld.OTHER_MODEL)])
def test_without_a_baseline_for_the_model_nothing_is_claimed(curves, why):
    server = Server(curves=curves)
    server.run(40, 4, 0.03, length=2, drafted=3)
    server.request("cold", tokens=200, steps=100, seconds=3.0)
    model = server.model
    assert (model.whole.speedup, model.whole.withheld, model.reference) == (None, why, None)
    assert model.temperatures == {}


def test_steps_without_drafts_become_the_reference():
    """Drafting stops under load, as with vLLM's schedule of draft tokens by batch size."""
    server = Server()
    for _ in range(10):
        server.run(5, 4, 0.05, length=2.5, drafted=3)
        server.run(5, 8, 0.03)
    assert server.model.reference is Reference.UNDRAFTED
    assert server.model.curve.at(8).seconds == pytest.approx(0.03)
    assert server.model.whole.withheld is Withheld.LOAD  # nothing says how long a plain step takes with 4 requests


def test_several_api_servers_count_steps_several_times_so_nothing_is_said():
    server = Server(curves={"m": CURVE})
    for _ in range(20):
        server.engine.run(4, 0.03, length=2, drafted=3)
        server.poll(several_processes=True)
    assert server.model.whole.withheld is Withheld.NO_STEPS
    assert server.state.loads() == {}


def test_decoding_is_counted_by_load_on_plain_pods_too():
    server = Server(speculating=False)
    server.run(10, 4, 0.05)
    server.run(10, 1, 0.02)
    loads = server.state.loads()[KEY]
    assert (loads["3-4"].seconds, loads["3-4"].steps, loads["3-4"].tokens) == pytest.approx((40, 800, 800))
    assert loads["1"].seconds / loads["1"].steps == pytest.approx(0.02)
    assert loads["257+"].steps == 0
    assert server.state.models(server.engine.at) == {}  # it speculates not at all: there is nothing to compare


def test_a_model_that_left_the_page_is_forgotten():
    server = Server(curves={"m": CURVE})
    server.run(40, 4, 0.03, length=2, drafted=3)
    other = {EngineKey("n", "0"): Engine().timeline}
    server.state.scraped(server.engine.at + 900, other, several_processes=False)
    assert list(server.state.models(math.inf)) == ["m"]  # it may come back, and its counters go on
    server.state.scraped(server.engine.at + 901, other, several_processes=False)
    assert server.state.models(math.inf) == {}


def test_a_clock_set_back_is_survived():
    server = Server(curves={"m": CURVE})
    server.run(40, 4, 0.03, length=2, drafted=3)
    server.engine.at -= 1000
    server.engine.timeline.times.clear()
    server.engine.timeline._rows.clear()
    server.run(40, 4, 0.015, length=2, drafted=3)
    assert server.model.whole.speedup.ratio == pytest.approx(2 * 0.02 / 0.015)


def test_a_vllm_without_step_times_is_told_from_an_idle_one():
    idle = Server(curves={"m": CURVE})
    assert idle.model.whole.withheld is Withheld.TOO_LITTLE
    old = Server(curves={"m": CURVE})
    del old.engine.counters[Counter.DECODE_SECONDS]
    old.run(3, 4, 0.03, length=2, drafted=3)
    assert old.model.whole.withheld is Withheld.NO_STEPS
