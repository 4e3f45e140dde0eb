"""What is known of one server, poll by poll."""

from dataclasses import replace

import pytest

from sidecar.engine.merge import OTHER
from sidecar.engine.names import Counter, Gauge
from sidecar.engine.plan import EngineKey
from sidecar.engine.version import VersionFamily
from sidecar.errors import TimedOut, Unreachable
from tests.analysis.analysis_tools import Server, page, snap


def test_before_the_first_poll():
    report = Server().report()
    assert not report.up
    assert report.engines == ()
    assert (report.last_scrape, report.duration, report.last_error) == (None, None, None)


def test_a_failed_poll_takes_the_gauges_away_and_leaves_the_counters():
    server = Server()
    server.poll(snap(drafts=10))
    up = server.poll(snap(drafts=20))
    assert up.up
    assert up.engines[0].gauges
    assert up.engines[0].latencies
    assert up.engines[0].acceptance.rate == pytest.approx(2 / 3)
    assert up.engines[0].kv_cache_peak == 0.5
    down = server.fail()
    (engine,) = down.engines
    assert not down.up
    assert isinstance(down.last_error, TimedOut)
    assert down.errors == {"timeout": 1}
    assert (engine.gauges, engine.latencies) == ({}, {})
    assert (engine.kv_cache_peak, engine.kv_cache_capacity_tokens, engine.acceptance) == (None, None, None)
    assert engine.counters[Counter.DRAFTS] == 20
    assert engine.accepted_per_position == (20,)
    assert down.limitations == {}
    again = server.poll(snap(drafts=25))
    assert again.up
    assert again.last_error is None
    assert again.engines[0].gauges
    assert again.errors == {"timeout": 1}


def test_a_page_grows_stale_after_two_intervals():
    server = Server()
    server.poll(snap())
    assert server.report(later=1.99).up
    assert not server.report(later=2.01).up
    assert server.report(later=2.01).engines[0].gauges == {}


def test_stretched_interval_keeps_the_page_fresh_for_longer():
    server = Server()
    server.state.scraped(1001.0, 0.5, 50.0, page(snap()))
    assert server.state.report(1100.0).up
    assert not server.state.report(1101.5).up


def test_known_restart_carries_the_counters_on():
    server = Server()
    server.poll(snap(drafts=100), start=1.0)
    server.fail(Unreachable("x"))
    report = server.poll(snap(drafts=120), start=2.0)
    assert report.restarts == 1
    assert server.drafts() == {"0": 220}
    assert server.poll(snap(drafts=130), start=2.0).restarts == 1
    assert server.drafts() == {"0": 230}


def test_restart_of_several_processes_is_told_by_what_fell():
    server = Server()
    server.poll(snap(drafts=100), start=None)
    assert server.poll(snap(drafts=120), start=None).restarts == 0
    assert server.poll(snap(drafts=5), start=None).restarts == 1
    assert server.drafts() == {"0": 125}


def test_restart_counts_once_for_all_engines():
    server = Server()
    server.poll(snap("0", 10), snap("1", 20))
    assert server.poll(snap("0", 1), snap("1", 2), start=2.0).restarts == 1
    assert server.drafts() == {"0": 11, "1": 22}


def test_engine_that_comes_back_only_some_polls_after_a_restart_loses_nothing():
    server = Server()
    server.poll(snap("0", 10), snap("1", 20))
    server.poll(snap("0", 1), start=2.0)
    server.poll(snap("0", 2), snap("1", 50), start=2.0)
    assert server.drafts() == {"0": 12, "1": 70}


def test_engine_that_left_the_page_keeps_its_counters_and_loses_its_gauges():
    server = Server()
    server.poll(snap("0", 10), snap("1", 20))
    report = server.poll(snap("0", 11))
    left = next(engine for engine in report.engines if engine.key.engine == "1")
    assert left.counters[Counter.DRAFTS] == 20
    assert left.gauges == {}


