"""The fleet's page: what a person reads of pods that lose, die, never start, or are many."""

import math

import pytest

from tests.dashboards.dashboard_tools import PAGES, panels
from tests.dashboards.reading import MINUTES, firing, held, pod, properties, reading, sample

PAGE = PAGES["specdec-fleet"]
PANELS = list(panels(PAGE))
TABLES = [panel for panel in PANELS if panel["type"] == "table"]
MODELS, LOSING_PODS = "Models that do not pay", "Pods that do not pay"
UP, ALERTS = "Pods up", "Alerts"
WORST = "Models, worst first"
BAND, ROWS = "Worst verdict by model: which, and since when", "Pods, worst first"
PURPLE, GREY, AMBER = "#a352cc", "#6e7079", "#e0a82e"


def good(name="good", **more):
    return pod(name, **more).bucket("0", 5, 0.8).bucket("0.7-1", 5, 0.6).timed(1.3)


def bad(name="bad", speedup=0.8, **more):
    return pod(name, **more).bucket("0", 5, 0.8).bucket("1+", 5, 0.2).timed(speedup)


def plain(name="plain", **more):
    return pod(name, **more).generating(50)


FLEETS = {
    "losing": [good(), bad()],
    "just-killed": [good(), bad(ended=2)],
    "killed": [good(), bad(ended=5)],
    "vllm-down": [
        good(),
        bad().failing(lambda poll: poll > 2 * (MINUTES - 10)),
        bad("new").failing(lambda _: True),
    ],
    "scaled-down": [good(), good("old", ended=10, forgotten=True)],
    "all-down": [
        good().failing(lambda poll: poll > 2 * (MINUTES - 10)),
        bad(ended=10),
    ],
    "unscraped": [good()],
    "one-of-seven": [*[good(f"good-{number}") for number in range(6)], bad(model="m")],
    "undecided": [good(), pod("young", start=MINUTES - 4).drafting(10, 0.8).timed(0.95)],
    "evicted": [good(ended=10, forgotten=True), bad(ended=10, forgotten=True)],
    "to-zero": [
        good(),
        *[
            good(f"idle-{number}", model="zero", ended=10, forgotten=True, idle=True)
            for number in range(2)
        ],
    ],
    "ruled": [pod("ruled").drafting(10, 0.6)],
    "ruled-low": [
        pod("low").drafting(10, 0.3),
        pod("part").bucket("0", 9, 0.9).bucket("1+", 3, 0.3),
    ],
    "mixed": [good(), bad(speedup=1.1), plain(), plain("new", start=MINUTES - 1)],
    "held": [held("held")],
    "plain": [plain(), plain("other")],
    "many": [
        good(f"pod-{number}", model=f"model-{number}", start=MINUTES - 15) for number in range(14)
    ],
}


def more():
    """Alerts, and what the rules record of models."""
    won, lost = FLEETS["losing"]
    yield from firing(lost, "MixedWorkload", "info", 15, sign="temperatures")
    for each in (won, lost):
        yield from firing(each, "AcceptanceLowAtTemperature", "warning", 15, temperature="1+")
    yield from firing(lost, "SlowerThanPlain", "critical", 15)
    yield from firing(*FLEETS["ruled"], "BreakEven", "info", 15)
    target = {"cluster": "unscraped", "namespace": "prod", "job": "vllm", "instance": "new:9911"}
    yield sample("sidecar:specdec_unscraped:bool", target, 1)
    yield sample("fleet:specdec_runbooks:any", {"runbooks": "http://runbooks"}, 1)
    for fleet in ("losing", "ruled"):
        labels = {"cluster": fleet, "namespace": "prod", "model_name": "m"}
        yield sample("model:specdec_engine_acceptance:ratio", labels, 0.6)


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    yield from reading(PAGE, tmp_path_factory, FLEETS, more())


# Prometheus takes in 170 pods' hour.
pytestmark = [pytest.mark.servers, pytest.mark.slow]


