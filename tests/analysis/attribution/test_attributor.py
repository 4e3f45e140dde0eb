"""Attribution on a simulated engine whose truth is known."""

from collections import Counter as Tally
from dataclasses import replace

import pytest

from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.requests.observe.endpoint import RESPONSES
from sidecar.requests.record import Outcome


def test_exact_numbers_are_passed_on_as_they_are_and_add_up(lab):
    traffic = lab.simulate(lab.steady(80, exact=True))
    attributor, settled = lab.play(traffic)
    assert {request.attribution for request in settled} == {"exact"}
    assert {request.id: (request.drafts, request.accepted_tokens) for request in settled} == traffic.truth
    assert all(sum(request.histogram) == request.drafts for request in settled)
    assert attributor.coverage == pytest.approx(1, abs=0.01)
    assert attributor.residual == pytest.approx(0, abs=0.01)


def test_streamed_requests_of_a_draft_model_are_attributed_to_the_step(lab):
    traffic = lab.simulate(lab.steady(80, stream=True))
    attributor, settled = lab.play(traffic)
    assert lab.each_once(settled, traffic)
    assert all(request.drafts == traffic.truth[request.id][0] for request in settled)
    lab.assert_close(settled, traffic, 0.01)
    assert attributor.coverage == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("poll", [0.5, 1.0, 2.0])
def test_replies_that_are_not_streamed_are_attributed_by_the_step_count(lab, poll):
    traffic = lab.simulate(lab.steady(120, stream=False), poll=poll)
    attributor, settled = lab.play(traffic)
    assert {request.attribution for request in settled} == {"inferred"}
    lab.assert_close(settled, traffic)
    total = sum(request.drafts for request in settled)
    assert total == pytest.approx(sum(drafts for drafts, _ in traffic.truth.values()), rel=0.02)
    assert attributor.residual < 0.03


def test_an_engine_that_idles_between_requests_is_not_taken_to_have_stepped_then(lab):
    # One request at a time, each in a third of a poll interval, none of them streamed.
    specs = [lab.Spec(number * 2.0 + 0.3, 120, number % 3 * 0.4, False) for number in range(60)]
    traffic = lab.simulate(specs, poll=1.0)
    _, settled = lab.play(traffic)
    lab.assert_close(settled, traffic)


@pytest.mark.parametrize("draft_share", [0.15, 0.5])
def test_steps_without_drafts_are_told_apart_by_temperature(lab, draft_share):
    def drafts(temperature):
        return min(draft_share * (1.8 - temperature), 0.9)

    traffic = lab.simulate(lab.steady(300), drafts=drafts)
    attributor, settled = lab.play(traffic)
    assert not attributor._engine.model.every_step_drafts
    assert {request.attribution for request in settled} == {"inferred"}
    lab.assert_close(settled, traffic, 0.05)


def test_temperatures_that_hardly_vary_apart_are_as_good_as_claimed(lab):
    # Each of them has about the same part of the engine's steps at any time.
    specs = [
        lab.Spec(wave * 4.0, 80, temperature, stream=True)
        for wave in range(40)
        for temperature in (0.0, 0.4)
        for _ in "ab"
    ]
    traffic = lab.simulate(specs, drafts=lambda t: 0.7 - t, accepts=lambda t: 0.5)
    _, settled = lab.play(traffic)
    for label in ("0", "0.3-0.5"):
        found, true = lab.sums(settled, traffic.truth, label)
        assert found == pytest.approx(true, abs=0.06)


def test_a_handful_of_requests_gets_no_number(lab):
    traffic = lab.simulate(lab.steady(3))
    attributor, settled = lab.play(traffic)
    assert {request.attribution for request in settled} == {"none"}
    assert attributor.coverage is attributor.residual is None


def test_exact_and_inferred_requests_share_the_same_counters(lab):
    traffic = lab.simulate(lab.steady(300, exact=lambda number: number % 3 == 0), drafts=lambda t: 0.6 - 0.5 * t)
    attributor, settled = lab.play(traffic)
    assert Tally(request.attribution for request in settled) == {"exact": 100, "inferred": 200}
    lab.assert_close([request for request in settled if request.attribution == "inferred"], traffic, 0.05)
    assert attributor.coverage == pytest.approx(1, abs=0.03)


