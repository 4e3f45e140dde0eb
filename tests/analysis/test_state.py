"""What is known of one server, poll by poll."""

from dataclasses import replace

import pytest

from sidecar.analysis.judgement import Verdict
from sidecar.analysis.series import shown_positions
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.merge import OTHER_ENGINES
from sidecar.engine.names import Counter
from sidecar.errors import AnotherServer, TimedOut
from sidecar.settings import Settings
from tests.analysis.analysis_tools import EAGLE, PluginEnd, Pod, Server, page, snap


def engine_of(report):
    return report.models[0].engines[0]


def test_before_the_first_poll_nothing_is_known():
    """The report is there from the start, and empty."""
    report = Server().report()
    assert (report.scrape.up, report.models) == (False, ())
    assert (report.scrape.last_scrape, report.scrape.duration, report.scrape.last_error) == (
        None,
        None,
        None,
    )


def test_a_failed_poll_takes_the_gauges_away_and_leaves_the_counters():
    """Absent beats stale; the next good poll brings them back."""
    server = Server()
    server.poll(snap(drafts=10))
    engine = engine_of(server.poll(snap(drafts=20)))
    assert engine.gauges
    assert engine.latencies
    assert (engine.acceptance.rate, engine.kv_cache_peak) == (pytest.approx(2 / 3), 0.5)
    down = server.fail()
    engine = engine_of(down)
    assert isinstance(down.scrape.last_error, TimedOut)
    assert (down.scrape.up, down.scrape.errors["timeout"]) == (False, 1)
    assert (engine.gauges, engine.latencies, engine.limitations) == ({}, {}, frozenset())
    assert (engine.kv_cache_peak, engine.kv_cache_capacity_tokens, engine.acceptance) == (
        None,
        None,
        None,
    )
    assert (engine.counters[Counter.DRAFTS], engine.accepted_per_position) == (20, (20,))
    again = server.poll(snap(drafts=25))
    assert (again.scrape.up, again.scrape.last_error, again.scrape.errors["timeout"]) == (
        True,
        None,
        1,
    )
    assert engine_of(again).gauges


def test_a_page_grows_stale_after_two_intervals():
    """By the interval that was in force at the poll, which may have been stretched."""
    server = Server()
    server.poll(snap())
    assert server.report(later=1.99).scrape.up
    assert not server.report(later=2.01).scrape.up
    assert engine_of(server.report(later=2.01)).gauges == {}
    # A stretched interval keeps it fresh for longer.
    server.state.scraped(1001.0, 0.5, 50.0, page(snap()))
    assert server.state.report(1100.0).scrape.up
    assert not server.state.report(1101.5).scrape.up
    # A short one does not: a busy machine polls late.
    server.state.scraped(1200.0, 0.01, 0.1, page(snap()))
    assert server.state.report(1202.0).scrape.up
    assert not server.state.report(1202.1).scrape.up


@pytest.mark.parametrize(
    ("pages", "restarts", "counters"),
    [
        (
            [(1.0, {"0": 100, "1": 20}), (2.0, {"0": 120, "1": 2}), (2.0, {"0": 130, "1": 2})],
            1,
            {"0": 130, "1": 2},
        ),
        ([(1.0, {"0": 10, "1": 20}), (2.0, {"0": 3})], 1, {"0": 3}),  # it has one engine less
        (
            [(1.0, {"0": 10, "1": 20}), (2.0, {"0": 1}), (2.0, {"0": 2, "1": 50})],
            1,
            {"0": 2, "1": 50},
        ),
        ([(None, {"0": 100}), (None, {"0": 120})], 0, {"0": 120}),
        ([(None, {"0": 100}), *3 * [(None, {"0": 5})]], 1, {"0": 5}),
        # One restarts alone.
        ([(None, {"0": 100, "1": 50}), *3 * [(None, {"0": 120, "1": 5})]], 0, {"0": 120, "1": 5}),
        ([(None, {"0": 100, "1": 50}), *3 * [(None, {"0": 1, "1": 2})]], 1, {"0": 1, "1": 2}),
    ],
)
def test_a_restart_is_known_by_the_process_or_else_by_counters_that_fell(pages, restarts, counters):
    """``pages`` are the start of the process, and each engine's drafts.

    The start is None on a page of several processes.
    """
    server = Server(server=None)
    for start, drafts in pages:
        report = server.poll(*(snap(name, count) for name, count in drafts.items()), start=start)
    assert (report.scrape.vllm_restarts, server.drafts()) == (restarts, counters)