@pytest.mark.parametrize(
    ("fleet", "title", "text", "color"),
    [
        ("losing", MODELS, "1 of 1", "red"),
        ("losing", LOSING_PODS, "1 of 2", "red"),
        ("losing", UP, "2 of 2", "green"),
        ("losing", ALERTS, "1 critical, 1 warning, 1 info", "red"),
        ("just-killed", LOSING_PODS, "1 of 2, 1 pod missing", "red"),
        ("just-killed", UP, "1 of 2", "red"),
        ("killed", MODELS, "0 of 1", PURPLE),
        ("killed", LOSING_PODS, "0 of 2, 1 pod missing", PURPLE),
        ("vllm-down", LOSING_PODS, "0 of 3, 2 pods missing", PURPLE),
        ("vllm-down", UP, "1 of 3", "red"),
        ("scaled-down", UP, "1 of 1", "green"),
        ("all-down", UP, "0 of 2", "red"),
        ("unscraped", UP, "1 of 2", "red"),
        ("unscraped", LOSING_PODS, "0 of 2, 1 pod missing", PURPLE),
        ("one-of-seven", MODELS, "0 of 1, 1 in part", "orange"),
        ("one-of-seven", LOSING_PODS, "1 of 7", "red"),
        ("evicted", UP, "0 of 2", PURPLE),
        ("to-zero", UP, "1 of 1", "green"),
        ("to-zero", MODELS, "0 of 1", "green"),
        ("ruled", MODELS, "0 of 1, 1 not measured", AMBER),
        ("ruled", LOSING_PODS, "0 of 1, 1 not measured", AMBER),
        ("ruled-low", MODELS, "0 of 1, 1 not measured", AMBER),
        ("ruled-low", LOSING_PODS, "0 of 2, 2 not measured", AMBER),
        ("ruled", ALERTS, "0 critical, 0 warning, 1 info", GREY),
        ("ruled", "Split by temperature", "0 of 1", "orange"),
        ("plain", MODELS, "0 of 1", GREY),
        ("plain", LOSING_PODS, "0 of 2", GREY),
        ("nowhere", LOSING_PODS, "0 of 0", PURPLE),
        ("nowhere", UP, "0 of 0", PURPLE),
    ],
)
def test_a_figure_says_x_of_y_and_is_green_only_if_all_is_known(read, fleet, title, text, color):
    """A pod that is missing is purple or red, never green."""
    [(said, _, ground)] = read(fleet, title)
    assert (said, ground) == (text, color)


@pytest.mark.parametrize(
    ("fleet", "states"),
    [
        ("losing", [("bad", "does not pay"), ("good", "pays")]),
        ("killed", [("bad", "sidecar down"), ("good", "pays")]),
        ("vllm-down", [("bad", "vLLM down"), ("good", "pays")]),
        ("scaled-down", [("good", "pays")]),
        ("all-down", [("bad", "sidecar down"), ("good", "vLLM down")]),
        ("evicted", [("bad", "gone"), ("good", "gone")]),
        ("to-zero", [("good", "pays")]),
        ("ruled", [("ruled", "medium acceptance, not measured")]),
        (
            "ruled-low",
            [("low", "low acceptance, not measured"), ("part", "low acceptance, not measured")],
        ),
        ("held", [("held", "undecided")]),
        (
            "mixed",
            [
                ("bad", "low acceptance, not measured"),
                ("good", "pays"),
                ("new", "too little data"),
                ("plain", "does not speculate"),
            ],
        ),
    ],
)
def test_each_pod_of_the_last_hour_has_a_row_worst_first(read, fleet, states):
    """Also one that is gone, unless it was idle or its deployment was scaled down."""
    rows = read(fleet, ROWS)
    assert [(row["Pod"], row["State"]) for row in rows if row.get("model_name")] == states


def test_a_pods_finding_is_said_in_words_with_the_remedy(read):
    found = {row["Pod"]: row.get("Finding: what to change") for row in read("losing", ROWS)}
    assert found == {
        "bad": "the last draft tokens cost more than they gain: lower num_speculative_tokens",
        "good": None,
    }


def test_a_pod_whose_vllm_was_never_up_has_a_row_without_a_model(read):
    [row] = [row for row in read("vllm-down", ROWS) if "model_name" not in row]
    assert (row["Pod"], row["State"]) == ("new", "vLLM down")


@pytest.mark.parametrize(
    ("fleet", "text"),
    [
        ("losing", "does not pay"),
        ("just-killed", "does not pay"),
        ("killed", "unknown: pod missing"),
        ("mixed", "low acceptance, not measured"),
        ("scaled-down", "pays"),
        ("all-down", "all pods down"),
        ("evicted", "unknown: pod missing"),
        ("to-zero", "pays"),
        ("ruled", "medium acceptance, not measured"),
        ("ruled-low", "low acceptance, not measured"),
        ("held", "undecided"),
        ("one-of-seven", "loses in part"),
    ],
)
def test_a_model_has_the_verdict_of_its_worst_pod_and_none_of_a_dead_one(read, fleet, text):
    """In the band over time and in the table alike."""
    [(_, band, _)] = read(fleet, BAND)
    [row] = read(fleet, "Models, worst first")
    assert (band, row["Worst"]) == (text, text)


@pytest.mark.parametrize(
    ("fleet", "verdict", "speedup"),
    [
        ("losing", "does not pay", 0.8),
        ("one-of-seven", "loses in part", 0.8),
        ("undecided", "pays", 1.3),
    ],
)
def test_a_models_speedup_is_of_the_pods_that_have_its_verdict(read, fleet, verdict, speedup):
    [row] = read(fleet, "Models, worst first")
    assert row["Worst"] == verdict
    assert min(pod["Speedup"] for pod in read(fleet, ROWS)) < 0.96
    assert row["Speedup"] == pytest.approx(speedup, abs=0.01)