def test_requests_past_the_sources_lower_the_coverage_and_change_no_number(lab):
    traffic = lab.simulate(lab.steady(200, seen=lambda number: number % 3 != 0))
    attributor, settled = lab.play(traffic)
    lab.assert_close(settled, traffic)
    assert attributor.coverage == pytest.approx(2 / 3, abs=0.07)
    assert attributor.residual is None  # the rest may accept more or less


@pytest.mark.parametrize("method", ["shared", "limit"])
def test_what_needs_all_requests_in_flight_gets_no_number_without_them(lab, method):
    """The clock that they share, and the wait for each other."""

    def seen(number):
        return number % 5 != 0

    if method == "shared":
        traffic = lab.simulate(lab.steady(300, stream=False, seen=seen))
        options = AttributionOptions(several_api_servers=True)
    else:
        specs = lab.steady(300, every=0.1, stream=False, seen=seen)
        traffic = lab.simulate([replace(spec, start=max(spec.start - 2, 0)) for spec in specs], limit=12, poll=0.5)
        options = AttributionOptions()
    attributor, settled = lab.play(traffic, options)
    assert {request.attribution for request in settled} == {"none"}
    assert attributor.coverage == 0


def test_requests_whose_tokens_no_one_tells_are_not_covered(lab):
    traffic = lab.simulate(lab.steady(60))
    untold = [replace(record, completion_tokens=None) for record in traffic.records]
    attributor, settled = lab.play(replace(traffic, records=untold))
    assert {request.attribution for request in settled} == {"none"}
    assert attributor.coverage == 0
    assert attributor.residual is None


def test_requests_past_the_sources_do_not_spoil_the_fit(lab):
    traffic = lab.simulate(lab.steady(400, seen=lambda number: number % 4 != 0), drafts=lambda t: 0.6 - 0.5 * t)
    attributor, settled = lab.play(traffic)
    lab.assert_close(settled, traffic, 0.05)
    assert attributor.coverage == pytest.approx(3 / 4, abs=0.08)


def test_a_queue_is_seen_through_where_no_first_token_is(lab):
    specs = [replace(spec, start=max(spec.start - 2, 0)) for spec in lab.steady(300, every=0.1, stream=False)]
    traffic = lab.simulate(specs, limit=12, poll=0.5)
    attributor, settled = lab.play(traffic)
    assert attributor._engine.model.queued
    lab.assert_close(settled, traffic)


