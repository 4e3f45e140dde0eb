"""The fleet's page: what a person reads of pods that lose, die, never start, or are many."""

import asyncio
import math
import time
from dataclasses import replace

import aiohttp
import pytest

from tests.dashboards.dashboard_tools import PAGES, panels
from tests.dashboards.fleet_scenes import Pod, series
from tests.dashboards.reading import Reader, backfill, properties
from tests.debian_servers import Prometheus, ready_server

PAGE = PAGES["specdec-fleet"]
PANELS = list(panels(PAGE))
TABLES = [panel for panel in PANELS if panel["type"] == "table"]
MODELS, LOSING_PODS, UP, ALERTS = "Models that do not pay", "Pods that do not pay", "Pods up", "Alerts"
BAND, ROWS = "Worst verdict by model: which, and since when", "Pods, worst first"
PURPLE, GREY = "#a352cc", "#6e7079"

GOOD = Pod("good")
BAD = Pod(
    "bad",
    temperatures={"0": (0.5, "net_positive"), "1+": (0.2, "net_negative")},
    verdict="net_negative",
    speedup=0.8,
    finding="greedy_drafting",
)
PLAIN = Pod("plain", temperatures={}, verdict="insufficient_data", speedup=None, drafts=0)


def alert(name, severity, pod="bad", **labels):
    given = {"alertname": name, "severity": severity, "model_name": "qwen", "pod": pod, "instance": f"{pod}:9911"}
    return {**given, **labels}, 900