@pytest.mark.parametrize("fleet", ["losing", "one-of-seven"])
def test_a_models_acceptance_is_of_the_pod_that_loses(read, fleet):
    """Averages over all pods would stand beside "does not pay" and say the contrary."""
    [row] = read(fleet, "Models, worst first")
    [pod] = [pod for pod in read(fleet, ROWS) if pod["State"] == "does not pay"]
    assert row["Acceptance"] < row["Break-even"]
    for name in ("Acceptance", "Break-even", "Speedup"):
        assert row[name] == pytest.approx(pod[name])


@pytest.mark.parametrize("fleet", ["held", "ruled"])
def test_a_model_without_a_verdict_or_a_baseline_has_its_acceptance_all_the_same(read, fleet):
    [row] = read(fleet, "Models, worst first")
    [pod] = read(fleet, ROWS)
    assert row["Acceptance"] == pytest.approx(pod["Acceptance"])


def test_a_pod_that_is_down_has_no_acceptance_rate_and_no_speedup(read):
    """Though its counters grew within the five minutes of a rate."""
    rows = {row["Pod"]: row for row in read("just-killed", ROWS)}
    assert {"Acceptance", "Speedup", "Break-even"} <= rows["good"].keys()
    assert not {"Acceptance", "Speedup", "Break-even"} & rows["bad"].keys()


def test_pods_whose_model_is_not_known_are_down_together(read):
    assert [
        (row.get("model_name"), row["Worst"], row["Down"]) for row in read("unscraped", WORST)
    ] == [
        (None, "all pods down", 1),
        ("m", "pays", 0),
    ]


def test_a_target_that_was_never_scraped_has_a_row(read):
    [row] = [row for row in read("unscraped", ROWS) if row["State"] != "pays"]
    assert (row["Pod"], row["State"]) == ("new:9911", "never scraped")


def test_the_worst_temperature_is_first_with_the_pods_that_lose(read):
    """By their number, and with the acceptance rate there."""
    first, *_ = read("losing", "Temperatures, worst first")
    assert (first["temperature"], first["Verdict"], first["Pods low"]) == (
        "1+",
        "low acceptance, not measured",
        1,
    )
    assert first["Acceptance"] == pytest.approx(0.2)


def test_acceptance_is_drawn_against_what_the_verdict_is_based_on(read):
    """0 is break-even as measured, else the rule of thumb; the legend says which."""
    by_model = "Acceptance above break-even, by model"
    by_pod = "Acceptance above break-even, across pods"

    lines = read("losing", by_pod, "lines")
    # Below 0: losses are not cut off.
    assert (lines["lowest"], lines["P50"], lines["pays above"]) == (-0.208, 0.015, 0)
    panel = next(panel for panel in PANELS if panel["title"] == by_pod)
    assert panel["fieldConfig"]["defaults"].get("min") is None

    losing = read("losing", by_model, "lines")["m prod losing, mean of its pods, measured"]
    assert losing == pytest.approx(0.015, abs=0.001)
    # 0.6 accepted: above the rule of thumb, which is what judged it.
    ruled = read("ruled", by_model, "lines")["m prod ruled, mean of its pods, by rule of thumb"]
    assert ruled == pytest.approx(0.1, abs=0.001)


def test_a_starting_pod_is_in_neither_group(read):
    [row] = read("mixed", "Pods with and without speculation, by model")
    assert (row["Pods with"], row["without"]) == (2, 1)


def test_lines_are_ten_at_most_and_none_is_without_a_number(read):
    """With fourteen models, a legend of all would hide the graph."""
    for panel in PANELS:
        answers = read("many", panel["title"], "answers")
        assert not [series for _, found in answers for series in found if math.isnan(series[1])], (
            panel["title"]
        )
        if panel["type"] == "timeseries":
            assert all(len(found) <= 10 for _, found in answers), panel["title"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["title"])
def test_a_table_has_twelve_columns_that_all_fit_on_the_screen(table):
    columns = {*table["transformations"][1]["options"]["renameByName"].values()}
    shown = [
        each
        for each in (properties(table, title) for title in columns)
        if not each.get("custom.hidden")
    ]
    assert len(shown) <= 12
    assert sum(each.get("custom.width", 150) for each in shown) <= table["gridPos"]["w"] / 24 * 1880


def test_eight_panels_are_open_and_the_rest_is_asked_for_by_a_click():
    """Whoever looks does not scroll; a collapsed row asks nothing of Prometheus."""
    assert len([panel for panel in PAGE["panels"] if panel["type"] != "row"]) == 8
    assert all(row["collapsed"] and row["panels"] for row in PAGE["panels"] if row["type"] == "row")
