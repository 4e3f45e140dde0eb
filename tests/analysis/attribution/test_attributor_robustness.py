"""Whatever sources, clients and vLLM do, attribution never raises, loses nothing and stays bounded."""

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.requests.record import Outcome, RequestStart


def test_a_request_that_never_ends_does_not_hold_the_others_up(lab):
    traffic = lab.simulate(lab.steady(240))
    traffic.records[0] = replace(traffic.records[0], id="lost", end=lab.START + 1e6)
    _, settled = lab.play(traffic, flush=False)
    assert len(settled) > 200


def test_a_reply_that_tells_of_more_tokens_than_were_generated_is_not_believed(lab):
    traffic = lab.simulate(lab.steady(100))
    traffic.records[50] = replace(traffic.records[50], completion_tokens=10**12, stream_events=0, stream=False)
    attributor, settled = lab.play(traffic)
    liar = next(request for request in settled if request.id == traffic.records[50].id)
    assert liar.attribution == "none"
    assert attributor.coverage == pytest.approx(1, abs=0.05)
    lab.assert_close([request for request in settled if request is not liar], traffic)


def test_times_that_make_no_sense_get_no_number_and_do_no_harm(lab):
    traffic = lab.simulate(lab.steady(100))
    odd = [
        replace(traffic.records[0], id="nan", start=float("nan")),
        replace(traffic.records[1], id="backwards", start=traffic.records[1].end + 5),
    ]
    attributor, settled = lab.play(replace(traffic, records=traffic.records + odd), starts=False)
    assert {r.id: r.attribution for r in settled if r.id in {"nan", "backwards"}} == dict.fromkeys(
        ("nan", "backwards"), "none"
    )
    assert attributor.residual < 0.05


def test_the_state_is_bounded_and_what_is_dropped_is_counted_and_given_out(lab):
    traffic = lab.simulate(lab.steady(100, every=0.02))
    attributor, settled = lab.play(traffic, AttributionOptions(most_requests=20))
    assert attributor.dropped["in_flight"] > 0
    assert lab.each_once(settled, traffic)


@pytest.mark.parametrize("limit", [{"hold": 30.0}, {"most_requests": 30}])
def test_requests_that_wait_in_vain_are_given_out_and_are_no_lost_events(lab, limit):
    traffic = lab.simulate(lab.steady(200, every=2.5))
    bare = [(at, [replace(engine, counters={}) for engine in engines]) for at, engines in traffic.polls]
    attributor, settled = lab.play(replace(traffic, polls=bare), AttributionOptions(**limit), flush=False)
    assert len(settled) > 150
    assert {request.attribution for request in settled} == {"none"}
    assert not attributor.dropped


def test_a_source_that_dies_leaves_no_request_in_flight_forever(lab):
    traffic = lab.simulate(lab.steady(60))
    options = AttributionOptions(history=10.0)
    attributor, _ = lab.play(traffic, options)
    attributor.started(RequestStart("orphan", lab.START))
    attributor.poll(lab.START + 60, [])
    assert attributor.dropped["in_flight"] == 1


ODD_NUMBERS = st.sampled_from([0, 1, -1, 10**15, None])
ODD_TIMES = st.one_of(st.floats(999_990, 1_000_080), st.sampled_from([0.0, -1.0, 1e300, math.inf, -math.inf, math.nan]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_sources_tell_no_request_is_lost_and_no_number_is_out_of_range(lab, data):
    traffic = lab.simulate(lab.steady(40))
    records = list(traffic.records)
    for number in data.draw(st.lists(st.integers(0, 39), max_size=8, unique=True)):
        changes = {
            "start": ODD_TIMES,
            "end": ODD_TIMES,
            "first_token": st.one_of(st.none(), ODD_TIMES),
            "completion_tokens": ODD_NUMBERS,
            "stream_events": st.sampled_from([0, 1, 10**15]),
            "choices": st.sampled_from([1, 2, 2**20]),
            "temperature": st.sampled_from([None, -1.0, math.nan, 0.4]),
            "outcome": st.sampled_from(list(Outcome)),
        }
        name = data.draw(st.sampled_from(sorted(changes)))
        records[number] = replace(records[number], **{name: data.draw(changes[name])})
    placed = [replace(record, end=record.end if record.end == record.end else 1e6) for record in records]
    attributor, settled = lab.play(replace(traffic, records=placed), starts=data.draw(st.booleans()))
    assert lab.each_once(settled, traffic)
    for request in settled:
        assert 0 <= request.accepted_tokens <= request.draft_tokens * (1 + 1e-9)
        assert request.acceptance is None or 0 <= request.acceptance <= 1
    assert attributor.coverage is None or 0 <= attributor.coverage <= 1
    assert attributor.residual is None or attributor.residual < 2


def test_a_request_from_a_clock_far_ahead_is_not_kept(lab):
    traffic = lab.simulate(lab.steady(60))
    traffic.records[5] = replace(traffic.records[5], end=lab.START + 1e7)
    attributor, _ = lab.play(replace(traffic, records=[]), flush=False)
    attributor.finished(traffic.records[5])
    assert [request.attribution for request in attributor.poll(lab.START + 60, [])] == ["none"]
