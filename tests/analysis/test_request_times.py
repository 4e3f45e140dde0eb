"""Latencies by the requests' own times, and when vLLM's buckets alone tell."""

import math
from bisect import bisect_left
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.analysis.engine.latency import QUANTILES, Range, Source, gap_growth, latency
from sidecar.analysis.engine.request_times import RequestTimes
from sidecar.analysis.pod_alert import Alert
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.requests.tally import Outcome
from sidecar.settings.baselines import PlainLatency
from tests.analysis.analysis_tools import PluginEnd, Server, finished, snap

# vLLM's of the time per output token
EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, math.inf)
NARROW = [0.012] * 60 + [0.015] * 40  # P99 - P50 is 3 ms
WIDE = [0.011] * 60 + [0.024] * 40  # 13 ms, in the same bucket of vLLM's


def reading(times):
    counts = [0] * len(EDGES)
    for seconds in times:
        counts[bisect_left(EDGES, seconds)] += 1
    return HistogramReading(EDGES, tuple(map(float, accumulate(counts))))


def request(seconds, at=1000.0, **changes):
    """One that took so long for each of 31 tokens."""
    times = {"first_token": at - 30 * seconds, "arrival": at - 30 * seconds - 0.5}
    return finished(0, at, **(times | changes))


class Engine(Server):
    """A vLLM of which the requests' times per token are known to its page and its plug-in."""

    def __init__(self, exact=("tpot",), **settings):
        baseline = {"m": {"tpot": {"p50": 0.012, "p99": 0.015}}}
        super().__init__(
            thresholds={"min_requests": 5, "min_drafts_per_second": 0.1},
            baseline=baseline,
            baseline_by_request={"m": exact},
            **settings,
        )
        self.plugin = PluginEnd(self)
        self.counted = []
        self.turn()

    def turn(self, *, seconds=1.0):
        """Polls it."""
        histograms = {Phase.TPOT: reading(self.counted)}
        self.poll(replace(self.plugin.counted(), histograms=histograms), seconds=seconds)

    def serve(self, times, *, told=None, after=1.0, **changes):
        """vLLM counts requests with these times; the plug-in tells those that are ``told``.

        The poll is ``after`` so many seconds.
        """
        self.counted += times
        told = times if told is None else told
        if not told:  # their drafts are
            self.plugin.serve(drafts=10 * len(times)).tick()
        for seconds in told:
            self.plugin.finish(
                first_token=self.at - 30 * seconds,
                arrival=self.at - 30 * seconds - 0.5,
                **changes,
            )
        self.turn(seconds=after)

    @property
    def per_token(self):
        (engine,) = self.engines().values()
        return engine.latencies[Phase.TPOT]

    @property
    def counted_in_window(self):
        """By vLLM's histogram."""
        (engine,) = self.state._engines.states.values()
        return engine.histograms[Phase.TPOT].count

    @property
    def wide_gap(self):
        """What the alert on its latency gap says; None if there is none."""
        said = [one.value for one in self.report().alerts if one.alert is Alert.GAP_WIDE]
        return said[0] if said else None


def exactly(times):
    return pytest.approx((times.quantiles[0.99] - times.quantiles[0.5],) * 2)


def test_loads_whose_gaps_are_in_one_bucket_are_told_apart_and_the_wide_one_breaches_the_limit():
    """By vLLM's buckets alone both have P50 and P99 from 10 to 25 ms, so neither does."""
    narrow, wide = Engine(), Engine()
    narrow.serve(NARROW)
    wide.serve(WIDE)

    assert (narrow.per_token.source, wide.per_token.source) == (Source.REQUESTS,) * 2
    assert narrow.per_token.gap_seconds == pytest.approx(0.003, rel=0.01)
    assert wide.per_token.gap_seconds == pytest.approx(0.013, rel=0.01)
    assert narrow.per_token.gap_range == exactly(narrow.per_token)
    assert narrow.wide_gap is None
    assert wide.wide_gap == pytest.approx(13 / 3, rel=0.01)

    for times in (NARROW, WIDE):
        untold = Engine()
        untold.serve(times, told=[])
        assert untold.per_token.source is Source.BUCKETS
        assert untold.per_token.ranges[0.5] == untold.per_token.ranges[0.99] == (0.01, 0.025)
        assert untold.per_token.gap_range == pytest.approx((0.0, 0.015))
        assert untold.wide_gap is None


def test_by_buckets_a_gap_is_wide_only_where_all_that_it_can_be_is():
    """P50 is below 25 ms and P99 above 75: at least 50 ms, and the baseline's 3 ms."""
    apart = Engine()
    apart.serve([0.011] * 60 + [0.08] * 40, told=[])
    assert apart.per_token.gap_range == pytest.approx((0.05, 0.09))
    assert apart.wide_gap == pytest.approx(0.05 / 0.003)


