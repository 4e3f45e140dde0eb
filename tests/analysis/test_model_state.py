"""A model's requests by temperature.

Windows are of live totals; distributions and quantiles are of finished requests.
"""

import pytest

from sidecar.analysis.judgement import Verdict
from sidecar.analysis.temperature_state import request_numbers
from sidecar.requests.keys import Table
from sidecar.requests.tally import Outcome
from sidecar.settings import Settings
from tests.analysis.analysis_tools import PluginEnd, Pod, Server, finished, snap

LONG = {"drafts": 40, "draft_tokens": 120}  # enough for a rate that is no noise


def test_each_temperature_is_judged_by_its_own_live_acceptance():
    """A mean over both would show a healthy pod whose hot half loses."""
    pod = Pod()
    pod.serve((0, 10, 25), (80, 10, 6), polls=60)
    cold, hot = pod.temperature("0"), pod.temperature("0.7-1")
    assert (cold.judgement.acceptance, hot.judgement.acceptance) == pytest.approx((25 / 30, 6 / 30))
    assert (cold.judgement.verdict, hot.judgement.verdict) == (
        Verdict.NET_POSITIVE,
        Verdict.NET_NEGATIVE,
    )
    assert cold.window.share == hot.window.share == 0.5
    assert pod.temperature("0.3-0.5").judgement.verdict is Verdict.INSUFFICIENT_DATA


def test_drafts_that_have_left_the_window_count_no_longer():
    """The counter keeps them."""
    pod = Pod(latency_window=60)
    pod.serve((80, 10, 25), polls=60)
    pod.serve((80, 10, 6), polls=70)
    hot = pod.temperature("0.7-1")
    assert (hot.window.rate, hot.tally.drafts) == (pytest.approx(0.2), 1300)


def test_the_plugin_s_position_rates_are_those_of_the_whole_model():
    """vLLM's page counts one position here, and never what was drafted at it."""
    pod = Pod()
    pod.serve((0, 10, 15), polls=10)
    assert pod.model().judgement.judged.position_rates == pytest.approx((1.0, 0.5, 0.0))


def test_a_temperature_past_the_plugin_s_own_is_other():
    """A plug-in of version 2 sums temperatures beyond its limit of rows."""
    pod = Pod()
    pod.serve(("other", 10, 15))
    row = pod.model().temperatures[-1]
    assert (row.temperature, row.tally.drafts) == ("other", 10)


def test_a_model_that_left_the_page_is_judged_no_longer_and_its_split_stays_for_a_while():
    """Its counters may return with it, but no verdict speaks for a model that is gone."""
    pod = Pod(history=60.0, latency_window=30.0, limits={"models": 2})
    pod.serve((0, 10, 25), polls=20)
    pod.poll(snap(model="n"))
    assert pod.temperature("0").tally.drafts == 200
    assert pod.model().judgement.verdict is Verdict.INSUFFICIENT_DATA
    assert not pod.temperature("0").judgement.is_known
    for _ in range(61):
        pod.poll(snap(model="n"))
    assert [model.model_name for model in pod.report().models] == ["n"]


def test_a_finished_request_has_rates_and_times():
    """Acceptance, length, time to first token, time per output token and duration."""
    request = finished(**LONG, accepted_tokens=80)
    assert request_numbers(request) == pytest.approx((2 / 3, 2 / 3, 3.0, 0.5, 2.0 / 30, 2.5))


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"arrival": 999.0}, {"ttft"}),  # another host's clock
        ({"arrival": None}, {"ttft", "duration"}),
        ({"first_token": None}, {"ttft", "tpot"}),
        ({"outcome": Outcome.ERROR}, {"ttft", "tpot", "duration"}),
        ({"outcome": Outcome.ABORTED}, set()),  # it may have met a stop string
        ({"output_tokens": 1}, {"tpot"}),
        ({"drafts": 33, "draft_tokens": 99}, {"steady"}),
        (
            {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0},
            {"acceptance", "steady", "length"},
        ),
    ],
)
def test_a_number_that_is_not_known_is_absent_rather_than_0(changes, absent):
    """A 0 would pull down every quantile."""
    request = finished(**({**LONG, "accepted_tokens": 80} | changes))
    numbers = request_numbers(request)._asdict()
    assert {name for name, value in numbers.items() if value is None} == absent


def test_distributions_and_quantiles_are_of_finished_requests():
    """Distributions are since the start, quantiles of the window."""
    pod = Pod()
    for accepted in range(31):
        pod.plugin.finish(
            80,
            **LONG,
            accepted_tokens=4 * accepted,
            first_token=pod.at - 2.0 - accepted / 10,
            arrival=pod.at - 6,
        )
    pod.serve((80, 10, 15))
    hot = pod.temperature("0.7-1")
    assert hot.acceptances.count == hot.lengths.count == hot.ttft.count == hot.tpot.count == 31
    assert (hot.acceptances.sum, sum(hot.acceptance_bins)) == (pytest.approx(15.5), 31)
    assert hot.acceptance_quantiles == pytest.approx({0.1: 0.1, 0.5: 0.5, 0.9: 0.9})
    assert (hot.ttft_quantiles[0.5], hot.ttft_quantiles[0.99]) == pytest.approx((2.5, 3.97))
    assert hot.tpot_quantiles[0.95] == pytest.approx((2 + 2.85) / 30)
    assert pod.temperature("0").ttft_quantiles[0.5] is None
    assert pod.model().acceptance_p10 == pytest.approx(0.1)
    pod.poll(pod.plugin.counted(), seconds=301)
    hot = pod.temperature("0.7-1")
    assert (hot.ttft_quantiles[0.5], hot.ttft.count) == (None, 31)


