"""A model's requests by temperature and by group: windows of live totals, distributions of finished requests."""

import pytest

from sidecar.analysis.model_state import request_numbers
from sidecar.analysis.verdict import Verdict
from sidecar.requests.tally import Outcome
from sidecar.settings import Settings
from tests.analysis.analysis_tools import PluginEnd, Server, finished, snap


class Pod(Server):
    """A vLLM with its plug-in; ``serve`` is one second of traffic."""

    def __init__(self, **settings):
        super().__init__(**{"thresholds": {"min_requests": 5, "min_drafts_per_second": 0.1}} | settings)
        self.plugin = PluginEnd(self)
        self.poll(snap(drafts=0))

    def serve(self, *traffic, seconds=1.0, **options):
        """Each of ``traffic``: (temperature, drafts, accepted tokens)."""
        for temperature, drafts, accepted in traffic:
            self.plugin.serve(temperature, drafts=drafts, accepted=accepted, **options)
        self.plugin.tick()
        total = self.plugin.total
        return self.poll(snap(drafts=total.drafts, accepted=total.accepted_tokens), seconds=seconds)


def test_each_temperature_is_judged_by_its_own_live_acceptance():
    pod = Pod()
    for _ in range(10):
        pod.serve((0, 10, 25), (80, 10, 6))
    cold, hot = pod.temperature("0"), pod.temperature("0.7-1")
    assert (cold.judgement.acceptance, hot.judgement.acceptance) == pytest.approx((25 / 30, 6 / 30))
    assert (cold.judgement.verdict, hot.judgement.verdict) == (Verdict.NET_POSITIVE, Verdict.NET_NEGATIVE)
    assert cold.window.share == hot.window.share == 0.5
    assert pod.temperature("0.3-0.5").judgement.verdict is Verdict.INSUFFICIENT_DATA


def test_what_has_left_the_window_counts_no_longer():
    pod = Pod(latency_window=60)
    for _ in range(60):
        pod.serve((80, 10, 25))
    for _ in range(70):
        pod.serve((80, 10, 6))
    assert pod.temperature("0.7-1").window.rate == pytest.approx(0.2)
    assert pod.temperature("0.7-1").tally.drafts == 1300


def test_position_rates_of_the_whole_model_are_the_plugin_s():
    """vLLM's page counts one position here, and never what was drafted at it."""
    pod = Pod()
    for _ in range(10):
        pod.serve((0, 10, 15))
    assert pod.model().judgement.judged.position_rates == pytest.approx((1.0, 0.5, 0.0))


def test_a_temperature_past_the_plugin_s_own_is_other():
    pod = Pod()
    pod.serve(("other", 10, 15))
    assert [one.temperature for one in pod.model().temperatures][-1] == "other"
    assert pod.temperature("other").tally.drafts == 10


def test_a_model_that_left_the_page_is_judged_no_longer_and_its_split_stays_for_a_while():
    pod = Pod(history=60.0, latency_window=30.0, limits={"models": 2})
    for _ in range(20):
        pod.serve((0, 10, 25))
    pod.poll(snap(model="n"))
    assert pod.temperature("0").tally.drafts == 200
    assert pod.model().judgement.verdict is Verdict.INSUFFICIENT_DATA
    assert not pod.temperature("0").judgement.is_known
    pod.poll(snap(model="n"), seconds=61)
    assert [model.model_name for model in pod.report().models] == ["n"]


def test_numbers_of_a_finished_request():
    assert request_numbers(finished()) == pytest.approx((20 / 30, 3.0, 0.5, 2.0 / 30, 2.5))
    none = request_numbers(finished(drafts=0, draft_tokens=0, accepted_tokens=0, output_tokens=1))
    assert (none.acceptance, none.length, none.tpot) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"arrival": 999.0}, {"ttft"}),  # another host's clock
        ({"arrival": None}, {"ttft", "duration"}),
        ({"first_token": None}, {"ttft", "tpot"}),
        ({"outcome": Outcome.ERROR}, {"ttft", "tpot", "duration"}),
        ({"outcome": Outcome.ABORTED}, set()),  # it may have met a stop string
    ],
)
def test_a_time_that_is_not_known_is_absent_rather_than_0(changes, absent):
    found = request_numbers(finished(**changes))
    assert {name for name in ("ttft", "tpot", "duration") if getattr(found, name) is None} == absent