def test_positions_that_a_page_leaves_out_stay():
    server = Server()
    server.poll(snap(drafts=10))
    report = server.poll(replace(snap(drafts=20), accepted_per_position=()))
    assert report.engines[0].accepted_per_position == (10,)
    assert server.poll(snap(drafts=30)).engines[0].accepted_per_position == (30,)


def test_engine_that_left_for_long_is_forgotten():
    server = Server(history=60.0, latency=30.0)
    server.poll(snap("0"), snap("1"))
    server.poll(snap("0"), seconds=59)
    assert set(server.drafts()) == {"0", "1"}
    server.poll(snap("0"), seconds=2)
    assert set(server.drafts()) == {"0"}


def test_vllm_that_was_down_for_long_goes_on_where_it_was():
    server = Server(history=60.0, latency=30.0)
    server.poll(snap(drafts=100))
    server.poll(snap(drafts=5), seconds=100_000, start=2.0)
    assert server.drafts() == {"0": 105}


def test_engines_past_the_bound_are_summed_as_other():
    server = Server(max_engines=2)
    report = server.poll(*(snap(str(n), 10 * n) for n in range(5)))
    assert {engine.key: engine.counters[Counter.DRAFTS] for engine in report.engines} == {
        EngineKey("m", "0"): 0,
        EngineKey("m", "1"): 10,
        OTHER: 90,
    }
    assert report.overflowed_engines == 3
    server.poll(*(snap(str(n), 10 * n + 1) for n in range(5)))
    assert server.drafts() == {"0": 1, "1": 11, "other": 93}


def test_known_engines_keep_their_keys_when_new_ones_sort_before_them():
    server = Server(max_engines=2)
    server.poll(snap("5", 1), snap("6", 2))
    server.poll(snap("0", 7), snap("5", 1), snap("6", 2))
    assert server.drafts() == {"5": 1, "6": 2, "other": 7}


def test_names_without_end_cost_bounded_memory():
    server = Server(max_engines=2, history=10.0, latency=10.0)
    for poll in range(200):
        server.poll(*(snap("0", poll, model=f"model-{poll}-{n}") for n in range(5)))
        assert len(server.state.engines) <= 3 + 11 * 2
        assert len(server.report().limitations) <= 3


def test_windows_that_drafted_are_observed_once_each():
    server = Server()
    for drafts, accepted in ((10, 20), (10, 20), (20, 35), (30, 50), (30, 50)):
        report = server.poll(snap(drafts=drafts, accepted=accepted))
    counts = report.engines[0].window_acceptances.cumulative()
    assert counts[-1] == 2
    assert report.engines[0].window_acceptances.sum == pytest.approx(15 / 30 + 15 / 30)
    assert report.engines[0].kv_cache_usages.cumulative()[-1] == 5


def test_clock_set_back_does_not_stop_anything():
    server = Server()
    for drafts in (10, 20, 30):
        server.poll(snap(drafts=drafts))
    server.at -= 10_000
    for drafts in (40, 50, 60):
        report = server.poll(snap(drafts=drafts, usage=0.1))
    (engine,) = report.engines
    assert report.up
    assert engine.counters[Counter.DRAFTS] == 60
    assert engine.acceptance.drafts == 20
    assert engine.kv_cache_peak == 0.1
    assert engine.latencies


def test_version_stays_known_through_filtered_pages():
    server = Server()
    server.poll(snap(), version=VersionFamily.V1_20)
    assert server.poll(snap(), version=VersionFamily.UNKNOWN).version is VersionFamily.V1_20
    assert server.poll(snap(), version=VersionFamily.V1_32).version is VersionFamily.V1_32


def test_malformed_lines_add_up():
    server = Server()
    server.poll(snap(), malformed=2)
    assert server.poll(snap(), malformed=3).malformed_lines == 5


def test_nothing_of_a_poll_that_fails_midway_is_half_taken(recwarn):
    """Reports are values: a later poll does not change an earlier one's gauges."""
    server = Server()
    before = server.poll(snap(usage=0.5))
    server.poll(snap(usage=0.9))
    assert before.engines[0].gauges[Gauge.KV_CACHE_USAGE] == 0.5