@pytest.mark.parametrize("fallen", [5, 0])
def test_within_one_process_a_counter_never_falls_whatever_the_page_shows(fallen):
    """While nobody knows why it fell, it is absent."""
    server = Server()
    server.poll(snap(drafts=100))
    server.poll(snap(drafts=fallen))
    assert server.drafts() == {}, "until the next pages tell why"
    server.poll(snap(drafts=110))
    assert server.drafts() == {"0": 110}
    assert engine_of(server.report()).acceptance.drafts == 10


def test_positions_that_a_page_leaves_out_stay_and_their_acceptance_is_unknown():
    """Their counters keep the last value, and the window has none."""
    server = Server()
    server.poll(snap(drafts=10))
    without = engine_of(server.poll(replace(snap(drafts=20), accepted_per_position=())))
    assert without.accepted_per_position == (10,)
    assert (without.acceptance.drafts, without.acceptance.accepted_per_position) == (10, ())
    again = engine_of(server.poll(snap(drafts=30)))
    assert (again.accepted_per_position, again.acceptance.accepted_per_position) == ((30,), (20,))


def test_positions_that_vllm_no_longer_drafts_at_since_it_restarted_are_not_shown_as_rejected():
    """A restart with fewer draft tokens has no later positions, rather than 0 % there."""
    server = Server()
    for start, positions in ((1.0, (9.0,) * 8), (2.0, (0.0, 0.0)), (2.0, (7.0, 5.0))):
        server.poll(
            replace(snap(drafts=10 * positions[0]), accepted_per_position=positions), start=start
        )
    assert engine_of(server.report()).acceptance.accepted_per_position == (7, 5)


def test_an_engine_that_left_the_page_keeps_its_counters_for_a_while_and_loses_its_gauges():
    """After `history` it is forgotten, so that series stay bounded."""
    server = Server(history=60.0, latency_window=30.0)
    server.poll(snap("0", 100), snap("1", 7))
    for _ in range(59):
        server.poll(snap("0", 100))
    assert server.drafts() == {"0": 100, "1": 7}
    assert server.engines()[EngineKey("m", "1")].gauges == {}
    for _ in range(2):
        server.poll(snap("0", 100))
    assert server.drafts() == {"0": 100}
    server.poll(snap("0", 5), seconds=100_000, start=2.0)
    assert server.drafts() == {"0": 5}


def test_the_counters_stay_while_a_server_that_is_known_to_be_another_one_answers():
    """They went at each of its pages, and came back with the next one of their own server."""
    server = Server(server=None)
    server.poll(snap("0", 5000), start=None)
    server.poll(snap("0", 900), start=None)
    assert server.drafts() == {}, "nobody knows yet whether it has restarted"

    server.poll(snap("0", 5001), start=None)
    server.poll(snap("0", 901), start=None)
    assert isinstance(server.report().scrape.last_error, AnotherServer)
    assert server.drafts() == {"0": 5000}


def test_a_clock_that_is_set_forward_makes_no_engine_leave():
    """It did, and when the engine was shown again its distributions started at 0."""
    server = Server()
    for drafts in (10, 20):
        server.poll(snap("0", drafts), snap("1", drafts))
    before = server.engines()[EngineKey("m", "1")].window_acceptances.count
    server.poll(snap("0", 30))
    server.poll(snap("0", 40), seconds=7200)
    server.poll(snap("0", 50), snap("1", 50))

    assert before == 1
    assert server.engines()[EngineKey("m", "1")].window_acceptances.count >= before


