"""What is declared, the contract that docs/metrics.md is, and how many series there can be."""

import math
import re
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import pytest
from prometheus_client import ProcessCollector, generate_latest

from scripts.metrics_reference import metrics_reference
from sidecar.analysis.advice import Direction, TokensAdvice
from sidecar.analysis.endings import EndingsReport
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.health import Ailment, HealthReport
from sidecar.analysis.engine.probes import ProbeReport
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.series import (
    OF_A_GROUP,
    OF_A_TEMPERATURE,
    OF_AN_ENGINE,
    OF_ITS_HISTOGRAMS,
    PLANNED,
    PROMISED,
)
from sidecar.analysis.speed.speedup import CONTEXT_LABELS, LoadReport
from sidecar.analysis.speed.steps import LOAD_LABELS
from sidecar.analysis.split.lives import Lives
from sidecar.analysis.split.tallies import MOST_ADAPTERS
from sidecar.analysis.state import State
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.merge import OTHER_ENGINES
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.probe import ProbeOutcome
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.export.declaration import ReportView
from sidecar.export.exporter import Families, families
from sidecar.export.metrics import METRICS
from sidecar.findings.catalog import BY_CODE, OF_REQUESTS
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.requests.keys import GROUPED
from sidecar.requests.messages import HelloState
from sidecar.requests.tally import Tally
from sidecar.settings.baselines import PlainCache, PlainLatency, PlainStepTimes
from sidecar.settings.groups import Limits
from tests.analysis.analysis_tools import PluginEnd, Server, snap
from tests.export import reports


def test_names_are_unique_and_none_is_a_histogram_s_series():
    """A series of two families would have two meanings."""
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    series = {
        f"{metric.name}_{suffix}" for metric in METRICS for suffix in ("bucket", "count", "sum")
    }
    assert not series & set(names)


DOCS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def test_names_types_labels_and_meanings_of_the_metrics_are_those_of_the_contract():
    """Rules, dashboards and users build on them."""
    assert metrics_reference(DOCS) == DOCS, (
        "`scripts/docs` updates docs/metrics.md; CHANGELOG.md lists what breaks"
    )


def test_the_page_of_metrics_states_the_series_budget():
    """Users plan their Prometheus by it."""
    assert f"at most {PROMISED:,} series" in DOCS.replace("\n", " ")


def test_every_reason_for_dropping_a_message_is_explained():
    """A counter with a reason that nobody explains helps nobody."""
    explained = re.findall(
        r"^\| `(\w+)` \| .+ \| .+ \|$", DOCS.partition("\n## Why messages")[2], re.MULTILINE
    )
    assert sorted(explained) == sorted(Lives(0.0, 0.98).report("").dropped)


LIMITS = Limits()
TEMPERATURES = ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+")
GROUPS = [(by, label) for by, declared in GROUPED.items() for label in declared.labels]
ADAPTERS = [("adapter", str(number)) for number in range(MOST_ADAPTERS)] + [("adapter", "other")]
DEEP = (1,) * 32


STEPS = PlainStepTimes(
    running=(1.0,),
    seconds=(0.02,),
    context=100.0,
    measured=datetime(2026, 11, 21, tzinfo=UTC),
)
BASELINE = {
    "plain_cache": PlainCache(hit_ratio=0.8, capacity_tokens=500_000, preemptions_ratio=0.0),
    "plain_steps": STEPS,
    "plain_latencies": {
        phase: PlainLatency(dict.fromkeys((0.5, 0.9, 0.95, 0.99), 1.0), is_exact=True)
        for phase in Phase
    },
}

# Settings that cost series, and so positions.
COSTLY = {
    "PLUGIN__ADAPTERS": "true",
    "BASELINE": '{"demo": {"ttft": {"p50": 0.1}}}',
    "PROBE__INTERVAL": "60s",
}
PROBED = ProbeReport(
    is_answered=True, seconds=0.04, outcomes=dict.fromkeys(map(str, ProbeOutcome), 0)
)