def test_distributions_and_quantiles_are_of_finished_requests():
    pod = Pod()
    for accepted in range(31):
        pod.plugin.finish(80, accepted_tokens=accepted, first_token=pod.at - 2.0 - accepted / 10, arrival=pod.at - 6)
    pod.serve((80, 10, 15))
    hot = pod.temperature("0.7-1")
    assert hot.acceptances.count == hot.lengths.count == hot.ttft.count == hot.tpot.count == 31
    assert hot.acceptances.sum == pytest.approx(15.5)
    assert [hot.acceptance_quantiles[one] for one in (0.1, 0.5, 0.9)] == pytest.approx([0.1, 0.5, 0.9])
    assert sum(hot.acceptance_bins) == 31
    assert hot.ttft_quantiles[0.5] == pytest.approx(2.5)
    assert hot.ttft_quantiles[0.99] == pytest.approx(3.97)
    assert hot.tpot_quantiles[0.95] == pytest.approx((2 + 2.85) / 30)
    assert pod.temperature("0").ttft_quantiles[0.5] is None
    assert pod.model().acceptance_p10 == pytest.approx(0.1)
    pod.poll(snap(), seconds=301)
    assert pod.temperature("0.7-1").ttft_quantiles[0.5] is None
    assert pod.temperature("0.7-1").ttft.count == 31


def test_quantiles_are_over_the_whole_window_at_any_rate():
    """120 requests a second, of which the older two thirds of the window accept nothing."""
    pod = Pod()
    for place in range(30):
        for _ in range(1200):
            pod.plugin.finish(80, accepted_tokens=0 if place < 20 else 30)
        pod.serve((80, 10, 15), seconds=10)
    assert pod.model().acceptance_p10 == 0
    hot = pod.temperature("0.7-1")
    assert [hot.acceptance_quantiles[one] for one in (0.1, 0.5, 0.9)] == [0, 0, 1]
    assert (hot.acceptance_bins[0], hot.acceptance_bins[-1]) == (24_000, 12_000)
    for _ in range(20):
        pod.plugin.finish(80, accepted_tokens=30)
    pod.serve((80, 10, 15), seconds=205)
    assert pod.model().acceptance_p10 == 1
    assert pod.temperature("0.7-1").acceptance_bins == (*[0] * 9, 12_020)


def test_p10_of_a_small_pod_is_over_the_last_requests_of_an_hour():
    pod = Pod()
    for _ in range(4):
        pod.plugin.finish(accepted_tokens=3)
        pod.serve((0, 10, 15), seconds=600)
    assert pod.model().acceptance_p10 is None
    pod.plugin.finish(accepted_tokens=3)
    pod.serve((0, 10, 15))
    assert pod.model().acceptance_p10 == pytest.approx(0.1)


def test_p10_follows_a_changed_threshold():
    pod = Pod(thresholds={"min_requests": 6})
    for _ in range(5):
        pod.plugin.finish(accepted_tokens=3)
    pod.serve((0, 10, 15))
    assert pod.model().acceptance_p10 is None
    pod.state.apply(Settings(thresholds={"min_requests": 5}))
    assert pod.model().acceptance_p10 == pytest.approx(0.1)


def test_while_polls_fail_no_window_is_shown_as_if_it_were_of_now():
    pod = Pod()
    for _ in range(60):
        pod.plugin.finish(80)
        pod.serve((80, 10, 20))
    pod.plugin.serve(table="prompt_tokens", key=9).tick()
    pod.fail()
    hot, group = pod.temperature("0.7-1"), pod.group("0-512")
    assert (hot.window.rate, hot.window.requests, hot.window.share) == (None, None, 0)
    assert (group.window.rate, group.window.share, group.accepts_less) == (None, 0, False)
    assert (hot.acceptance_quantiles[0.5], hot.ttft_quantiles[0.5], sum(hot.acceptance_bins)) == (None, None, 0)
    assert hot.tally.drafts == 1200


def test_requests_that_finish_while_polls_fail_are_counted():
    pod = Pod()
    pod.serve((0, 10, 15))
    pod.plugin.finish()
    pod.fail()
    assert pod.temperature("0").acceptances.count == 0  # nothing has confirmed it yet
    pod.serve((0, 10, 15))
    assert sum(pod.temperature("0").acceptance_bins) == pod.temperature("0").acceptances.count == 1


def test_requests_of_a_clock_that_was_set_back_since_are_of_no_window():
    pod = Pod(thresholds={"min_requests": 1})
    pod.plugin.finish(accepted_tokens=3)
    pod.serve((0, 10, 15))
    pod.at -= 3600
    pod.plugin.finish(accepted_tokens=30)
    pod.serve((0, 10, 15))
    pod.serve((0, 10, 15), seconds=3599)
    assert pod.temperature("0").acceptance_quantiles[0.1] is None
    assert pod.model().acceptance_p10 == 1.0


def test_every_prompt_length_and_output_is_a_group_from_the_start():
    pod = Pod()
    pod.serve((0, 10, 15))
    assert [(one.by, one.group) for one in pod.model().groups] == [
        *(("prompt_tokens", group) for group in ("0-512", "512-2k", "2k-8k", "8k-32k", "32k+")),
        ("output", "free"),
        ("output", "structured"),
    ]


