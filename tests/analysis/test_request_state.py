"""One server's requests, poll by poll: when they are settled, what is kept, and what reading changes."""

from dataclasses import replace

import pytest

from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.result import AttributionOutcome
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.request_state import RequestState
from sidecar.analysis.target_state import TargetState
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import Verdict, VerdictThresholds
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.errors import TimedOut
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord

THRESHOLDS = VerdictThresholds(min_requests=5, min_drafts_per_second=0.1)


def record(number, end, *, model="m", accepted=60, **changes):
    values = {
        "id": str(number),
        "path": "/v1/completions",
        "model": model,
        "temperature": 0.0,
        "choices": 1,
        "stream": False,
        "start": end - 1,
        "first_token": None,
        "end": end,
        "outcome": Outcome.COMPLETED,
        "completion_tokens": 100,
        "acceptance": RequestAcceptance(30, 90, accepted),
    }
    return RequestRecord(**(values | changes))


def tokens(drafts, accepted):
    return {Counter.DRAFTS: drafts, Counter.DRAFT_TOKENS: 3 * drafts, Counter.ACCEPTED_TOKENS: accepted}


def page(*keys, start=1.0, drafts=0.0):
    counters = tokens(drafts, 2 * drafts)
    engines = tuple(EngineSnapshot(EngineKey(*key), counters, (), {}, {}, None) for key in keys)
    return PageSnapshot(engines, VersionFamily.V1_32, start, 0)


class Polled:
    """A server with requests, polled every second."""

    def __init__(self, max_models=2, **options):
        attribution = AttributionOptions(history=900)
        self.requests = RequestState(
            "proxy",
            buckets=TemperatureBuckets(),
            options=attribution,
            window=THRESHOLDS.window,
            max_models=max_models,
        )
        self.target = TargetState(
            "t",
            Lookback(),
            interval=1.0,
            thresholds=THRESHOLDS,
            requests=self.requests,
            **({"max_engines": 8} | options),
        )
        self.at = 1000.0

    def poll(self, *keys, seconds=1.0, **options):
        self.at += seconds
        self.target.scraped(self.at, 0.005, 1.0, page(*keys, **options))
        return self.models()

    def fail(self, seconds=1.0):
        self.at += seconds
        self.target.failed(self.at, TimedOut("x"))
        return self.models()

    def models(self):
        return {model.model_name: model for model in self.requests.report().models}

    def judged(self, model="m", later=0.0):
        judgements = {one.model_name: one for one in self.target.report(self.at + later).judgements}
        return judgements[model].temperatures["0"]

    def verdict(self, model="m"):
        return self.judged(model).verdict

    def serve(self, count, model="m", **changes):
        for number in range(count):
            self.requests.finished(record(number, self.at, model=model, **changes))


M, N = ("m", "0"), ("n", "0")


def ended(model):
    return sum(model.stats.requests.values())


def test_requests_are_counted_while_the_page_can_not_be_had():
    server = Polled()
    server.poll(M)
    server.serve(7)
    server.serve(3, outcome=Outcome.ERROR, acceptance=None)
    assert ended(server.fail()["m"]) == 10


def test_another_models_requests_are_counted_then_too():
    server = Polled()
    server.poll(M, N)
    server.serve(4, model="nobody")
    assert ended(server.fail()["other"]) == 4


def test_models_past_the_bound_are_other_and_counted():
    server = Polled(max_models=1)
    server.poll(M, N)
    assert server.models() == {}
    server.serve(3, model="n")
    assert list(server.poll(M, N)) == ["n"]
    server.serve(2, model="m")
    server.serve(1, model="n")
    found = server.poll(M, N)
    assert {name: ended(model) for name, model in found.items()} == {"n": 4, "other": 2}
    assert server.requests.report().overflowed_models == 1
    # A mixture of models has no verdict, and each of them has its own as a whole.
    judged = {one.model_name: one for one in server.target.report(server.at).judgements}
    assert {name: bool(one.temperatures) for name, one in judged.items()} == {"m": False, "n": True}


def test_a_model_that_left_the_page_makes_room_for_the_next():
    server = Polled(max_models=1)
    server.poll(M)
    server.serve(10)
    assert list(server.poll(M)) == ["m"]
    assert list(server.poll(N)) == ["n"]
    server.serve(3, model="n")
    assert ended(server.poll(N)["n"]) == 3
    assert server.requests.report().overflowed_models == 0


def test_reading_changes_no_verdict():
    server = Polled()
    server.poll(M)
    server.serve(10)
    server.poll(M)
    first = server.judged(later=1.0)
    assert first.verdict is Verdict.NET_POSITIVE
    assert server.judged() is first