def test_a_baseline_by_buckets_may_be_as_wide_as_these():
    """Its 3 ms may have been 15: four times as wide is not certain."""
    wide = Engine(exact=())
    wide.serve(WIDE)
    assert wide.per_token.is_exact
    assert wide.wide_gap is None
    assert gap_growth(wide.per_token, wide.model().plain_latencies["tpot"]) == pytest.approx(
        0.013 / 0.015, rel=0.01
    )


def test_own_times_are_used_only_where_hardly_one_is_missing():
    """Of 100 requests two may be."""
    some = Engine()
    some.serve(WIDE, told=WIDE[2:])
    some.turn()
    assert some.per_token.is_exact
    few = Engine()
    few.serve(WIDE, told=WIDE[3:])
    few.turn()
    assert not few.per_token.is_exact


def test_no_more_own_times_than_vllm_has_counted_are_used():
    engine = Engine()
    engine.serve([0.08] * 100, told=[0.012] * 200)
    assert engine.per_token.source is Source.BUCKETS
    assert engine.per_token.ranges[0.5] == Range(0.075, 0.1)


@pytest.mark.parametrize(
    ("seconds", "told", "untold"),
    [(1.0, [0.012], [0.024] * 9), (60.0, [0.012] * 240, [0.06] * 60)],
)
def test_own_times_are_not_used_while_most_of_the_last_poll_are_not_told_yet(seconds, told, untold):
    """Whatever vLLM has counted since the poll before."""
    engine = Engine()
    engine.serve(told + untold, told=told, after=seconds)
    assert engine.per_token.source is Source.BUCKETS


def test_what_is_missing_may_be_the_tail():
    """Two of a hundred, as slow as their bucket allows: P99 is one of them, and P50 is none."""
    engine = Engine()
    engine.serve([*NARROW[2:], 0.024, 0.024], told=NARROW[2:])
    engine.turn()
    known = engine.per_token
    assert known.is_exact
    assert known.ranges[0.5] == pytest.approx((0.012, 0.012), rel=0.01)
    assert known.ranges[0.99] == pytest.approx((0.015, 0.025), rel=0.01)
    assert known.gap_range == pytest.approx((0.003, 0.013), rel=0.05)
    assert engine.wide_gap is None


@given(st.lists(st.floats(0.0, 6.0), min_size=20, max_size=300), st.integers(0, 30), st.randoms())
def test_the_true_quantile_is_in_the_range_whichever_are_missing(seconds, missing, order):
    """Where own times are used at all, to within a bin."""
    shuffled = list(seconds)
    order.shuffle(shuffled)
    times = RequestTimes(300.0)
    times.mark(1.0)
    times.add(2.0, [request(one, at=5e3) for one in shuffled[missing:]])
    times.mark(2.0)
    known = times.latency(Phase.TPOT, reading(seconds), float(missing))

    ordered = sorted(seconds)
    for share in QUANTILES if known is not None else ():
        true = ordered[math.ceil(share * len(ordered)) - 1]
        assert known.ranges[share].least <= true * 1.005 + 2e-5
        assert known.ranges[share].most >= true / 1.005 - 2e-5


def test_the_window_is_that_of_vllm_s_histogram():
    """After a burst, neither has more of it than the other."""
    engine = Engine()
    engine.serve(WIDE * 3)
    for number in range(120):
        engine.turn(seconds=1.7)
        engine.serve(NARROW[number % 7 :: 20], after=1.3)
        assert engine.per_token.is_exact
        assert engine.per_token.count == engine.counted_in_window


def test_what_vllm_has_counted_since_the_last_poll_may_still_be_on_its_way():
    late = Engine()
    late.serve(WIDE)
    late.serve(WIDE[::10], told=[])
    assert late.per_token.is_exact
    late.turn()
    assert not late.per_token.is_exact
    late.serve([], told=WIDE[::10])
    assert late.per_token.is_exact


def test_requests_of_before_the_window_are_not_among_them():
    """Both windows leave the same requests behind."""
    engine = Engine()
    engine.serve(WIDE)
    engine.turn(seconds=200.0)
    engine.serve(NARROW)
    assert engine.per_token.count == 200
    engine.turn(seconds=250.0)
    assert (engine.per_token.source, engine.per_token.count) == (Source.REQUESTS, 100)
    assert engine.per_token.gap_seconds == pytest.approx(0.003, rel=0.01)