@pytest.mark.parametrize(
    ("exponent", "group"),
    [(0, "0-512"), (9, "0-512"), (10, "512-2k"), (11, "512-2k"), (13, "2k-8k"), (15, "8k-32k"), (16, "32k+")],
)
def test_prompt_lengths_are_grouped_by_powers_of_two(exponent, group):
    pod = Pod()
    pod.serve((0, 10, 15), table="prompt_tokens", key=exponent)
    assert {
        one.group: one.tally.draft_tokens for one in pod.model().groups if one.tally.draft_tokens and one.by != "output"
    } == {group: 30}


def long_prompts(accepted, drafts=2, polls=60):
    """Short prompts that accept 20 of 30, and long ones."""
    pod = Pod()
    for _ in range(polls):
        pod.plugin.serve(drafts=10, accepted=20, table="prompt_tokens", key=9)
        pod.serve((0, drafts, accepted), table="prompt_tokens", key=15)
    return pod


def test_a_group_that_accepts_clearly_less_is_named():
    lower = long_prompts(2).group("8k-32k")
    assert lower.accepts_less
    assert lower.difference == pytest.approx(2 / 6 - 20 / 30)
    assert lower.error == pytest.approx((2 * (1 / 3) * (2 / 3) / 60) ** 0.5)
    assert lower.window.share == pytest.approx(1 / 6)
    assert not any(one.accepts_less for one in long_prompts(2).model().groups if one.group != "8k-32k")


def test_a_group_accepts_less_neither_by_little_nor_on_few_requests_nor_by_chance():
    assert not long_prompts(38, drafts=20).group("8k-32k").accepts_less
    few = Pod(thresholds={"min_requests": 1000})
    for _ in range(60):
        few.plugin.serve(drafts=10, accepted=20, table="prompt_tokens", key=9)
        few.serve((0, 2, 2), table="prompt_tokens", key=15)
    assert few.group("8k-32k").difference < -0.3
    assert not few.group("8k-32k").accepts_less
    noisy = Pod()
    for second in range(60):
        noisy.plugin.serve(drafts=10, accepted=20, table="prompt_tokens", key=9)
        noisy.serve((0, 2, 0 if second % 10 < 5 else 6), table="prompt_tokens", key=15)
    assert noisy.group("8k-32k").error > 0.05
    assert not noisy.group("8k-32k").accepts_less


def test_requests_that_vllm_drafts_nothing_for_are_named_and_drag_no_group_down():
    pod = Pod()
    for _ in range(60):
        pod.plugin.serve(drafts=10, accepted=20, table="output", key="free")
        pod.serve((0, 0, 0), table="output", key="structured")
    found = pod.group("structured")
    assert (found.tally.requests, found.window.rate, found.difference, found.accepts_less) == (60, None, None, False)
    assert [one.group for one in pod.model().groups if one.without_drafts] == ["structured"]
    alone = Pod()
    for _ in range(60):
        alone.serve((0, 0, 0), table="output", key="structured")
    assert not alone.group("structured").without_drafts


def test_adapters_have_names_only_where_asked_for_and_eight_at_most():
    quiet, named = Pod(), Pod(plugin={"adapters": True})
    for pod in (quiet, named):
        for number in range(20):
            pod.plugin.serve(drafts=10, accepted=20, table="adapter", key=f"tenant-{number}" if number else "")
        pod.serve((0, 10, 15))
    assert not any(one.by == "adapter" for one in quiet.model().groups)
    adapters = {one.group: one.tally.drafts for one in named.model().groups if one.by == "adapter"}
    assert len(adapters) == 10
    assert (adapters["none"], adapters["other"]) == (20, 110)
    assert named.report().own.label_overflow["group"] == 11
    assert named.poll(snap(model="n"), seconds=1e6).own.label_overflow["group"] == 11  # though the model is forgotten


def test_an_adapter_that_becomes_other_takes_no_history_into_others_window():
    """After a restart of the sidecar, where the second engine's adapters are the older ones."""
    server = Server(thresholds={"min_requests": 1}, plugin={"adapters": True})
    first, second = PluginEnd(server, 1, start="a", started=1.0), PluginEnd(server, 2, start="b", started=1.0, engine=1)
    for number in range(20):
        first.serve(table="adapter", key=f"young-{number:02}", drafts=1000)
    for number in range(10):
        second.serve(table="adapter", key=f"old-{number:02}", drafts=10)
    second.since = dict.fromkeys(second.since, 1.0)
    first.tick()
    server.poll(first.counted(), snap("1", 0))
    first.serve(table="adapter", key="young-19", drafts=1).tick()
    server.poll(first.counted(), snap("1", 0))
    second.tick()
    server.poll(first.counted(), second.counted(engine="1"))
    other = server.group("other")
    assert (other.tally.drafts, other.window.drafts) == (20_011, 1)