def test_engines_past_the_bound_are_summed_as_other():
    """A counter says how many label values were refused."""
    server = Server(limits={"engines": 2})
    report = server.poll(*(snap(str(n), 10 * n) for n in range(5)))
    assert list(server.engines()) == [EngineKey("m", "0"), EngineKey("m", "1"), OTHER_ENGINES]
    assert server.drafts() == {"0": 0, "1": 10, "other": 90}
    assert report.own.label_overflow["engine"] == 3
    server.poll(*(snap(str(n), 10 * n + 1) for n in range(5)))
    assert server.drafts() == {"0": 1, "1": 11, "other": 93}


@pytest.mark.parametrize(("engines", "is_past"), [(1, False), (8, True)])
def test_positions_beyond_the_series_that_the_engines_leave_are_counted_once(engines, is_past):
    """At every poll they are the same ones, not new ones."""
    server = Server()
    deep = (1.0,) * 24
    past = len(deep) - shown_positions(Settings(), engines) if is_past else 0
    for _ in range(3):
        snapshots = [
            replace(snap(str(number), 10), accepted_per_position=deep) for number in range(engines)
        ]
        assert server.poll(*snapshots).own.label_overflow["position"] == past


def test_a_model_past_the_bound_is_among_the_others_until_the_first_has_left():
    """As when vLLM restarts with another model."""
    server = Server(limits={"models": 1})
    server.poll(snap(drafts=1), snap(drafts=2, model="n"))
    assert server.drafts() == {"0": 1, "other": 2}
    server.poll(snap(drafts=3, model="n"), start=2.0)
    assert {key.model_name for key in server.engines()} == {"n"}


def test_the_distributions_of_the_others_go_on_when_another_engine_becomes_one_of_them():
    """They do not start at 0, and none of its past is taken for growth."""
    server = Server(limits={"engines": 1})
    for polls, engines in enumerate(
        ([snap("1", 10)], [snap("1", 20)], [snap("1", 30), snap("2", 5000)]), 1
    ):
        server.poll(snap("0"), *engines)
        other = server.engines()[OTHER_ENGINES]
        assert (other.kv_cache_usages.count, other.window_acceptances.count) == (
            polls,
            min(polls - 1, 1),
        )
    assert server.drafts()["other"] == 5030
    # What the new one had counted is not growth.
    assert server.engines()[OTHER_ENGINES].acceptance is None


def test_finished_requests_of_a_model_past_the_bound_are_counted_as_dropped():
    """They have no model to be shown with."""
    server = Server(limits={"models": 1})
    server.poll(snap(drafts=1), snap(drafts=2, model="n"))
    plugin = PluginEnd(server, model="n").serve(drafts=2)
    plugin.finish()
    assert server.poll(snap(drafts=1), plugin.counted(model="n")).plugin.dropped["overflow"] == 1


@pytest.mark.parametrize(
    ("start", "pages", "sums"),
    [
        (1.0, [{"1": 10, "2": 20}, {"1": 11}, {"1": 15}, {}], [30, 31, 35, 35]),
        (None, [{"1": 10, "2": 20}, {"1": 11}, {"1": 15}, {}], [30, 31, 35, 35]),
        # One restarts; until that is certain, the sum is absent.
        (None, [{"1": 1000, "2": 2000}, *3 * [{"1": 1000, "2": 5}]], [3000, None, None, 3000]),
        (1.0, [{"1": 1000, "2": 2000}, {"1": 1000}, {"1": 1000, "2": 2000}, {"1": 1001, "2": 2002}],
         [3000, 3000, 3000, 3003]),  # one leaves and returns
    ],
)  # fmt: skip
def test_the_sum_of_the_others_never_falls_and_counts_each_once(start, pages, sums):
    """Engines that leave stay in it, and those that return are not added again."""
    server = Server(limits={"engines": 1})
    for page_, total in zip(pages, sums, strict=True):
        server.poll(snap("0"), *(snap(name, drafts) for name, drafts in page_.items()), start=start)
        assert server.drafts().get("other") == total
    acceptance, grown = server.engines()[OTHER_ENGINES].acceptance, sums[-1] - sums[0]
    assert acceptance.drafts == grown if grown and pages[-1] else acceptance is None