def full(engines):
    """Every label value at its limit, ``other`` included, and everything known."""
    loads = tuple(LoadReport(label, 1.0, 1.0, 1.0, 0.02) for label in LOAD_LABELS)
    reported = tuple(
        reports.engine(
            index=index, loads=loads, accepted_per_position=DEEP, gauges=dict.fromkeys(Gauge, 0.5),
            speed=reports.speed(), context_tokens=500.0,
            limitations=frozenset({Limitation.NO_REQUEST_TPOT, Limitation.SEVERAL_PROCESSES}),
        )
        for index in engines
    )  # fmt: skip
    temperatures = [
        reports.temperature(
            label, tally=Tally(drafted_at=DEEP, accepted_at=DEEP), speedup=reports.speedup(30, 20)
        )
        for label in TEMPERATURES
    ]
    groups = tuple(reports.group(by, name) for by, name in (*GROUPS, *ADAPTERS))
    contexts = dict.fromkeys(CONTEXT_LABELS, reports.speedup(30, 20))
    whole = reports.model(
        *temperatures,
        engines=reported,
        groups=groups,
        loads=loads,
        contexts=contexts,
        findings=(reports.STRUCTURED,),
        **BASELINE,
    )
    own = {
        "failures": dict.fromkeys(("vllm", "pause", "probe", "alerts", "settings"), 0),
        "reloads": {"applied": 0, "refused": 0},
        "http_refusals": dict.fromkeys("abcdefgh", 0),
        "alerts_sent": {("http://a", "sent"): 0, ("http://a", "failed"): 0},
        "label_overflow": dict.fromkeys(("engine", "position", "group"), 0),
    }
    other = reports.model(
        name="other", engines=(replace(reported[0], key=OTHER_ENGINES),), speed=None
    )
    report = replace(reports.report(whole, other, **own), health=working(reported), probe=PROBED)
    return reports.shown(report, ALERTING__RUNBOOKS="https://x", **COSTLY)


def working(engines):
    """Every engine works, as far as is watched by default."""
    return HealthReport({(*engine.key, Ailment.STALLED): False for engine in engines})


@pytest.mark.parametrize("engines", [1, 4, 5, 6, 7, LIMITS.engines])
def test_series_are_bounded(engines):
    """A pod stays within the budget with every label value that there can be."""
    collected = [
        *families(full(map(str, range(engines)))),
        *ProcessCollector(registry=None).collect(),
    ]
    samples = [sample for family in collected for sample in family.samples]
    assert 600 < len(samples) <= PLANNED
    assert len({(sample.name, tuple(sample.labels.items())) for sample in samples}) == len(samples)


def test_a_sample_has_a_value_for_each_label():
    """prometheus_client would leave out the last labels of one that has fewer."""
    shown = full("0")
    lengths = {
        metric.name: {len(values) for values, _ in metric.samples(shown)} for metric in METRICS
    }

    assert lengths == {metric.name: {len(metric.labels)} for metric in METRICS}


def test_a_probe_that_is_off_has_no_series_and_one_that_fails_is_0():
    """Nothing is known of it until one has ended."""
    names = ("specdec_probe_success", "specdec_probe_duration_seconds", "specdec_probes_total")
    whole = full("0").report
    off = replace(whole, probe=ProbeReport())
    assert [values(off, name) for name in names] == [{}, {}, {}]

    failed = replace(whole, probe=replace(PROBED, is_answered=False, seconds=None))
    assert [values(failed, name) for name in names[:2]] == [{(): 0.0}, {}]
    assert values(failed, names[2]) == {(outcome,): 0.0 for outcome in ProbeOutcome}


def test_a_group_has_as_many_series_as_are_planned_for_it():
    """``series.py`` counts them without knowing the metrics."""
    assert [*chain.from_iterable(metric.labels for metric in METRICS)].count("group") == OF_A_GROUP


@pytest.mark.parametrize(
    ("label", "value", "planned"),
    [
        ("engine", "0", OF_AN_ENGINE + OF_ITS_HISTOGRAMS),
        ("temperature", "0", OF_A_TEMPERATURE),
    ],
)
def test_an_engine_and_a_temperature_have_as_many_series_as_are_planned_for_each(
    label, value, planned
):
    """Without those by position, whose number follows from what is left."""
    samples = [sample for family in families(full("0")) for sample in family.samples]
    of_one = [
        sample
        for sample in samples
        if sample.labels.get(label) == value and "position" not in sample.labels
    ]

    assert len(of_one) == planned, "the number in sidecar/analysis/series.py"


def snapshot(key, poll):
    """An engine that exports all that there is, with growing counters."""
    readings = HistogramReading((0.1, 1.0, math.inf), (poll, 2.0 * poll, 3.0 * poll))
    counters = dict.fromkeys(Counter, 100.0 * poll) | {Counter.GENERATION_TOKENS: 300.0 * poll}
    gauges = dict.fromkeys(Gauge, 0.5)
    return EngineSnapshot(
        key, counters, (50.0 * poll,) * 40, gauges, dict.fromkeys(Phase, readings), 1000
    )


@pytest.mark.parametrize("pause", [60.0, 3600.0])
def test_series_are_bounded_over_a_whole_life(pause):
    """Forty generations of eight engines whose names never come again.

    They are an hour and a minute apart.
    """
    settings = reports.settings()
    state, at = State(settings, 0.0), 0.0
    for generation in range(40):
        keys = [EngineKey("demo", f"{generation}-{number}") for number in range(LIMITS.engines)]
        for poll in range(1, 4):
            at += 1.0
            page = PageSnapshot(tuple(snapshot(key, poll) for key in keys), None, 0)
            state.scraped(at, 0.002, 1.0, page)
        samples = [
            sample
            for family in families(ReportView(state.report(at), settings))
            for sample in family.samples
        ]
        assert 200 < len(samples) <= PROMISED
        at += pause