def test_aborted_requests_are_among_them_where_vllm_counts_them():
    """A stop string is found in the API server: its engine sees what it sees if a client leaves."""
    left = Engine()
    left.serve([0.011] * 50)
    left.serve([], told=[0.024] * 50, outcome=Outcome.ABORTED)
    assert (left.per_token.is_exact, left.per_token.count) == (True, 50)

    stopped = Engine()
    stopped.serve([0.011] * 50)
    stopped.serve([0.024] * 50, outcome=Outcome.ABORTED)
    assert (stopped.per_token.is_exact, stopped.per_token.count) == (True, 100)
    assert stopped.per_token.gap_seconds == pytest.approx(0.013, rel=0.01)

    both = Engine()
    both.serve([0.011] * 50)
    both.serve([0.024] * 25, told=[0.024] * 50, outcome=Outcome.ABORTED)
    both.turn()
    assert not both.per_token.is_exact  # which of them vLLM has counted nobody knows


def test_requests_of_our_own_commands_are_not_among_them():
    """They are in vLLM's histograms, so nothing is missing."""
    engine = Engine()
    engine.serve(NARROW)
    engine.serve(WIDE[-20:], is_own=True)
    assert (engine.per_token.is_exact, engine.per_token.count) == (True, 100)
    assert engine.per_token.quantiles[0.99] == pytest.approx(0.015, rel=0.01)


def test_own_times_that_contradict_vllms_buckets_are_not_used():
    """As those of another server would."""
    engine = Engine()
    engine.serve(WIDE, told=[seconds * 3 for seconds in WIDE])
    assert engine.per_token.source is Source.BUCKETS


def test_a_request_of_one_token_takes_no_time_per_token_as_in_vllm():
    engine = Engine()
    engine.serve([0.0] * 10, output_tokens=1)
    engine.serve([0.012] * 5)
    assert engine.per_token.is_exact
    assert engine.per_token.quantiles[0.5] == 0


@pytest.mark.parametrize("phase", [Phase.ITL, Phase.QUEUE])
def test_what_a_request_does_not_tell_is_by_buckets(phase):
    times = RequestTimes(300.0)
    times.mark(1.0)
    times.add(2.0, [request(seconds) for seconds in WIDE])
    times.mark(2.0)
    assert times.latency(Phase.TPOT, reading(WIDE), 0.0) is not None
    assert times.latency(phase, reading(WIDE), 0.0) is None


def test_first_tokens_and_durations_are_by_the_requests_own_times_too():
    """From the arrival at vLLM, to within the width of a bin."""
    times = RequestTimes(300.0)
    times.mark(1.0)
    times.add(2.0, [request(seconds) for seconds in WIDE])
    times.mark(2.0)
    waits = times.latency(Phase.TTFT, reading([0.5] * 100), 0.0)
    whole = times.latency(Phase.E2E, reading([0.5 + 30 * one for one in WIDE]), 0.0)
    assert waits.quantiles[0.5] == waits.quantiles[0.99] == pytest.approx(0.5, rel=0.005)
    assert whole.quantiles[0.5] == pytest.approx(0.83, rel=0.005)
    assert whole.quantiles[0.99] == pytest.approx(1.22, rel=0.005)


@given(st.lists(st.floats(0.0, 6.0), min_size=1, max_size=300))
def test_the_true_quantile_is_in_its_range_and_own_times_are_off_by_a_bin_at_most(seconds):
    """The one at or below which the share of the requests is."""
    ordered = sorted(seconds)
    true = {share: ordered[math.ceil(share * len(ordered)) - 1] for share in QUANTILES}
    by_bucket = latency(reading(seconds))
    times = RequestTimes(300.0)
    times.mark(1.0)
    times.add(2.0, [request(one, at=5e3) for one in seconds])
    times.mark(2.0)
    own = times.latency(Phase.TPOT, reading(seconds), 0.0)

    for share, value in true.items():
        known = by_bucket.ranges[share]
        assert known.least <= value <= known.most
        assert own.quantiles[share] == pytest.approx(value, rel=0.005, abs=2e-5)
    gap = true[0.99] - true[0.5]
    assert by_bucket.gap_range.least <= gap <= by_bucket.gap_range.most


def test_a_value_in_the_last_bucket_has_no_upper_bound():
    slow = latency(reading([9.0] * 10))
    assert slow.ranges[0.99] == Range(5.0, math.inf)
    assert gap_growth(slow, PlainLatency({0.5: 6.0, 0.99: 9.0})) is None


def test_without_a_plugin_the_buckets_tell():
    server = Server()
    server.poll(snap())
    server.poll(replace(snap(drafts=5), histograms={Phase.TPOT: reading(WIDE)}))
    server.poll(replace(snap(drafts=9), histograms={Phase.TPOT: reading(WIDE * 2)}))
    (engine,) = server.engines().values()
    assert engine.latencies[Phase.TPOT].source is Source.BUCKETS