FLEETS = {
    "losing": (
        [GOOD, BAD],
        [
            alert("MixedWorkload", "info", sign="temperatures"),
            alert("AcceptanceLowAtTemperature", "warning", temperature="1+"),
            alert("AcceptanceLowAtTemperature", "warning", "other", temperature="1+"),
            alert("SlowerThanPlain", "critical"),
        ],
    ),
    "just-killed": ([GOOD, replace(BAD, ends=60)], []),
    "killed": ([GOOD, replace(BAD, ends=300)], []),
    "vllm-down": ([GOOD, replace(BAD, vllm_ends=600), replace(BAD, name="new", vllm_ends=1815)], []),
    "scaled-down": ([GOOD, replace(GOOD, name="old", ends=600, target=False)], []),
    "ruled": (
        [Pod("ruled", temperatures={}, verdict="break_even", speedup=None)],
        [alert("BreakEven", "info", "ruled")],
    ),
    "mixed": (
        [GOOD, replace(BAD, verdict="net_positive", speedup=1.1), PLAIN, replace(PLAIN, name="new", starts=60)],
        [],
    ),
    "many": ([replace(GOOD, name=f"pod-{number}", model=f"model-{number}") for number in range(14)], []),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Reads with a method of ``Reader`` a panel of the page with a fleet selected."""
    folder, now = tmp_path_factory.mktemp("fleet"), int(time.time())
    backfill(folder, series(FLEETS, now))
    config = folder / "prometheus.yaml"
    config.write_text("{}")
    # A series in a block does not end; the short lookback stands for that.
    command = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'prometheus'}", "--query.lookback-delta=20s")
    with asyncio.Runner() as runner:
        http = runner.run(_session())
        server = ready_server(http, "prometheus", *command)
        prometheus = Prometheus(http, runner.run(server.__aenter__()))

        def reading(fleet, how, title):
            reader = Reader(PAGE, prometheus, now, cluster=fleet)
            return runner.run(getattr(reader, how)(title))

        yield reading
        runner.run(server.__aexit__(None, None, None))
        runner.run(http.close())


async def _session():
    return aiohttp.ClientSession()


pytestmark = pytest.mark.servers


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
        ("killed", LOSING_PODS, "0 of 1, 1 pod missing", PURPLE),
        ("vllm-down", LOSING_PODS, "0 of 1, 2 pods missing", PURPLE),
        ("vllm-down", UP, "1 of 3", "red"),
        ("scaled-down", UP, "1 of 2", PURPLE),
        ("ruled", LOSING_PODS, "0 of 1", "green"),
        ("ruled", ALERTS, "0 critical, 0 warning, 1 info", GREY),
        ("ruled", "Split by temperature", "0 of 1", "orange"),
        ("nowhere", LOSING_PODS, "0 of 0", PURPLE),
        ("nowhere", UP, "0 of 0", PURPLE),
    ],
)
def test_a_figure_says_x_of_y_and_is_green_only_if_all_is_known(read, fleet, title, text, color):
    [(said, _, ground)] = read(fleet, "shown", title)
    assert (said, ground) == (text, color)


@pytest.mark.parametrize(
    ("fleet", "states"),
    [
        ("losing", [("bad", "does not pay"), ("good", "pays")]),
        ("killed", [("bad", "sidecar down"), ("good", "pays")]),
        ("vllm-down", [("bad", "vLLM down"), ("good", "pays")]),
        ("scaled-down", [("old", "gone"), ("good", "pays")]),
        (
            "mixed",
            [("bad", "loses in part"), ("good", "pays"), ("new", "too little data"), ("plain", "no speculation")],
        ),
    ],
)
def test_each_pod_of_the_last_hour_has_a_row_worst_first(read, fleet, states):
    rows = read(fleet, "rows", ROWS)
    assert [(row["Pod"], row["State"]) for row in rows if row.get("model_name")] == states


def test_a_pods_finding_is_said_in_words_with_the_remedy(read):
    found = {row["Pod"]: row["Finding: what to change"] for row in read("losing", "rows", ROWS)}
    said = "hot requests reject the likeliest token: try draft_sample_method probabilistic"
    assert found == {
        "bad": said,
        "good": "the draft takes KV cache that requests need: more GPU memory, or a smaller draft",
    }


def test_a_pod_whose_vllm_was_never_up_has_a_row_without_a_model(read):
    [row] = [row for row in read("vllm-down", "rows", ROWS) if "model_name" not in row]
    assert (row["Pod"], row["State"]) == ("new", "vLLM down")


@pytest.mark.parametrize(
    ("fleet", "text"),
    [
        ("losing", "does not pay"),
        ("just-killed", "does not pay"),
        ("killed", "unknown: a pod is missing"),
        ("mixed", "loses in part"),
    ],
)
def test_a_model_has_the_verdict_of_its_worst_pod_and_none_of_a_dead_one(read, fleet, text):
    [(_, band, _)] = read(fleet, "shown", BAND)
    [row] = read(fleet, "rows", "Models, worst first")
    assert (band, row["Worst"]) == (text, text)


def test_alerts_are_counted_as_the_table_lists_them_critical_first(read):
    rows = read("losing", "rows", "Alerts firing")
    listed = [(row["Severity"], row["Alert"], row["Pods"]) for row in rows]
    assert listed == [
        ("critical", "SlowerThanPlain", 1),
        ("warning", "AcceptanceLowAtTemperature", 2),
        ("info", "MixedWorkload", 1),
    ]


def test_the_worst_temperature_is_first_with_the_pods_that_lose(read):
    first, *_ = read("losing", "rows", "Temperatures, worst first")
    assert (first["temperature"], first["Verdict"], first["Pods losing"]) == ("1+", "does not pay", 1)
    assert first["Acceptance"] == pytest.approx(0.2)


def test_acceptance_is_drawn_against_what_the_verdict_is_based_on(read):
    by_model, by_pod = "Acceptance above break-even, by model", "Acceptance above break-even, across pods"
    lines = read("losing", "lines", by_pod)
    assert (lines["lowest"], lines["P50"], lines["pays above"]) == (-0.05, 0.125, 0)  # below 0: losses are not cut off
    assert next(panel for panel in PANELS if panel["title"] == by_pod)["fieldConfig"]["defaults"].get("min") is None
    assert read("losing", "lines", by_model)["qwen llm losing, mean of its pods, measured"] == pytest.approx(
        0.125, abs=0.001
    )
    # 0.6 accepted: above the rule of thumb, which is what judged it.
    assert read("ruled", "lines", by_model)["qwen llm ruled, mean of its pods, by rule of thumb"] == pytest.approx(
        0.1, abs=0.001
    )


def test_a_starting_pod_is_in_neither_group(read):
    [row] = read("mixed", "rows", "Pods with and without speculation, by model")
    assert (row["Pods with"], row["without"]) == (2, 1)


def test_lines_are_ten_at_most_and_none_is_without_a_number(read):
    for panel in PANELS:
        answers = read("many", "answers", panel["title"])
        assert not [series for _, found in answers for series in found if math.isnan(series[1])], panel["title"]
        if panel["type"] == "timeseries":
            assert all(len(found) <= 10 for _, found in answers), panel["title"]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["title"])
def test_a_table_has_twelve_columns_that_all_fit_on_the_screen(table):
    columns = table["transformations"][1]["options"]["renameByName"].values()
    shown = [each for each in (properties(table, title) for title in columns) if not each.get("custom.hidden")]
    assert len(shown) <= 12
    assert sum(each.get("custom.width", 150) for each in shown) <= table["gridPos"]["w"] / 24 * 1880