def test_plug_ins_of_engines_past_the_limit_are_one_series_with_the_worst_state():
    """Forty engines of three models had a series each, and with them 1,315 in all."""
    server = Server()
    keys = [EngineKey(f"m{number % 3}", str(number)) for number in range(40)]
    for number, key in enumerate(keys):
        state = HelloState.DISABLED if number == 38 else HelloState.OBSERVING
        PluginEnd(server, number + 1, engine=number, model=key.model_name, state=state, reason="x")
    server.poll(*(snap(key.engine, model=key.model_name) for key in keys))
    plugins = values(server.report(), "specdec_plugin_info")

    assert len(plugins) == LIMITS.engines + 1
    assert ("other", "0.1.0", "0.32.0", "disabled") in plugins


def test_where_no_position_is_within_the_limit_there_is_no_sum_of_them_either():
    """It would be of all positions, so a series that says nothing new."""
    name = "specdec_accepted_tokens_per_position_total"
    few, many = (full(map(str, range(engines))).report for engines in (4, LIMITS.engines))

    assert {"0", "1", "other"} <= {position for *_, position in values(few, name, **COSTLY)}
    assert values(many, name, **COSTLY) == {}


def test_every_metric_shows_when_everything_is_known():
    """One that never shows is declared for nothing, or reads the wrong field."""
    shown = full("0")
    seen = {
        family.name + ("_total" if family.type == "counter" else "") for family in families(shown)
    }
    assert {metric.name for metric in METRICS} <= seen


@pytest.mark.servers
def test_promtool_complains_of_nothing_but_the_quantile_label():
    """It keeps the label ``quantile`` for summaries.

    The quantiles of these could not be read as plain gauges are.
    """
    page = generate_latest(Families(families(full("0"))))
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert set(done.stderr.decode().splitlines()) == {
        f'specdec_{name} non-summary metrics should not have "quantile" label'
        for name in ("engine_latency_seconds", "latency_baseline_seconds")
    }


def values(report, name, **environment):
    shown = reports.shown(report, **environment)
    (metric,) = (metric for metric in METRICS if metric.name == name)
    return {labels: value for labels, value in metric.samples(shown)}  # noqa: C416 - a duplicate would be lost


def test_positions_past_the_bound_are_other():
    """So the sum over positions is that of all tokens, however deep the drafts are."""
    hot = reports.temperature("1+", tally=Tally(accepted_at=(9, 7, 5, 3), drafted_at=(9, 9, 9, 9)))
    report = reports.report(reports.model(hot))
    accepted = values(report, "specdec_accepted_tokens_per_position_total", LIMITS__POSITIONS="2")
    assert accepted == {("demo", "1+", "0"): 9, ("demo", "1+", "1"): 7, ("demo", "1+", "other"): 8}
    drafted = values(report, "specdec_draft_tokens_per_position_total", LIMITS__POSITIONS="4")
    assert drafted == {("demo", "1+", str(position)): 9 for position in range(4)}


def test_a_findings_rank_says_what_to_change_first_and_a_fact_has_none():
    """So that a dashboard shows the finding that matters, not an arbitrary one."""
    fewer = NumberOfTokens(
        code="too_many_tokens", tokens=TokensAdvice(direction=Direction.FEWER, now=3)
    )
    fact = replace(reports.STRUCTURED, is_advice=False)
    report = reports.report(reports.model(findings=(fewer, reports.STRUCTURED)))
    ranks = values(report, "specdec_finding_rank")
    held = values(reports.report(reports.model(findings=(fact,))), "specdec_finding")

    assert ranks == {("demo", "too_many_tokens"): 1, ("demo", "structured_output"): 2}
    assert not any(held.values())


def test_thresholds_and_links_are_those_of_the_settings():
    """Rules and alerts read them from here, not from a copy."""
    environment = {
        "THRESHOLDS__KV_CACHE_USAGE": "0.8",
        "ALERTING__DASHBOARDS": "https://grafana.example/",
    }
    report = reports.report(reports.model())
    assert values(report, "specdec_threshold", **environment)[("kv_cache_usage",)] == 0.8
    assert values(report, "specdec_links_info", **environment) == {
        ("", "https://grafana.example"): 1
    }


def test_baselines_are_of_the_two_quantiles_that_are_exported():
    """Each quantile costs a series for each phase."""
    plain = {"ttft": PlainLatency({0.5: 0.05, 0.95: 1.0, 0.99: 1.25})}
    report = reports.report(reports.model(plain_latencies=plain))
    baseline = {("demo", "ttft", "0.5"): 0.05, ("demo", "ttft", "0.99"): 1.25}
    assert values(report, "specdec_latency_baseline_seconds") == baseline


