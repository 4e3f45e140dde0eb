"""What a person reads from the operator's page when pods lose, vanish or know little.

It is text, colours, rows and lines.
"""

import pytest

from sidecar.requests.messages import Speculation
from tests.alerts.vllm_pages import after
from tests.dashboards.dashboard_tools import PAGES, panels
from tests.dashboards.reading import MINUTES, NOW, firing, held, reading, sample
from tests.dashboards.reading import pod as bare

# Twenty seconds for the data, beside those of the fleet page.
pytestmark = [pytest.mark.servers, pytest.mark.slow]
PAGE = PAGES["specdec-operator"]
WITH_NAMES = ("stat", "state-timeline", "timeseries")
PAYS, LIVE = "Does speculation pay?", "Live, and is the split complete?"
HOW_MUCH = "Speedup and acceptance, worst pod"
DRAFTS = "What it drafts, worst pod"
WHY, SILENT = "Why, and what to change", "Pods that do not answer"
BANDS, LINES = "Verdict: where, and since when", "Acceptance by temperature, worst pod"


GREY = "#6e7079"
PINK = "#ff7383"
UNKNOWN = ("1 of 2 pods", "unknown: pod missing", "#a352cc")


def pod(name="a", acceptance=0.8, speedup=1.4, **more):
    """With a baseline and the plug-in, at one temperature."""
    return bare(name, **more).timed(speedup).bucket("0", 10, acceptance)


