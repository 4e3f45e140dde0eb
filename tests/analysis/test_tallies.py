"""Under which temperature and group requests are counted, and which groups accept less."""

from collections import Counter

import pytest

from sidecar.analysis.split.tallies import TemperatureBuckets
from sidecar.requests.keys import GROUPED, Table
from tests.analysis.analysis_tools import PluginEnd, Pod, Server, snap


def test_a_temperature_falls_into_the_bucket_whose_upper_edge_includes_it():
    """Keys are hundredths, rounded up, so that 0.301 is above the edge 0.3."""
    labels = {
        0: "0",
        1: "0-0.3",
        30: "0-0.3",
        31: "0.3-0.5",
        50: "0.3-0.5",
        70: "0.5-0.7",
        100: "0.7-1",
        101: "1+",
    }
    # vLLM raises what is below 0.01, but not 0, to 0.01.
    labels |= {201: "1+", None: "other"}
    found = {temperature: TemperatureBuckets().label(temperature) for temperature in labels}
    assert found == labels


@pytest.mark.parametrize(
    ("edges", "labels"),
    [
        ((0.0, 0.3, 0.5, 0.7, 1.0), ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+")),
        ((0.0, 0.25, 2.0), ("0", "0-0.25", "0.25-2", "2+")),
        ((0.25, 2.0), ("0", "0-0.25", "0.25-2", "2+")),
        ((0.0,), ("0", "0+")),
    ],
)
def test_labels_are_listed_from_cold_to_hot_and_greedy_always_has_one(edges, labels):
    """Whatever edges a user sets; requests at 0 are never mixed with others."""
    assert TemperatureBuckets(edges).labels == labels


def test_an_edge_that_no_float_meets_is_still_its_hundredth():
    """100 times 0.29 is 28.999…, and a request at 0.29 belongs below that edge."""
    buckets = TemperatureBuckets((0.29, 0.57))
    assert [buckets.label(value) for value in (29, 57, 58)] == ["0-0.29", "0.29-0.57", "0.57+"]


@pytest.mark.parametrize(
    ("exponent", "group"),
    [
        (0, "0-512"),
        (9, "0-512"),
        (10, "512-2k"),
        (11, "512-2k"),
        (13, "2k-8k"),
        (15, "8k-32k"),
        (16, "32k+"),
    ],
)
def test_every_group_is_there_from_the_start_and_prompt_lengths_are_powers_of_two(exponent, group):
    """A counter that first appears with its first request has no increase for Prometheus."""
    pod = Pod()
    pod.serve((0, 10, 15), table="prompt_tokens", key=exponent)

    rows = pod.model().groups
    prompts = {row.group: row.tally.drafts for row in rows if row.by is Table.PROMPT_TOKENS}
    labels = ("0-512", "512-2k", "2k-8k", "8k-32k", "32k+")
    assert prompts == dict.fromkeys(labels, 0) | {group: 10}
    drafts = sum((Counter({row.by: row.tally.drafts}) for row in rows), Counter())
    assert drafts == Counter({row.by: 10 for row in rows if row.by is not Table.ENDING})
    assert [(row.by, row.group) for row in rows] == [
        (by, label) for by, declared in GROUPED.items() for label in declared.labels
    ]


def long_prompts(*accepted, drafts=2, polls=60, seconds=20.0, **settings):
    """Short prompts that accept 20 of 30, and long ones that accept ``accepted``, turn by turn."""
    pod = Pod(**settings)
    for second in range(polls):
        own = {
            "drafts": drafts,
            "draft_tokens": 3 * drafts,
            "accepted_tokens": accepted[second % len(accepted)],
        }
        for kind in ({"prompt_tokens": 500}, {"prompt_tokens": 20_000} | own):
            pod.plugin.finish(**kind)
        pod.poll(pod.plugin.counted(), seconds=seconds)
    return pod


def test_a_temperature_of_a_small_pod_is_judged_over_an_hour():
    """A request a minute is too little for the sliding window."""
    pod = Pod(thresholds={"min_requests": 10, "min_drafts_per_second": 0.1})
    pod.serve((0, 10, 20), polls=20, seconds=60.0)
    assert pod.temperature("0").judgement.judged.requests == 20


def test_a_group_that_accepts_clearly_less_is_named():
    """The difference is that of requests that are otherwise alike, with its standard error."""
    pod = long_prompts(1, 3)
    lower = pod.group("8k-32k").difference
    assert (lower.rate, lower.others) == pytest.approx((2 / 6, 20 / 30))
    # The long ones differ by a sixth from their mean, and the short ones count as differing by
    # what all do; whether they come alike is hardly known yet, so that takes 2.8 times as many.
    assert lower.error == pytest.approx((((1 / 6) ** 2 + 0.0125) * 2.8 / 46) ** 0.5, rel=0.02)
    assert [row.group for row in pod.model().groups if row.accepts_less] == ["8k-32k"]


@pytest.mark.parametrize(
    ("accepted", "options", "difference"),
    [
        ((38,), {"drafts": 20}, -0.03),  # by little, although with certainty
        ((0, 6), {"polls": 24, "seconds": 40.0}, -0.17),  # by chance: the standard error is large
    ],
)
def test_a_group_accepts_less_neither_by_little_nor_by_chance(accepted, options, difference):
    """A certain difference may be too small to matter, and a large one uncertain."""
    group = long_prompts(*accepted, **options).group("8k-32k")
    assert group.difference.rate - group.difference.others == pytest.approx(difference, abs=0.01)
    assert not group.accepts_less


def test_a_group_of_few_requests_is_not_compared():
    """Fewer than ``min_requests`` say nothing about the group."""
    assert long_prompts(2, thresholds={"min_requests": 1000}).group("8k-32k").difference is None


def test_requests_that_vllm_drafts_nothing_for_are_named_and_drag_no_group_down():
    """They have no acceptance rate: neither 0 nor one that is compared."""
    pod = Pod()
    for _ in range(60):
        pod.plugin.serve(drafts=10, accepted=20, table="output", key="free")
        pod.serve((0, 0, 0), table="output", key="structured")
    group = pod.group("structured")
    assert (group.tally.requests, group.window.rate, group.difference, group.accepts_less) == (
        60,
        None,
        None,
        False,
    )
    assert [row.group for row in pod.model().groups if row.without_drafts] == ["structured"]
    alone = Pod()
    alone.serve((0, 0, 0), polls=60, table="output", key="structured")
    assert not alone.group("structured").without_drafts


def test_adapters_have_names_only_where_asked_for_and_eight_at_most():
    """They may be names of tenants, and there may be any number of them."""
    quiet, named = Pod(), Pod(plugin={"adapters": True})
    for pod in (quiet, named):
        for number in range(20):
            pod.plugin.serve(
                drafts=10, accepted=20, table="adapter", key=f"tenant-{number}" if number else ""
            )
        pod.serve((0, 10, 15))
    assert not any(row.by == "adapter" for row in quiet.model().groups)
    adapters = {row.group: row.tally.drafts for row in named.model().groups if row.by == "adapter"}
    assert (len(adapters), adapters["none"], adapters["other"]) == (10, 20, 110)
    assert named.report().own.label_overflow["group"] == 11
    # Though the model is forgotten.
    assert named.poll(snap(model="n"), seconds=1e6).own.label_overflow["group"] == 11


def test_an_adapter_whose_name_is_a_label_of_something_else_has_its_own():
    """Nobody can tell whose requests are in a row that two have."""
    pod = Pod(plugin={"adapters": True})
    for name in ("", "none", "other"):
        pod.plugin.serve(drafts=10, accepted=20, table="adapter", key=name)
    pod.serve((0, 10, 15))
    adapters = {row.group: row.tally.drafts for row in pod.model().groups if row.by == "adapter"}
    assert adapters == {"none": 20, "adapter none": 10, "adapter other": 10}


def test_an_adapter_that_becomes_other_takes_no_history_into_others_window():
    """After a restart of the sidecar, where a second engine names as many."""
    server = Server(thresholds={"min_requests": 1}, plugin={"adapters": True})
    first, second = PluginEnd(server, 1, started=1.0), PluginEnd(server, 2, started=1.0, engine=1)
    for number in range(20):
        first.serve(table="adapter", key=f"young-{number:02}", drafts=1000)
    for number in range(10):
        second.serve(table="adapter", key=f"old-{number:02}", drafts=10)
    first.tick()
    server.poll(first.counted(), snap("1", 0))
    first.serve(table="adapter", key="young-19", drafts=1).tick()
    server.poll(first.counted(), snap("1", 0))
    second.tick()
    server.poll(first.counted(), second.counted())
    other = server.group("other")
    # 16 of the first engine's and 5 of the second's
    assert (other.tally.drafts, other.window.drafts) == (16_051, 1)