@pytest.mark.parametrize(("age", "known"), [(0, 1), (1e6, 0)])
def test_all_numbers_of_a_window_are_of_the_same_requests(age, known):
    """They include those before the first poll.

    They do not if the plug-in had begun to count before this sidecar listened.
    """
    server = Server(plugin={"adapters": True})
    plugin = PluginEnd(server, started=server.at - age)
    for ended in range(2):
        plugin.finish(table=Table.ADAPTER, key=f"adapter-{ended}")
        server.poll(plugin.counted())
        cold, adapter = server.temperature("0"), server.group(f"adapter-{ended}")
        assert cold.window.requests == sum(cold.acceptance_bins) == ended + known
        assert adapter.window.requests == (known if ended == 0 else 1)
        assert (cold.window.seconds, cold.acceptances.count) == (ended + known, ended + 1)


def test_quantiles_are_over_the_whole_window_at_any_rate():
    """7,200 requests, of which the older two thirds accept nothing.

    No number of last requests stands for the window.
    """
    pod = Pod()
    for place in range(30):
        for _ in range(240):
            pod.plugin.finish(80, **LONG, accepted_tokens=0 if place < 20 else 120)
        pod.serve((80, 10, 15), seconds=10)
    assert pod.model().acceptance_p10 == 0
    hot = pod.temperature("0.7-1")
    assert hot.acceptance_quantiles == {0.1: 0, 0.5: 0, 0.9: 1}
    assert (hot.acceptance_bins[0], hot.acceptance_bins[-1]) == (4800, 2400)
    for _ in range(20):
        pod.plugin.finish(80, **LONG, accepted_tokens=120)
    pod.serve((80, 10, 15), seconds=205)
    assert pod.model().acceptance_p10 == 1
    assert pod.temperature("0.7-1").acceptance_bins == (*[0] * 9, 2420)


def test_the_p10_of_a_small_pod_is_over_the_last_requests_of_an_hour():
    """As many of them as ``min_requests``; fewer are no percentile."""
    pod = Pod()
    for _ in range(4):
        pod.plugin.finish(**LONG, accepted_tokens=12)
        pod.serve((0, 10, 15), seconds=600)
    assert pod.model().acceptance_p10 is None
    pod.plugin.finish(**LONG, accepted_tokens=12)
    pod.serve((0, 10, 15))
    assert pod.model().acceptance_p10 == pytest.approx(0.1)
    pod.state.apply(Settings(thresholds={"min_requests": 6}))
    pod.poll(pod.plugin.counted())
    assert pod.model().acceptance_p10 is None


def test_requests_of_a_few_draft_tokens_are_in_no_quantile():
    """Of 30 draft tokens that are accepted with 0.6 each, one request in ten has fewer than 15."""
    pod = Pod(thresholds={"min_requests": 1})
    for accepted in (9, 12, 15):
        pod.plugin.finish(accepted_tokens=accepted)
    pod.plugin.finish(drafts=33, draft_tokens=99, accepted_tokens=0)
    pod.serve((0, 10, 15))

    assert pod.model().acceptance_p10 is None
    assert pod.temperature("0").acceptance_quantiles == {0.1: None, 0.5: None, 0.9: None}
    assert sum(pod.temperature("0").acceptance_bins) == pod.temperature("0").acceptances.count == 4

    pod.plugin.finish(drafts=34, draft_tokens=100, accepted_tokens=60)
    pod.serve((0, 10, 15))
    assert pod.model().acceptance_p10 == pod.temperature("0").acceptance_quantiles[0.1] == 0.6


def test_while_polls_fail_no_window_is_shown_as_if_it_were_of_now():
    """The counters stay as they were."""
    pod = Pod()
    for _ in range(60):
        pod.plugin.finish(80)
        pod.serve((80, 10, 20))
    pod.plugin.serve(table="prompt_tokens", key=9).tick()
    pod.fail()
    hot, group = pod.temperature("0.7-1"), pod.group("0-512")
    assert (hot.window.rate, hot.window.requests, hot.window.share) == (None, None, 0)
    assert (group.window.rate, group.window.share, group.accepts_less) == (None, 0, False)
    assert (hot.acceptance_quantiles[0.5], hot.ttft_quantiles[0.5], sum(hot.acceptance_bins)) == (
        None,
        None,
        0,
    )
    assert hot.tally.drafts == 1200


def test_requests_that_finish_while_polls_fail_are_counted():
    """Once a poll has confirmed the report that they came with."""
    pod = Pod()
    pod.serve((0, 10, 15))
    pod.plugin.finish()
    pod.fail()
    assert pod.temperature("0").acceptances.count == 0  # nothing has confirmed it yet
    pod.serve((0, 10, 15))
    assert sum(pod.temperature("0").acceptance_bins) == pod.temperature("0").acceptances.count == 1


def test_a_clock_set_back_empties_the_windows_of_finished_requests():
    """What is in them would otherwise stay for an hour longer."""
    pod = Pod(thresholds={"min_requests": 1})
    pod.plugin.finish(**LONG, accepted_tokens=12)
    pod.serve((0, 10, 15))
    pod.at -= 3600
    pod.plugin.finish(**LONG, accepted_tokens=120)
    pod.serve((0, 10, 15))
    pod.serve((0, 10, 15), seconds=3599)
    assert pod.temperature("0").acceptance_quantiles[0.1] is None
    assert pod.model().acceptance_p10 == 1.0