def test_known_engines_keep_their_keys_when_new_ones_sort_before_them():
    """Who was first keeps its series, and the newcomer is one of the others."""
    server = Server(limits={"engines": 2})
    server.poll(snap("5", 1), snap("6", 2))
    server.poll(snap("0", 7), snap("5", 1), snap("6", 2))
    assert server.drafts() == {"5": 1, "6": 2, "other": 7}


def test_each_poll_observes_kv_cache_usage_and_acceptance_if_it_has_drafts():
    """A poll without drafts has no acceptance rate to observe."""
    server = Server()
    for drafts, accepted in ((10, 20), (10, 20), (20, 35), (30, 50), (30, 50)):
        report = server.poll(snap(drafts=drafts, accepted=accepted), malformed=2)
    engine = engine_of(report)
    assert (engine.window_acceptances.count, engine.window_acceptances.sum) == (
        2,
        pytest.approx(15 / 30 + 15 / 30),
    )
    assert (engine.kv_cache_usages.count, report.scrape.malformed_lines) == (5, 10)


def test_a_clock_set_back_stops_nothing():
    """The poll is fresh, counters go on, and windows begin anew."""
    server = Server()
    for drafts in (10, 20, 30):
        server.poll(snap(drafts=drafts))
    server.at -= 10_000
    for drafts in (40, 50, 60):
        report = server.poll(snap(drafts=drafts, usage=0.1))
    engine = engine_of(report)
    assert (report.scrape.up, bool(engine.latencies)) == (True, True)
    assert (engine.counters[Counter.DRAFTS], engine.acceptance.drafts, engine.kv_cache_peak) == (
        60,
        20,
        0.1,
    )


def test_a_model_is_judged_over_all_its_engines_on_the_page():
    """By their sum; one that has left the page no longer counts."""
    server = Server(thresholds={"min_requests": 1})
    server.poll(snap("0", 0, accepted=0), snap("1", 0, accepted=0))
    server.poll(snap("0", 900, accepted=270), snap("1", 100, accepted=270))
    judgement = server.model().judgement
    assert (judgement.acceptance, judgement.verdict) == (
        pytest.approx(540 / 3000),
        Verdict.NET_NEGATIVE,
    )
    server.poll(snap("1", 300, accepted=810))
    assert server.model().judgement.acceptance == pytest.approx(810 / 900)


def test_a_running_request_counts_once_whether_or_not_it_began_in_the_window():
    """The one that runs all the time is not added to those that began."""
    server = Server()
    server.poll(snap(drafts=0))
    requests = [
        server.poll(snap(drafts=drafts)).models[0].judgement.evidence.window.requests
        for drafts in (0, 1, 2)
    ]
    assert requests == [1, 1, 2]  # one is running all the time


def test_an_hour_judges_a_small_pod():
    """Two drafts a second: too few in five minutes, enough in half an hour."""
    server = Server(thresholds={"min_requests": 20, "min_drafts_per_second": 4})
    for second in range(0, 1800, 30):
        server.poll(snap(drafts=2 * second), seconds=30)
    judgement = server.model().judgement
    assert judgement.evidence.window.seconds == pytest.approx(300, abs=31)
    assert judgement.judged.seconds > 1200
    assert judgement.judged.requests == judgement.judged.drafts, (
        "the one that runs is among those that began"
    )
    assert judgement.verdict is Verdict.NET_POSITIVE
    begun = server.engines()[EngineKey("m", "0")].counters[Counter.FIRST_TOKENS]
    for drafts in (4000, 5000):
        server.poll(
            snap(counters=snap(drafts=drafts).counters | {Counter.FIRST_TOKENS: begun}), seconds=400
        )
    assert server.model().judgement.evidence.window.requests == 1


