"""What a person reads from the operator's page when pods lose, vanish or know little: text, colours, rows, lines."""

from contextlib import asynccontextmanager
from itertools import chain

import pytest

from sidecar.requests.messages import Speculation
from tests.alerts.pods import Pod
from tests.dashboards.dashboard_tools import PAGES, panels
from tests.dashboards.reading import MINUTES, NOW, Reader, firing, prometheus_with, scraped

pytestmark = pytest.mark.servers
PAGE = PAGES["specdec-operator"]
WITH_NAMES = ("stat", "state-timeline", "timeseries")
PAYS, LIVE = "Does speculation pay?", "Live, and is the split complete?"
SPEEDUP, ACCEPTANCE, DRAFTS = "Speedup, worst pod", "Acceptance, worst pod", "What it drafts, worst pod"
BANDS, LINES = "Verdict: where, and since when", "Acceptance by temperature, worst pod"


@asynccontextmanager
async def reading(http, folder, *pods, alerts=()):
    """Yields a function from a panel's title to what it shows."""
    async with prometheus_with(http, folder, chain(*map(scraped, pods), *alerts)) as server:
        yield Reader(PAGE, server).shown


def names(shown):
    return {name for name, *_ in shown}


def pod(instance, acceptance=0.8, speedup=1.4, **more):
    """With a baseline and the plug-in, at one temperature."""
    return Pod(instance, minutes=MINUTES, **more).timed(speedup).bucket("0", 10, acceptance)


def dead(minutes, *arguments):
    """A pod that was there until so many minutes ago."""
    gone = pod("gone", *arguments)
    gone.minutes = MINUTES - minutes
    return gone


async def test_where_everything_pays_it_is_green_and_says_of_how_many_pods(http, tmp_path):
    plain = Pod("c", minutes=MINUTES).generating(50)  # has no verdict, so it is none of the two
    async with reading(http, tmp_path, pod("a"), pod("b", 0.7, 1.2), plain) as read:
        assert await read(PAYS) == [("2 of 2 pods", "YES", "green")]
        assert await read(LIVE) == [("1 of 3 pods", "live, no plug-in", "blue")]
        assert await read(SPEEDUP) == [("b:9911, by a baseline", "1.2")]
        acceptance, break_even = await read(ACCEPTANCE)
        assert acceptance == ("b:9911", "0.7")
        assert break_even == ("breaks even at", "0.528")  # (1 + 3 * 0.7) / 1.2 steps
        assert (await read(DRAFTS))[0] == ("eagle3, K 3", "1")
        assert {("all", "pays", "green"), ("T 0", "pays", "green")} <= set(await read(BANDS))
        assert await read("Alerts firing") == "no alert fires"


UNKNOWN = ("1 of 2 pods", "unknown: pod missing", "#a352cc")


@pytest.mark.parametrize(
    ("gone", "shown"),
    [
        (dead(2, 0.3, 0.8), (("1 of 2 pods", "NO", "red"), "does not pay", "gone:9911, by a baseline")),
        (dead(2), (UNKNOWN, "pays", "a:9911, by a baseline")),
        (dead(10, 0.3, 0.8), (UNKNOWN, "unknown: a pod is missing", "a:9911, by a baseline, 1 pod missing")),
    ],
    ids=["lost, two minutes ago", "paid, two minutes ago", "lost, ten minutes ago"],
)
async def test_a_dead_pod_is_never_green_and_the_worst_says_that_it_is_missing(http, tmp_path, gone, shown):
    pays, band, worst = shown
    async with reading(http, tmp_path, pod("a"), gone) as read:
        assert await read(PAYS) == [pays]
        assert await read(LIVE) == [("1 of 2 pods", "sidecar down", "red")]
        bands = {name: text for name, text, _ in await read(BANDS)}
        assert (bands["all"], bands["T 0"]) == (band, band)
        assert await read("Pods that do not answer") == [("sidecar gone:9911", "1")]
        assert [name for name, _ in await read(SPEEDUP)] == [worst]
        missing = worst.partition("baseline")[2]
        assert f"all{missing}" in names(await read(LINES))


async def test_a_vllm_that_is_down_leaves_its_pod_unknown(http, tmp_path):
    down = pod("down").failing(lambda number: number >= 2 * (MINUTES - 8))
    async with reading(http, tmp_path, pod("a"), down) as read:
        assert await read(PAYS) == [UNKNOWN]
        assert await read(LIVE) == [("1 of 2 pods", "vLLM down", "red")]
        assert await read("Pods that do not answer") == [("vLLM of down:9911", "1")]


async def test_without_plugin_and_reference_the_rule_of_thumb_is_the_line(http, tmp_path):
    plain = Pod("a", minutes=MINUTES).drafting(10, 0.4, requests=20)
    async with reading(http, tmp_path, plain) as read:
        assert await read(PAYS) == [("1 of 1 pods", "NO", "red")]
        assert await read(LIVE) == [("1 of 1 pods", "live, no plug-in", "blue")]
        assert await read(SPEEDUP) == "no reference"
        assert await read(ACCEPTANCE) == [("a:9911", "0.4"), ("rule of thumb", "0.5")]
        assert names(await read(BANDS)) == {"all"}
        limits = {"does not pay below, by rule of thumb", "pays above, by rule of thumb"}
        assert names(await read(LINES)) == {"all"} | limits


