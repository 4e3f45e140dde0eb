"""What is known of one server, poll by poll."""

from dataclasses import replace

import pytest

from sidecar.analysis.verdict import Verdict
from sidecar.engine.merge import OTHER
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.errors import TimedOut, Unreachable
from tests.analysis.analysis_tools import PluginEnd, Server, page, snap


def engine_of(report):
    return report.models[0].engines[0]


def test_before_the_first_poll():
    report = Server().report()
    assert not report.scrape.up
    assert report.models == ()
    assert (report.scrape.last_scrape, report.scrape.duration, report.scrape.last_error) == (None, None, None)


def test_a_failed_poll_takes_the_gauges_away_and_leaves_the_counters():
    server = Server()
    server.poll(snap(drafts=10))
    up = server.poll(snap(drafts=20))
    assert up.scrape.up
    assert engine_of(up).gauges
    assert engine_of(up).latencies
    assert engine_of(up).acceptance.rate == pytest.approx(2 / 3)
    assert engine_of(up).kv_cache_peak == 0.5
    down = server.fail()
    engine = engine_of(down)
    assert not down.scrape.up
    assert isinstance(down.scrape.last_error, TimedOut)
    assert down.scrape.errors["timeout"] == 1
    assert (engine.gauges, engine.latencies) == ({}, {})
    assert (engine.kv_cache_peak, engine.kv_cache_capacity_tokens, engine.acceptance) == (None, None, None)
    assert engine.counters[Counter.DRAFTS] == 20
    assert engine.accepted_per_position == (20,)
    assert engine.limitations == frozenset()
    again = server.poll(snap(drafts=25))
    assert again.scrape.up
    assert again.scrape.last_error is None
    assert engine_of(again).gauges
    assert again.scrape.errors["timeout"] == 1


def test_a_page_grows_stale_after_two_intervals():
    server = Server()
    server.poll(snap())
    assert server.report(later=1.99).scrape.up
    assert not server.report(later=2.01).scrape.up
    assert engine_of(server.report(later=2.01)).gauges == {}
    # A stretched interval keeps it fresh for longer.
    server.state.scraped(1001.0, 0.5, 50.0, page(snap()))
    assert server.state.report(1100.0).scrape.up
    assert not server.state.report(1101.5).scrape.up


def test_a_known_restart_counts_once_for_all_engines_and_their_counters_are_vllms():
    server = Server()
    server.poll(snap("0", 100), snap("1", 20), start=1.0)
    server.fail(Unreachable("x"))
    report = server.poll(snap("0", 120), snap("1", 2), start=2.0)
    assert report.scrape.vllm_restarts == 1
    assert server.drafts() == {"0": 120, "1": 2}
    assert server.poll(snap("0", 130), snap("1", 2), start=2.0).scrape.vllm_restarts == 1
    assert server.drafts() == {"0": 130, "1": 2}


def test_an_engine_that_is_on_no_page_at_first_after_a_restart_loses_nothing():
    server = Server()
    server.poll(snap("0", 10), snap("1", 20), start=1.0)
    assert server.poll(snap("0", 1), start=2.0).scrape.vllm_restarts == 1
    assert server.poll(snap("0", 2), snap("1", 50), start=2.0).scrape.vllm_restarts == 1
    assert server.drafts() == {"0": 2, "1": 50}


def test_restart_of_several_processes_is_told_by_what_fell():
    server = Server()
    server.poll(snap(drafts=100), start=None)
    assert server.poll(snap(drafts=120), start=None).scrape.vllm_restarts == 0
    assert server.poll(snap(drafts=5), start=None).scrape.vllm_restarts == 1
    assert server.drafts() == {"0": 5}


@pytest.mark.parametrize("fallen", [5, 0])
def test_within_one_process_a_counter_never_falls_whatever_the_page_shows(fallen):
    server = Server()
    server.poll(snap(drafts=100))
    server.poll(snap(drafts=fallen))
    assert server.drafts() == {"0": 100}
    assert engine_of(server.report()).accepted_per_position == (100,)
    server.poll(snap(drafts=110))
    assert server.drafts() == {"0": 110}
    assert engine_of(server.report()).acceptance.drafts == 10


def test_of_several_processes_one_that_restarts_alone_is_no_restart_of_vllm():
    server = Server()
    server.poll(snap("0", 100), snap("1", 50), start=None)
    assert server.poll(snap("0", 120), snap("1", 5), start=None).scrape.vllm_restarts == 0
    assert server.drafts() == {"0": 120, "1": 5}
    assert server.poll(snap("0", 1), snap("1", 2), start=None).scrape.vllm_restarts == 1


def test_engine_that_left_the_page_keeps_its_counters_and_loses_its_gauges():
    server = Server()
    server.poll(snap("0", 10), snap("1", 20))
    report = server.poll(snap("0", 11))
    left = {engine.key.engine: engine for engine in report.models[0].engines}["1"]
    assert left.counters[Counter.DRAFTS] == 20
    assert left.gauges == {}