def test_a_vllm_that_speculates_in_another_way_since_a_restart_is_judged_by_what_it_did_since():
    """A restart with the same configuration keeps the window."""
    pod = Pod()
    pod.serve((0, 10, 6), polls=30)
    pod.plugin.finish(accepted_tokens=3)
    pod.serve((0, 10, 6))
    fewer = replace(EAGLE, num_speculative_tokens=1)
    for start, speculation, expected in ((2.0, EAGLE, (340, 1, 340)), (3.0, fewer, (20, 0, 10))):
        pod.plugin.close()
        pod.plugin = PluginEnd(pod, int(start), speculation=speculation)
        for _ in range(2):
            pod.plugin.serve(accepted=15).tick()
            pod.poll(pod.plugin.counted(), start=start)
        cold, window = pod.temperature("0"), pod.model().judgement.evidence.window
        assert (cold.window.drafts, sum(cold.acceptance_bins), window.drafts) == expected
        assert cold.acceptances.count == 1, "a counter goes on"


def test_a_verdict_ends_with_the_speculation_that_it_was_of():
    """Even where the plug-in tells many requests at the first poll after the restart."""
    pod = Pod()
    pod.poll(pod.plugin.counted())
    for _ in range(40):
        for accepted in (3, 5, 6, 8) * 5:
            pod.plugin.finish(accepted_tokens=accepted)
        pod.poll(pod.plugin.counted(), seconds=20)
    assert pod.temperature("0").judgement.verdict is Verdict.NET_NEGATIVE

    pod.plugin.close()
    pod.plugin = PluginEnd(pod, 2, speculation=replace(EAGLE, num_speculative_tokens=1))
    for _ in range(3):
        for accepted in (12, 15, 16, 18) * 10:
            pod.plugin.finish(accepted_tokens=accepted)
        pod.poll(pod.plugin.counted(), start=2.0, seconds=20)
        assert pod.temperature("0").judgement.verdict is not Verdict.NET_NEGATIVE


def test_verdicts_hold_from_one_poll_to_the_next_and_outlast_a_minute_of_failed_ones():
    """After that nothing is known any more, so no alert goes by them."""
    server = Server(thresholds={"min_requests": 1})
    for drafts in (0, 90000, 180000):
        server.at += 120
        server.state.scraped(server.at, 0.005, 120.0, page(snap(drafts=drafts)))
    assert server.report(later=119).models[0].judgement.verdict is Verdict.NET_POSITIVE
    assert not server.report(later=241).models[0].judgement.is_known
    assert server.fail(seconds=30).models[0].judgement.verdict is Verdict.NET_POSITIVE
    assert not server.fail(seconds=40).models[0].judgement.is_known


def test_what_a_poll_made_does_not_change_with_the_next_ones():
    """Verdicts follow from it, and a page may still be written from it: it holds nothing live."""
    pod = Pod()
    pod.serve((0, 10, 6), (70, 10, 2), polls=30)
    made = pod.state._values, pod.report()
    text = repr(made)
    assert "object at 0x" not in text

    pod.plugin.finish(accepted_tokens=3)
    pod.serve((0, 20, 4), (70, 10, 2), polls=30)
    assert repr(made) == text
    assert repr((pod.state._values, pod.report())) != text


def test_a_poll_is_shown_alike_whenever_its_report_is_made():
    """What plug-ins send meanwhile is part of the next one: what is only shown is read late."""
    pod = Pod()
    pod.serve((0, 10, 6), (70, 10, 2), polls=30)
    pod.plugin.finish(accepted_tokens=12, ending="normal")
    pod.poll(pod.plugin.counted())
    made = repr(pod.report().models)

    pod.plugin.finish(accepted_tokens=3, ending="loop")
    pod.plugin.serve(20).tick()
    pod.state._reports.clear()
    assert repr(pod.report().models) == made
    pod.poll(pod.plugin.counted())
    assert repr(pod.report().models) != made


def test_a_poll_that_is_cut_off_half_way_takes_nothing_from_the_report(monkeypatch):
    """A fault of ours leaves the report as of the last good poll, with what it was read from."""
    server = Server()
    server.poll(snap(model="m", drafts=10), start=1.0)
    before = server.report().models

    def breaks(*_args, **_more):
        raise ZeroDivisionError

    monkeypatch.setattr(server.state.plugin, "polled", breaks)
    with pytest.raises(ZeroDivisionError):
        server.poll(snap(model="other", drafts=1), start=2.0)  # another vLLM, another model
    server.state._reports.clear()
    assert [model.model_name for model in server.report().models] == [
        model.model_name for model in before
    ]