async def test_a_measured_break_even_is_the_line_wherever_the_rule_of_thumb_lies(http, tmp_path):
    """0.45 is below the rule's 0.5, and pays."""
    async with reading(http, tmp_path, pod("a", 0.45, 1.3).finishing(0.45, pace=1.3)) as read:
        assert await read(PAYS) == [("1 of 1 pods", "YES", "green")]
        assert await read(LIVE) == [("1 of 1 pods", "live and complete", "green")]
        lines = dict(await read(LINES))
        assert lines == {"all": "0.45", "T 0": "0.45", "breaks even at, as measured": "0.269"}


async def test_one_temperature_that_loses_is_neither_yes_nor_hidden(http, tmp_path):
    mixed = Pod("a", minutes=MINUTES).bucket("0", 10, 0.9).bucket("1+", 4, 0.3)
    async with reading(http, tmp_path, mixed) as read:
        assert await read(PAYS) == [("1 of 1 pods", "not everywhere", "orange")]
        assert {("T 1+", "does not pay", "red"), ("T 0", "pays", "green")} <= set(await read(BANDS))


async def test_findings_are_words_with_a_remedy_and_a_runbook_those_of_the_worst_pod_first(http, tmp_path):
    quiet = Speculation(method="draft_model", num_speculative_tokens=3)
    pods = [Pod(name, minutes=MINUTES).drafting(0, 0.8).generating(50).speculating(quiet) for name in "bc"]
    async with reading(http, tmp_path, pod("a", 0.3, 0.8), *pods, pod("fine")) as read:
        rows = await read("Why, and what to change")
    tokens, log = "lower num_speculative_tokens", "find why in vLLM's log, restart it"
    assert [list(row.values()) for row in rows] == [
        ["the last draft tokens cost more than they gain", tokens, "SpecDecodeAcceptanceLow", 1, "has it"],
        ["configured to draft, it drafts nothing", log, "SpecDecodeNotSpeculating", 2],
    ]


async def test_lost_time_is_below_zero_and_not_cut_off(http, tmp_path):
    losing = pod("a", 0.3, 0.7).finishing(0.3, pace=0.7)
    async with reading(http, tmp_path, losing) as read:
        [(name, value)] = [shown for shown in await read("Request time saved over plain decoding") if shown[1] != "0"]
        assert (name, float(value) < 0) == ("T 0", True)
        assert await read("Speedup by temperature, worst pod") != []
    [panel] = [panel for panel in panels(PAGE) if panel["title"] == "Request time saved over plain decoding"]
    assert "min" not in panel["fieldConfig"]["defaults"]


async def test_alerts_are_one_row_each_critical_first_with_where_and_on_how_many_pods(http, tmp_path):
    a, b = pod("a"), pod("b")
    alerts = [
        firing(a, "BreakEven", "info", 90),
        *(firing(each, "AcceptanceLowAtTemperature", "warning", 20, temperature="1+") for each in (a, b)),
        firing(a, "AcceptanceLow", "critical", 12),
        firing(b, "AcceptanceLow", "critical", 15),
        firing(a, "MixedWorkload", "info", 5, sign="engines", engine="2"),
    ]
    async with reading(http, tmp_path, a, b, alerts=alerts) as read:
        rows = await read("Alerts firing")
    assert [(row["Severity"], row["Alert"], row.get("At"), row["Pods"]) for row in rows[:2]] == [
        ("critical", "AcceptanceLow", None, 2),
        ("warning", "AcceptanceLowAtTemperature", "T 1+", 2),
    ]
    assert {(row["Alert"], row.get("At")) for row in rows[2:]} == {("BreakEven", None), ("MixedWorkload", "engine 2")}
    assert (rows[0]["Pod"], rows[0]["Since"]) == ("b:9911", (NOW - 15 * 60) * 1000)


async def test_lines_do_not_grow_with_engines_and_the_lowest_is_there(http, tmp_path):
    pods = [Pod(name, minutes=MINUTES) for name in "ab"]
    for engine in range(12):
        pods[engine % 2].drafting(5, 0.9 - 0.05 * engine, engine=str(engine // 2))
    async with reading(http, tmp_path, *pods) as read:
        shown = [name for name, _ in await read("Acceptance by engine, lowest 8") if name.startswith("engine")]
    assert len(shown) == 8
    assert {"engine 5 of a:9911 m", "engine 5 of b:9911 m"} <= set(shown)


async def test_an_idle_pod_shows_words_and_no_nan(http, tmp_path):
    idle = Pod("a", minutes=MINUTES).bucket("0", 1e-6, 0.8)
    async with reading(http, tmp_path, idle) as read:
        assert await read(PAYS) == [("1 of 1 pods", "too little data", "#6e7079")]
        assert await read(ACCEPTANCE) == "too few drafts"
        for panel in panels(PAGE):
            shown = await read(panel["title"]) if panel["type"] in WITH_NAMES else []
            assert "nan" not in str(shown), panel["title"]


def test_twenty_rows_are_open_and_the_rest_is_asked_for_by_a_click():
    assert (
        max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in PAGE["panels"] if panel["type"] != "row") == 20
    )
    assert all(row["collapsed"] and row["panels"] for row in PAGE["panels"] if row["type"] == "row")