def test_there_is_no_verdict_while_vllm_is_down():
    server = Polled()
    server.poll(M)
    server.serve(10)
    server.poll(M)
    assert server.target.report(server.at + 10).judgements == ()
    server.fail()
    assert server.target.report(server.at).judgements == ()
    server.poll(M)
    assert server.verdict() is Verdict.NET_POSITIVE
    server.fail(seconds=10_000)
    server.poll(M)
    assert server.verdict() is Verdict.INSUFFICIENT_DATA


def test_advice_is_given_with_a_verdict_alone():
    server = Polled()
    server.poll(M)
    server.serve(THRESHOLDS.min_requests - 1, accepted=18)
    server.poll(M)
    assert server.judged().advice is None
    server.serve(10, accepted=18)
    server.poll(M)
    assert server.judged().advice


def test_a_model_that_has_left_the_page_has_no_verdict_and_is_forgotten_in_time():
    server = Polled()
    server.poll(M)
    server.serve(10)
    server.poll(M)
    assert server.verdict() is Verdict.NET_POSITIVE
    gone = server.poll(N)["m"]
    assert server.verdict() is Verdict.INSUFFICIENT_DATA
    assert (ended(gone), gone.coverage) == (10, None)
    assert "m" in server.poll(N, seconds=890)
    assert list(server.poll(N, seconds=20)) == ["n"]


def test_a_model_is_judged_over_all_its_engines_on_the_page():
    server = Polled()
    two = [EngineSnapshot(EngineKey("m", n), tokens(0, 0), (), {}, {}, None) for n in "01"]
    server.target.scraped(1001.0, 0.005, 1.0, PageSnapshot(tuple(two), VersionFamily.V1_32, 1.0, 0))
    grown = [replace(two[0], counters=tokens(900, 270)), replace(two[1], counters=tokens(100, 270))]
    server.target.scraped(1002.0, 0.005, 1.0, PageSnapshot(tuple(grown), VersionFamily.V1_32, 1.0, 0))
    (judged,) = server.target.report(1002.0).judgements
    assert judged.whole.evidence.acceptance == pytest.approx(540 / 3000)
    assert judged.whole.verdict is Verdict.NET_NEGATIVE


def test_a_clock_set_back_begins_anew():
    server = Polled()
    server.poll(M)
    server.serve(10)
    before = server.requests._attributors.by_model["m"]
    assert server.poll(M)["m"].recent["0"].requests == 10
    back = server.poll(M, seconds=-500)["m"]
    assert (back.recent["0"].requests, ended(back)) == (0, 10)
    assert server.requests._attributors.by_model["m"] is not before
    server.serve(3)
    assert server.poll(M)["m"].recent["0"].requests == 3
    assert server.poll(M, seconds=400)["m"].recent["0"].requests == 0


def test_models_that_come_and_go_do_not_pile_up():
    server = Polled()
    for number in range(100):
        models = server.poll((f"m{number}", "0"), seconds=200)
    assert len(models) <= 6


def test_another_number_of_api_servers_begins_anew():
    server = Polled()
    server.poll(M)
    before = server.requests._attributors.by_model["m"]
    server.poll(M)
    assert server.requests._attributors.by_model["m"] is before
    server.poll(M, start=None)
    after = server.requests._attributors.by_model["m"]
    assert after is not before
    assert after._options.several_api_servers


@pytest.mark.parametrize(("keys", "models"), [([("m", str(n)) for n in range(5)], ["m"]), ([M, N, N], ["m", "n"])])
def test_engines_past_the_bound_are_their_models(keys, models):
    server = Polled(max_engines=len(models))
    assert list(server.poll(*dict.fromkeys(keys))) == models


def test_engines_past_the_bound_count_for_coverage():
    seen = []
    server = Polled(max_engines=1)
    server.requests.scraped = lambda at, timelines, **_: [seen.append(timelines)][:0]
    server.poll(("m", "0"), ("m", "1"), ("m", "2"), drafts=10.0)
    server.poll(("m", "0"), ("m", "1"), ("m", "2"), drafts=20.0)
    growth = {key: line.growth(Counter.DRAFTS, 1001.0, 1002.0) for key, line in seen[-1].items()}
    assert growth == {EngineKey("m", "0"): 10, EngineKey("m", "other"): 20}
    server.poll(("m", "0"), drafts=30.0)
    assert list(seen[-1]) == [EngineKey("m", "0")]


def test_streams_without_usage_are_told_from_requests_that_never_came():
    server = Polled()
    server.poll(M)
    server.serve(924, stream=True, first_token=1000.0, completion_tokens=None, acceptance=None)
    assert server.poll(M)["m"].attribution_outcomes == dict.fromkeys(AttributionOutcome, 0) | {
        AttributionOutcome.WITHOUT_USAGE: 924
    }
    assert server.poll(M, seconds=400)["m"].attribution_outcomes[AttributionOutcome.WITHOUT_USAGE] == 0