def test_merged_events_are_noticed_and_not_taken_for_steps(lab):
    traffic = lab.simulate(lab.steady(120))
    merged = [replace(record, stream_events=(record.stream_events + 1) // 2) for record in traffic.records]
    _, settled = lab.play(replace(traffic, records=merged))
    lab.assert_close(settled, traffic)


def test_a_late_first_text_of_responses_is_not_taken_for_the_first_token(lab):
    traffic = lab.simulate(lab.steady(240))
    late = [replace(r, path=RESPONSES, stream_events=0, first_token=(r.start + r.end) / 2) for r in traffic.records]
    _, settled = lab.play(replace(traffic, records=late))
    lab.assert_close(settled, traffic)


def overcounted(traffic):
    for _, (engine,) in traffic.polls:
        steps = next(counter for counter in engine.counters if counter == "steps")
        engine.counters[steps] *= 1.8
    return traffic


def test_step_counts_of_several_api_servers_are_not_taken_for_one(lab):
    traffic = overcounted(lab.simulate(lab.steady(150, stream=False)))
    attributor, settled = lab.play(traffic, AttributionOptions(several_api_servers=True))
    assert attributor._engine.model.clock_is_shared
    lab.assert_close(settled, traffic)


def test_a_step_count_that_contradicts_the_other_counters_gives_no_number(lab):
    traffic = overcounted(lab.simulate(lab.steady(150, stream=lambda number: number % 2 == 0)))
    attributor, settled = lab.play(traffic)
    assert {request.attribution for request in settled} == {"none"}
    assert attributor.residual > 0.1


def test_several_engines_of_one_model_are_one_sum(lab):
    traffic = lab.simulate(lab.steady(240, every=0.25), engines=3)
    attributor, settled = lab.play(traffic)
    lab.assert_close(settled, traffic)
    assert attributor.coverage == pytest.approx(1, abs=0.03)


def test_more_choices_are_attributed_where_their_events_tell(lab):
    specs = lab.steady(100, choices=lambda number: 1 + (number % 5 == 0), tokens=lambda number: 60 + number)
    traffic = lab.simulate(specs)
    _, settled = lab.play(traffic)
    many = {record.id for record in traffic.records if record.choices == 2}
    streamed = {record.id for record in traffic.records if record.stream}
    for request in settled:
        if request.id in many - streamed:
            assert request.attribution == "none"
        elif request.id in many:
            assert request.drafts == traffic.truth[request.id][0]
    lab.assert_close(settled, traffic)


def test_aborted_requests_count_where_their_tokens_are_known(lab):
    specs = lab.steady(
        120,
        abort=lambda number: 0.6 if number % 4 == 0 else None,
        tells_usage=lambda number: number % 8 != 0,
    )
    traffic = lab.simulate(specs)
    attributor, settled = lab.play(traffic)
    aborted = [request for request in settled if request.outcome is Outcome.ABORTED]
    known = {record.id for record in traffic.records if record.completion_tokens is not None}
    assert {request.id for request in aborted if request.attribution == "inferred"} == known & {r.id for r in aborted}
    assert {request.attribution for request in aborted} == {"inferred", "none"}
    lab.assert_close(settled, traffic)
    assert attributor.coverage < 1


def test_failed_requests_have_no_share(lab):
    traffic = lab.simulate(lab.steady(60))
    failed = [replace(r, id=f"e{r.id}", outcome=Outcome.ERROR, completion_tokens=None) for r in traffic.records]
    _, settled = lab.play(replace(traffic, records=traffic.records + failed))
    assert Tally(request.attribution for request in settled) == {"inferred": 60, "none": 60}
    lab.assert_close(settled, traffic)


def test_a_restart_of_vllm_costs_the_requests_in_it_and_no_others(lab):
    traffic = lab.simulate(lab.steady(160, stream=False), restart_at=40.3)
    _, settled = lab.play(traffic)
    nothing = {request.id for request in settled if request.attribution == "none"}
    touched = {r.id for r in traffic.records if r.start < lab.START + 41.5 and r.end > lab.START + 39.5}
    assert nothing <= touched
    assert {r.id for r in traffic.records if r.outcome is Outcome.ABORTED} <= nothing
    lab.assert_close(settled, traffic)


def test_missed_polls_cost_little(lab):
    traffic = lab.simulate(lab.steady(160))
    attributor, settled = lab.play(traffic, skip=lambda number: number % 7 in (2, 3) or 30 < number < 36)
    lab.assert_close(settled, traffic)
    assert attributor.coverage == pytest.approx(1, abs=0.05)


def test_late_records_out_of_order_and_without_starts_are_attributed(lab):
    traffic = lab.simulate(lab.steady(240, stream=False), poll=1.0)
    first_tokens = [replace(r, first_token=r.start + 0.05) for r in traffic.records]
    options = AttributionOptions(lateness=60.0)
    _, settled = lab.play(
        replace(traffic, records=first_tokens), options, starts=False, delay=lambda record: hash(record.id) % 50
    )
    assert lab.each_once(settled, traffic)
    lab.assert_close(settled, traffic)


def test_records_that_come_later_than_allowed_are_attributed_all_the_same(lab):
    traffic = lab.simulate(lab.steady(120))
    _, settled = lab.play(traffic, delay=lambda record: 30.0 if record.id.endswith("7") else 0.0)
    assert lab.each_once(settled, traffic)
    assert Tally(request.attribution for request in settled)["inferred"] >= 115
    lab.assert_close(settled, traffic)


def test_requests_in_flight_at_the_start_are_not_guessed_at(lab):
    traffic = lab.simulate(lab.steady(120, stream=False))
    late = replace(traffic, polls=[poll for poll in traffic.polls if poll[0] > lab.START + 10])
    early = {record.id for record in traffic.records if record.start < lab.START + 10}
    _, settled = lab.play(late)
    assert {request.id for request in settled if request.attribution == "none"} == early