def test_positions_that_a_page_leaves_out_stay_and_their_acceptance_is_unknown():
    server = Server()
    server.poll(snap(drafts=10))
    without = engine_of(server.poll(replace(snap(drafts=20), accepted_per_position=())))
    assert without.accepted_per_position == (10,)
    assert (without.acceptance.drafts, without.acceptance.accepted_per_position) == (10, ())
    again = engine_of(server.poll(snap(drafts=30)))
    assert (again.accepted_per_position, again.acceptance.accepted_per_position) == ((30,), (20,))


def test_engine_that_left_for_long_is_forgotten():
    server = Server(history=60.0, latency_window=30.0)
    server.poll(snap("0"), snap("1"))
    server.poll(snap("0"), seconds=59)
    assert set(server.drafts()) == {"0", "1"}
    server.poll(snap("0"), seconds=2)
    assert set(server.drafts()) == {"0"}


def test_vllm_that_was_down_for_long_counts_from_0():
    server = Server(history=60.0, latency_window=30.0)
    server.poll(snap(drafts=100))
    server.poll(snap(drafts=5), seconds=100_000, start=2.0)
    assert server.drafts() == {"0": 5}


def test_engines_past_the_bound_are_summed_as_other():
    server = Server(limits={"engines": 2})
    report = server.poll(*(snap(str(n), 10 * n) for n in range(5)))
    assert {key: engine.counters[Counter.DRAFTS] for key, engine in server.engines().items()} == {
        EngineKey("m", "0"): 0,
        EngineKey("m", "1"): 10,
        OTHER: 90,
    }
    assert report.own.label_overflow["engine"] == 3
    server.poll(*(snap(str(n), 10 * n + 1) for n in range(5)))
    assert server.drafts() == {"0": 1, "1": 11, "other": 93}


@pytest.mark.parametrize(("engines", "past"), [(1, 0), (6, 4), (8, 16)])
def test_positions_are_as_many_as_the_engines_leave_series_for_and_the_others_are_counted_once(engines, past):
    server, deep = Server(), (1.0,) * 24
    for _ in range(3):
        page = [replace(snap(str(number), 10), accepted_per_position=deep) for number in range(engines)]
        assert server.poll(*page).own.label_overflow["position"] == past


def test_a_model_past_the_bound_is_among_the_others_until_the_first_has_left():
    """As when vLLM restarts with another model."""
    server = Server(limits={"models": 1})
    server.poll(snap(drafts=1), snap(drafts=2, model="n"))
    assert server.drafts() == {"0": 1, "other": 2}
    server.poll(snap(drafts=3, model="n"), start=2.0)
    assert {key.model_name for key in server.engines()} == {"n"}


def test_an_engine_that_a_restarted_vllm_no_longer_has_is_gone():
    server = Server()
    server.poll(snap("0", 10), snap("1", 20))
    server.fail()
    assert server.drafts() == {"0": 10, "1": 20}
    server.poll(snap("0", 3), start=2.0)
    assert server.drafts() == {"0": 3}


def test_the_distributions_of_the_others_go_on_when_another_engine_becomes_one_of_them():
    server = Server(limits={"engines": 1})
    for polls, engines in enumerate(([snap("1", 10)], [snap("1", 20)], [snap("1", 30), snap("2", 5000)]), 1):
        server.poll(snap("0"), *engines)
        other = server.engines()[OTHER]
        assert (other.kv_cache_usages.count, other.window_acceptances.count) == (polls, min(polls - 1, 1))
    assert server.drafts()["other"] == 5030
    assert server.engines()[OTHER].acceptance is None, "what the new one had counted is not growth"


def test_finished_requests_of_a_model_past_the_bound_are_counted_as_dropped():
    server = Server(limits={"models": 1})
    server.poll(snap(drafts=1), snap(drafts=2, model="n"))
    plugin = PluginEnd(server, model="n").serve(drafts=2)
    plugin.finish()
    assert server.poll(snap(drafts=1), plugin.counted(model="n")).plugin.dropped["overflow"] == 1


@pytest.mark.parametrize("start", [1.0, None])
def test_the_sum_of_the_others_never_falls(start):
    server = Server(limits={"engines": 1})
    server.poll(snap("0"), snap("1", 10), snap("2", 20), start=start)
    server.poll(snap("0"), snap("1", 11), start=start)
    assert server.drafts()["other"] == 31
    server.poll(snap("0"), snap("1", 15), start=start)
    assert server.drafts()["other"] == 35
    server.poll(snap("0"), start=start)
    assert server.drafts()["other"] == 35


def test_one_of_the_others_that_restarts_is_no_restart_of_all():
    server = Server(limits={"engines": 1})
    server.poll(snap("0"), snap("1", 1000), snap("2", 2000), start=None)
    server.poll(snap("0"), snap("1", 1000), snap("2", 5), start=None)
    assert server.drafts()["other"] == 3000