def test_a_gap_has_bounds_which_are_one_where_the_requests_own_times_tell():
    """A rule that compares them is certain; what has no upper bound has none here."""

    def bounds(measured, plain=None, name="specdec_engine_tpot_gap_bound_seconds"):
        engine = reports.engine(latencies={Phase.TPOT: measured})
        plain = {} if plain is None else {"tpot": plain}
        report = reports.report(reports.model(engines=(engine,), plain_latencies=plain))
        return {key[-1]: value for key, value in values(report, name).items()}

    exact = reports.latency(0.01)
    assert bounds(exact) == pytest.approx({"least": 0.04, "most": 0.04})
    one = reports.by_bucket(*[(0.01, 0.025)] * 4)
    assert bounds(one) == pytest.approx({"least": 0.0, "most": 0.015})
    assert bounds(reports.by_bucket(*[(5.0, math.inf)] * 4)) == {"least": 0.0}

    baseline = "specdec_tpot_baseline_gap_bound_seconds"
    plain = PlainLatency({0.5: 0.012, 0.99: 0.02})
    exactly = replace(plain, is_exact=True)
    edged = replace(one, edges=(0.01, 0.025, math.inf))
    assert bounds(one, plain, baseline) == {}  # without a histogram no bucket is known
    assert bounds(edged, plain, baseline) == pytest.approx({"least": 0.0, "most": 0.015})
    assert bounds(edged, exactly, baseline) == pytest.approx({"least": 0.008, "most": 0.008})


def test_acceptance_is_absent_below_the_gates():
    """A rate of too few requests is no rate: it is absent, not 0."""
    quiet = reports.judgement(Verdict.INSUFFICIENT_DATA, 0.3)
    report = reports.report(
        reports.model(reports.temperature("0", judgement=quiet), judgement=quiet)
    )
    assert (
        values(report, "specdec_acceptance_ratio")
        == values(report, "specdec_model_acceptance_ratio")
        == {}
    )


def test_findings_are_0_or_1_and_absent_where_nothing_is_speculating_or_the_poll_is_stale():
    """A 0 would say that nothing is wrong, which nobody knows then."""
    ended = EndingsReport(requests=100, shares={})
    known = reports.model(findings=(reports.STRUCTURED,), endings=ended)
    found = values(reports.report(known), "specdec_finding")
    assert found == {("demo", code): code == "structured_output" for code in BY_CODE}

    without_requests = reports.model(findings=(reports.STRUCTURED,), endings=None)
    found = values(reports.report(without_requests), "specdec_finding")
    unknown = OF_REQUESTS - {"structured_output"}
    assert set(found) == {("demo", code) for code in BY_CODE if code not in unknown}
    assert values(reports.report(reports.model(speed=None)), "specdec_finding") == {}


def test_a_v0_engine_exports_what_it_has_and_no_zeros():
    """vLLM's V0 engine counts little of what V1 does; what it lacks is unknown."""
    old = reports.engine(
        counters={Counter.GENERATION_TOKENS: 7.0}, accepted_per_position=(), gauges={},
        kv_cache_usages=reports.distribution((1.0,)), kv_cache_peak=None,
        kv_cache_capacity_tokens=None, latencies={}, acceptance=None,
        limitations=frozenset({Limitation.V0_COUNTERS}), speed=None, speculation=None,
        coverage=None, report_age=None, loads=(), judgement=Judgement(), cache=CacheWindow(),
    )  # fmt: skip
    shown = reports.shown(reports.report(reports.model(engines=(old,))))
    seen = {family.name for family in families(shown) if "engine" in family.samples[0].labels}
    assert seen - {"specdec_plugin_info"} == {
        "specdec_generation_tokens",
        "specdec_engine_limitation",
    }


def test_every_quantity_of_vllm_is_exported_or_left_out_on_purpose():
    """One that is added to names.py and forgotten here would be read and never exported."""
    # Others tell these.
    internal = {
        Counter.TTFT_SECONDS,
        Counter.PREFILL_SECONDS,
        Counter.PREFILLED,
        Counter.QUEUE_SECONDS,
        Gauge.AWAKE,
    }
    for place, quantity in enumerate([*Counter, *Gauge], start=1000):
        counters = {quantity: place} if quantity in Counter else {}
        gauges = {quantity: place} if quantity in Gauge else {}
        model = reports.model(engines=(reports.engine(counters=counters, gauges=gauges),))
        exported = families(reports.shown(reports.report(model)))
        is_exported = place in [sample.value for family in exported for sample in family.samples]
        assert is_exported == (quantity not in internal), quantity
    assert {
        labels[2]
        for labels in values(reports.report(reports.model()), "specdec_engine_latency_seconds")
    } == set(Phase)