def engines(*acceptances):
    made = bare("a"), bare("b")
    for number, acceptance in enumerate(acceptances):
        made[number % 2].drafting(5, acceptance, engine=str(number // 2))
    return made


def quiet(name):
    draft = Speculation(method="draft_model", num_speculative_tokens=3)
    return bare(name).drafting(0, 0.8).generating(50).speculating(draft)


def stopped(name):
    """It drafted until half an hour ago."""
    change = MINUTES - 30
    draft = Speculation(method="draft_model", num_speculative_tokens=3)
    made = bare(name).generating(after(change, 0, 50)).timed(1.4).speculating(draft)
    made.finishing(after(change, 0.8, None), pace=1.5)
    return made.bucket("0", after(change, 10, 0), 0.8)


FLEETS = {
    "paying": [pod(), pod("b", 0.7, 1.2), bare("c").generating(50)],
    "just-lost": [pod(), pod("gone", 0.3, 0.8, ended=2)],
    "just-gone": [pod(), pod("gone", speedup=1.5, ended=2)],
    "lost": [pod(), pod("gone", 0.3, 0.8, ended=10)],
    "alone-down": [pod("down").failing(lambda poll: poll >= 2 * (MINUTES - 8))],
    "just-down": [pod("down").failing(lambda poll: poll >= 2 * (MINUTES - 2))],
    "plain": [bare("a").generating(50)],
    "vllm-down": [pod(), pod("down").failing(lambda poll: poll >= 2 * (MINUTES - 8))],
    "ruled": [bare("a").drafting(10, 0.4, requests=20)],
    "measured": [pod("a", 0.45, 1.3).finishing(0.45, pace=1.3)],  # below the rule's 0.5, and pays
    "mixed": [bare("a").bucket("0", 10, 0.9).bucket("1+", 4, 0.3)],
    "mixed-measured": [
        bare("a")
        .bucket("0", 10, 0.9)
        .bucket("1+", 4, 0.1)
        .timed(1.2)
        .finishing(0.9, pace=1.4)
        .finishing(0.1, temperature="1+", pace=0.7)
    ],
    "half-measured": [bare("a").bucket("0", 10, 0.9).bucket("1+", 4, 0.1).timed(1.2)],
    "findings": [pod("a", 0.3, 0.8), quiet("b"), quiet("c"), pod("fine")],
    "stopped": [stopped("a")],
    "losing": [pod("a", 0.3, 0.7).finishing(0.3, pace=0.7)],
    "engines": engines(*(0.97 - 0.05 * number for number in range(12))),
    "idle": [bare("a").bucket("0", 1e-6, 0.8)],
    "idle-beside-plain": [bare("a").bucket("0", 1e-6, 0.8), bare("c").generating(50)],
    "held": [held("a")],
    "medium": [bare("a").drafting(10, 0.58)],
    "near": [bare("a").drafting(0.2, 0.5)],
    "sparse": [bare("a").bucket("0", 10, 0.9).bucket("1+", 0.05, 0.3)],
    "adaptive": [
        bare("a")
        .drafting(10, 0.3)
        .speculating(Speculation("eagle3", 3, adaptive_verification=True))
    ],
    "short-drafts": [bare("a").drafting(10, 0.4, k=2)],
    "whole-drafts": [bare("a").drafting(10, 0.4, k=3)],
    "alerting": [pod(), pod("b")],
}


def alerts():
    a, b = FLEETS["alerting"]
    yield from firing(a, "BreakEven", "info", 90)
    for each in (a, b):
        yield from firing(each, "AcceptanceLowAtTemperature", "warning", 20, temperature="1+")
    yield from firing(a, "AcceptanceLow", "critical", 12)
    yield from firing(b, "AcceptanceLow", "critical", 15)
    yield from firing(a, "MixedWorkload", "info", 5, sign="engines", engine="2")


def positions():
    """Nothing is accepted at the last of three positions, where some pods draft."""
    name = "specdec_engine_accepted_tokens_per_position_total"
    for fleet in ("short-drafts", "whole-drafts"):
        [pod] = FLEETS[fleet]
        labels = pod.own | {"cluster": fleet, "model_name": "m", "engine": "0"}
        for minute in range(MINUTES):
            yield sample(name, labels | {"position": "1"}, 120 * minute, minute)
            yield sample(name, labels | {"position": "2"}, 0, minute)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    yield from reading(PAGE, tmp_path_factory, FLEETS, alerts(), positions())


@pytest.mark.parametrize(
    ("fleet", "panel", "shown"),
    [
        # One has no verdict, so it is none of the two.
        ("paying", PAYS, [("2 of 2 pods", "pays", "green")]),
        ("paying", LIVE, [("3 of 3 pods", "live and complete", "green")]),  # timed by plug-ins
        (
            "paying",
            HOW_MUCH,
            # (1 + 3 * 0.7) / 1.2 steps
            [("b, by a baseline", "1.2"), ("accepted, b", "0.7"), ("breaks even at", "0.528")],
        ),
        ("paying", DRAFTS, [("eagle3, K 3", "1")]),
        ("paying", "Alerts firing", "no alert fires"),
        ("paying", WHY, "no finding on the pods that answer"),
        ("just-lost", PAYS, [("1 of 2 pods", "does not pay", "red")]),
        # Its loss is remembered for some minutes, but it accepts nothing now.
        ("just-lost", HOW_MUCH, [("gone, by a baseline", "0.8")]),
        ("just-gone", PAYS, [UNKNOWN]),
        (
            "just-gone",
            HOW_MUCH,
            [("a, by a baseline", "1.4"), ("accepted, a", "0.8"), ("breaks even at", "0.476")],
        ),
        ("lost", PAYS, [UNKNOWN]),
        (
            "lost",
            HOW_MUCH,
            [
                ("a, by a baseline, 1 pod missing", "1.4"),
                ("accepted, a, 1 pod missing", "0.8"),
                ("breaks even at", "0.476"),
            ],
        ),
        ("alone-down", PAYS, [("1 of 1 pods", "unknown: pod missing", "#a352cc")]),
        ("alone-down", LIVE, [("1 of 1 pods", "vLLM or sidecar down", "red")]),
        ("alone-down", HOW_MUCH, "nothing judged now"),
        ("just-down", HOW_MUCH, [("down, by a baseline", "1.4")]),
        ("plain", PAYS, [("1 of 1 pods", "does not speculate", GREY)]),
        ("plain", BANDS, [("all", "does not speculate", GREY)]),
        ("stopped", PAYS, [("1 of 1 pods", "does not speculate", GREY)]),
        ("stopped", BANDS, [("all", "does not speculate", GREY)]),
        ("lost", LIVE, [("1 of 2 pods", "vLLM or sidecar down", "red")]),
        ("lost", SILENT, [("sidecar gone", "1")]),
        ("vllm-down", PAYS, [UNKNOWN]),
        ("vllm-down", LIVE, [("1 of 2 pods", "vLLM or sidecar down", "red")]),
        ("vllm-down", SILENT, [("vLLM of down", "1")]),
        ("ruled", PAYS, [("1 of 1 pods", "low acceptance, not measured", "orange")]),
        ("short-drafts", PAYS, [("1 of 1 pods", "low acceptance, not measured", "orange")]),
        ("engines", PAYS, [("2 of 2 pods", "high acceptance, not measured", "#56b6c2")]),
        ("ruled", LIVE, [("1 of 1 pods", "live, no plug-in", "blue")]),
        ("ruled", HOW_MUCH, [("accepted, a", "0.4"), ("rule of thumb", "0.5")]),
        ("measured", PAYS, [("1 of 1 pods", "pays", "green")]),
        ("measured", LIVE, [("1 of 1 pods", "live and complete", "green")]),
        (
            "measured",
            LINES,
            [("T 0", "0.45"), ("all", "0.45"), ("breaks even at, as measured", "0.269")],
        ),
        ("mixed", PAYS, [("1 of 1 pods", "low acceptance, not measured", "orange")]),
        ("mixed-measured", PAYS, [("1 of 1 pods", "loses in part", PINK)]),
        ("half-measured", PAYS, [("1 of 1 pods", "low acceptance, not measured", "orange")]),
        ("idle", PAYS, [("1 of 1 pods", "too little data", GREY)]),
        ("idle-beside-plain", PAYS, [("1 of 1 pods", "too little data", GREY)]),
        ("idle-beside-plain", BANDS, [("all", "too little data", GREY)]),
        ("held", PAYS, [("1 of 1 pods", "undecided", GREY)]),
        ("held", BANDS, [("all", "undecided", GREY), ("T 0", "too little data", GREY)]),
        ("medium", PAYS, [("1 of 1 pods", "medium acceptance, not measured", "#e0a82e")]),
        ("near", PAYS, [("1 of 1 pods", "undecided", GREY)]),
        ("near", BANDS, [("all", "undecided", GREY)]),
        ("adaptive", PAYS, [("1 of 1 pods", "not measured", GREY)]),
        ("idle", HOW_MUCH, "nothing judged now"),
    ],
)
def test_a_panel_shows_the_worst_and_says_what_is_missing(read, fleet, panel, shown):
    """Text, number and colour, as Grafana would show them."""
    assert read(fleet, panel) == shown


@pytest.mark.parametrize(
    ("fleet", "bands"),
    [
        ("paying", {"all": "pays", "T 0": "high acceptance, not measured"}),
        ("just-lost", {"all": "does not pay", "T 0": "low acceptance, not measured"}),
        ("just-gone", {"all": "pays", "T 0": "high acceptance, not measured"}),
        ("lost", {"all": "unknown: pod missing", "T 0": "unknown: pod missing"}),
        ("mixed", {"T 0": "high acceptance, not measured", "T 1+": "low acceptance, not measured"}),
        ("adaptive", {"all": "not measured"}),
        ("sparse", {"T 0": "high acceptance, not measured", "T 1+": "too little data"}),
    ],
)
def test_a_band_has_the_worst_verdict_and_none_of_a_dead_pod(read, fleet, bands):
    """For a few minutes after its last sample, a pod still counts."""
    assert bands.items() <= {name: text for name, text, _ in read(fleet, BANDS)}.items()


@pytest.mark.parametrize(
    ("fleet", "lines"),
    [
        ("ruled", {"all", "does not pay below, by rule of thumb", "pays above, by rule of thumb"}),
        ("lost", {"all, 1 pod missing", "T 0", "breaks even at, as measured"}),
    ],
)
def test_the_line_to_be_above_is_measured_or_else_the_rule_of_thumb(read, fleet, lines):
    """Never both, and its name says which."""
    assert {name for name, _ in read(fleet, LINES)} == lines


@pytest.mark.parametrize(
    ("fleet", "rates"),
    [
        ("short-drafts", {"position 0": 0.4, "position 1": 0.2}),
        ("whole-drafts", {"position 0": 0.4, "position 1": 0.2, "position 2": 0}),
    ],
)
def test_without_the_plugin_a_position_that_is_not_drafted_has_no_line(read, fleet, rates):
    """A line at 0 would say that all of its tokens are rejected."""
    lines = read(fleet, "Acceptance by position", "lines")
    assert {name: rate for name, rate in lines.items() if "position" in name} == rates


def test_while_prometheus_scrapes_nothing_no_pod_is_missing(read):
    """Not even in the minutes in which a pod that is really gone would be."""
    for minutes in range(2, 7):
        assert "missing" not in str(read("paying", BANDS, later=minutes)), minutes
    assert "missing" not in str(read("paying", PAYS, later=30))
    assert read("paying", BANDS, later=30) == "no verdict: nothing is drafted"


def test_a_speedup_ends_with_the_drafts(read):
    """Though the sidecar knows it for as long as its window."""
    lines = read("stopped", "Speedup by temperature, worst pod")
    assert {name for name, _ in lines} == {"does not pay below", "pays above"}


def test_without_the_plugin_there_is_one_band(read):
    assert [name for name, *_ in read("ruled", BANDS)] == ["all"]


def test_findings_are_words_with_a_remedy_and_a_runbook_those_of_the_worst_pod_first(read):
    """One row a finding, with the number of pods that have it."""
    tokens, log = "lower num_speculative_tokens", "find why in vLLM's log, restart it"
    assert [list(row.values()) for row in read("findings", WHY)] == [
        [
            "the last draft tokens cost more than they gain",
            tokens,
            "SpecDecodeAcceptanceLow",
            1,
            "has it",
        ],
        ["configured to draft, it drafts nothing", log, "SpecDecodeNotSpeculating", 2],
    ]


def test_lost_time_is_below_zero_and_not_cut_off(read):
    """A panel with a minimum of 0 hid that speculation lost."""
    title = "Request time saved over plain decoding"
    [(name, value)] = [shown for shown in read("losing", title) if shown[1] != "0"]
    assert (name, float(value) < 0) == ("T 0", True)
    assert read("losing", "Speedup by temperature, worst pod") != []
    [panel] = [panel for panel in panels(PAGE) if panel["title"] == title]
    assert "min" not in panel["fieldConfig"]["defaults"]


def test_a_band_of_an_alert_has_the_colour_of_its_severity(read):
    bands = {name.strip(): color for name, _, color in read("alerting", "Alerts firing over time")}
    assert bands == {
        "AcceptanceLow": "red",
        "AcceptanceLowAtTemperature T 1+": "orange",
        "BreakEven": "blue",
        "MixedWorkload engine 2": "blue",
    }


def test_alerts_are_one_row_each_critical_first_with_where_and_on_how_many_pods(read):
    """With the pod on which it has fired longest, and since when."""
    rows = read("alerting", "Alerts firing")
    assert [(row["Severity"], row["Alert"], row.get("At"), row["Pods"]) for row in rows[:2]] == [
        ("critical", "AcceptanceLow", None, 2),
        ("warning", "AcceptanceLowAtTemperature", "T 1+", 2),
    ]
    assert {(row["Alert"], row.get("At")) for row in rows[2:]} == {
        ("BreakEven", None),
        ("MixedWorkload", "engine 2"),
    }
    assert (rows[0]["Pod"], rows[0]["Since"]) == ("b", (NOW - 15 * 60) * 1000)


def test_lines_do_not_grow_with_engines_and_the_lowest_is_there(read):
    """The lowest is the one that somebody looks for."""
    shown = [
        name
        for name, _ in read("engines", "Acceptance by engine, lowest 8")
        if name.startswith("engine")
    ]
    assert len(shown) == 8
    assert {"engine 5 of a m", "engine 5 of b m"} <= set(shown)


def test_an_idle_pod_shows_no_nan(read):
    for panel in panels(PAGE):
        shown = read("idle", panel["title"]) if panel["type"] in WITH_NAMES else []
        assert "nan" not in str(shown), panel["title"]


def test_eight_panels_in_twenty_rows_are_open_and_the_rest_is_asked_for_by_a_click():
    assert len([panel for panel in PAGE["panels"] if panel["type"] != "row"]) <= 8
    assert (
        max(
            panel["gridPos"]["y"] + panel["gridPos"]["h"]
            for panel in PAGE["panels"]
            if panel["type"] != "row"
        )
        == 20
    )
    assert all(row["collapsed"] and row["panels"] for row in PAGE["panels"] if row["type"] == "row")