def test_engines_that_leave_the_others_and_return_are_counted_once():
    server = Server(limits={"engines": 1})
    both, one = (snap("0"), snap("1", 1000), snap("2", 2000)), (snap("0"), snap("1", 1000))
    for page_of in (both, one, both):
        server.poll(*page_of)
    assert server.drafts()["other"] == 3000
    assert server.engines()[OTHER].acceptance is None
    server.poll(snap("0"), snap("1", 1001), snap("2", 2002))
    assert server.drafts()["other"] == 3003


def test_known_engines_keep_their_keys_when_new_ones_sort_before_them():
    server = Server(limits={"engines": 2})
    server.poll(snap("5", 1), snap("6", 2))
    server.poll(snap("0", 7), snap("5", 1), snap("6", 2))
    assert server.drafts() == {"5": 1, "6": 2, "other": 7}


def test_names_without_end_cost_bounded_memory_and_series():
    server = Server(limits={"engines": 2}, history=10.0, latency_window=10.0)
    for poll in range(200):
        server.poll(*(snap("0", poll, model=f"model-{poll}-{n}") for n in range(5)))
        assert len(server.engines()) <= 3
        assert len(server.report().models) <= 3


def test_windows_that_drafted_are_observed_once_each():
    server = Server()
    for drafts, accepted in ((10, 20), (10, 20), (20, 35), (30, 50), (30, 50)):
        report = server.poll(snap(drafts=drafts, accepted=accepted))
    counts = engine_of(report).window_acceptances.counts
    assert counts[-1] == 2
    assert engine_of(report).window_acceptances.sum == pytest.approx(15 / 30 + 15 / 30)
    assert engine_of(report).kv_cache_usages.counts[-1] == 5


def test_clock_set_back_does_not_stop_anything():
    server = Server()
    for drafts in (10, 20, 30):
        server.poll(snap(drafts=drafts))
    server.at -= 10_000
    for drafts in (40, 50, 60):
        report = server.poll(snap(drafts=drafts, usage=0.1))
    engine = engine_of(report)
    assert report.scrape.up
    assert engine.counters[Counter.DRAFTS] == 60
    assert engine.acceptance.drafts == 20
    assert engine.kv_cache_peak == 0.1
    assert engine.latencies


def test_malformed_lines_add_up():
    server = Server()
    server.poll(snap(), malformed=2)
    assert server.poll(snap(), malformed=3).scrape.malformed_lines == 5


def test_a_model_is_judged_over_all_its_engines_on_the_page():
    server = Server(thresholds={"min_requests": 1})
    server.poll(snap("0", 0, accepted=0), snap("1", 0, accepted=0))
    server.poll(snap("0", 900, accepted=270), snap("1", 100, accepted=270))
    judgement = server.model().judgement
    assert judgement.acceptance == pytest.approx(540 / 3000)
    assert judgement.verdict is Verdict.NET_NEGATIVE
    server.poll(snap("1", 300, accepted=810))
    assert server.model().judgement.acceptance == pytest.approx(810 / 900)


def test_running_requests_count_and_an_hour_judges_a_small_pod():
    """Two drafts a second: too few in five minutes, enough in half an hour."""
    server = Server(thresholds={"min_requests": 20, "min_drafts_per_second": 4})
    for second in range(0, 1800, 30):
        server.poll(snap(drafts=2 * second), seconds=30)
    judgement = server.model().judgement
    assert judgement.evidence.window.seconds == pytest.approx(300, abs=31)
    assert judgement.judged.seconds > 1200
    assert judgement.judged.requests == judgement.judged.drafts + 1
    assert judgement.verdict is Verdict.NET_POSITIVE


def test_verdicts_hold_from_one_poll_to_the_next_and_outlast_a_minute_of_failed_ones():
    server = Server(thresholds={"min_requests": 1})
    for drafts in (0, 90000, 180000):
        server.at += 120
        server.state.scraped(server.at, 0.005, 120.0, page(snap(drafts=drafts)))
    assert server.report(later=119).models[0].judgement.verdict is Verdict.NET_POSITIVE
    assert not server.report(later=241).models[0].judgement.is_known
    assert server.fail(seconds=30).models[0].judgement.verdict is Verdict.NET_POSITIVE
    assert not server.fail(seconds=40).models[0].judgement.is_known


def test_what_passed_during_an_outage_enters_no_window():
    server = Server()
    server.poll(snap(drafts=0))
    server.poll(snap(drafts=1_000_000, accepted=0), seconds=3600)
    report = server.poll(snap(drafts=1_000_600, accepted=1440), seconds=60)
    assert (engine_of(report).acceptance.seconds, engine_of(report).acceptance.rate) == (60, pytest.approx(0.8))
