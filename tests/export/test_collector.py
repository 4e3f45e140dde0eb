"""The page itself: names, types, labels, help and numbers, as users and rules rely on them."""

from pathlib import Path

import pytest

from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.errors import ScrapeError, TimedOut
from sidecar.export import metrics
from sidecar.export.collector import COUNTERS, GAUGES, ExportOptions, OwnCounts, export_families
from sidecar.export.metrics import Kind, Metric
from sidecar.export.text import TextRenderer

CONTRACT = Path(__file__).parent.parent / "contract" / "metrics.txt"
GOLDEN = Path(__file__).parent / "two_engines.prom"
NOW = 1_700_000_003.5


def all_metrics():
    return [value for value in vars(metrics).values() if isinstance(value, Metric)]


def compared(path, text, *, update):
    if update:
        path.write_text(text)
    assert text == path.read_text(), "if intended, run pytest --update-golden and add it to CHANGELOG.md"


def rendered(state, options, now=NOW):
    # The build's own labels differ from one Python to the next.
    families = [
        f
        for f in export_families([state.report(now)], OwnCounts(failures={"west": 0}), options)
        if f.metric is not metrics.BUILD_INFO
    ]
    return TextRenderer().render(families).decode()


def test_metrics_are_the_contract(update_golden):
    lines = sorted(f"{m.name} {m.kind} {','.join(m.labels) or '-'} {m.help}" for m in all_metrics())
    compared(CONTRACT, "\n".join(lines) + "\n", update=update_golden)


def test_names_follow_the_rules():
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names))
    for metric in all_metrics():
        assert metric.name.startswith("specdec_")
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.help.endswith(".")
        assert "\n" not in metric.help
        assert ("quantile" in metric.labels) == (metric.kind is Kind.SUMMARY)
        assert "le" not in metric.labels


def test_page_of_two_engines(state, export_options, update_golden):
    compared(GOLDEN, rendered(state, export_options), update=update_golden)


def test_page_has_the_labels_of_the_contract(state, export_options):
    for family in export_families([state.report(NOW)], OwnCounts(failures={"west": 0}), export_options):
        assert family.label_names == family.metric.labels
        row = len(family.edges) + 3 if family.edges else 1
        assert len(family.values) == row * len(family.labels)
        assert all(len(labels) == len(family.label_names) for labels in family.labels)
        assert len(family.labels) == len(set(family.labels))


def values(state, options, samples_of, now=NOW):
    return samples_of(rendered(state, options, now))


def names_of(found):
    return {name for name, _ in found}


DERIVED = {
    "specdec_kv_cache_usage_ratio", "specdec_kv_cache_usage_peak_ratio", "specdec_kv_cache_capacity_tokens",
    "specdec_requests_running", "specdec_requests_waiting", "specdec_engine_latency_seconds",
    "specdec_engine_latency_gap_seconds", "specdec_engine_latency_gap_ratio", "specdec_engine_limitation",
    "specdec_engine_lifetime_acceptance_ratio", "specdec_scrape_duration_seconds", "specdec_vllm_info",
}  # fmt: skip


@pytest.mark.parametrize("how", ["failed", "stale"])
def test_gauges_go_with_vllm_and_counters_stay(how, state, export_options, samples_of):
    before = values(state, export_options, samples_of)
    assert names_of(before) >= DERIVED
    assert before["specdec_up", frozenset()] == 1
    now = NOW
    if how == "failed":
        state.failed(NOW, TimedOut("x"))
    else:
        now = 1_700_000_003.0 + 2.001
    after = values(state, export_options, samples_of, now)
    assert after["specdec_up", frozenset()] == 0
    assert names_of(before) - names_of(after) == DERIVED
    changed = {key for key in after if after[key] != before[key]} - {("specdec_up", frozenset())}
    errors = {("specdec_scrape_errors_total", frozenset({("reason", "timeout")}))}
    assert changed == (errors if how == "failed" else set())


def test_what_is_not_known_is_absent(state, export_options, samples_of):
    """The V0 engine has no speculation counters, no latency, no capacity: not 0 either."""
    found = {name for name, labels in values(state, export_options, samples_of) if ("model_name", "old") in labels}
    assert {name for name in found if "sampled" not in name} == {
        "specdec_generation_tokens_total",
        "specdec_prompt_tokens_total",
        "specdec_engine_lifetime_acceptance_ratio",
        "specdec_engine_limitation",
    }


def test_every_reason_of_a_failed_poll_is_there_from_the_start(state, samples_of):
    def reasons(error):
        yield error.reason
        for one in error.__subclasses__():
            yield from reasons(one)

    from sidecar.analysis.engine_state import Lookback
    from sidecar.analysis.target_state import TargetState

    fresh = TargetState("t", Lookback(), interval=1.0, max_engines=8)
    found = values(fresh, ExportOptions(), samples_of)
    shown = {dict(labels)["reason"]: value for (name, labels), value in found.items() if "scrape_errors" in name}
    assert set(shown) == set(reasons(ScrapeError)) - {"scrape", "page"}
    assert set(shown.values()) == {0.0}
    assert found["specdec_up", frozenset()] == 0


def test_positions_past_the_bound_are_other(state, export_options, samples_of):
    found = values(state, export_options, samples_of)
    positions = {
        dict(labels)["position"]: value
        for (name, labels), value in found.items()
        if name == "specdec_engine_accepted_tokens_per_position_total"
    }
    assert positions == {"0": 270, "1": 180, "other": 90}
    assert found["specdec_label_overflow_total", frozenset({("label", "position")})] > 0


def test_label_overflow_never_falls(state, export_options, samples_of):
    """It is a counter: it must not go back to 0 when vLLM is down or an engine leaves."""
    key = ("specdec_label_overflow_total", frozenset({("label", "position")}))
    before = values(state, export_options, samples_of)[key]
    state.failed(NOW, TimedOut("x"))
    assert values(state, export_options, samples_of)[key] >= before


def test_targets_are_told_apart(state, export_options, samples_of):
    options = ExportOptions(per_target=True)
    families = export_families([state.report(NOW)], OwnCounts(), options)
    text = TextRenderer().render(families).decode()
    found = samples_of(text)
    assert ("specdec_up", frozenset({("target", "west")})) in found
    general = {
        "specdec_build_info",
        "specdec_links_info",
        "specdec_threshold",
        "specdec_internal_errors_total",
        "specdec_http_refused_total",
    }
    assert all(("target", "west") in labels for name, labels in found if name not in general)


def test_every_quantity_is_exported_or_left_out_on_purpose(state, export_options):
    """A quantity that is added to names.py but forgotten here would be read and never exported."""
    internal = {Counter.STEPS, Counter.DECODE_SECONDS, Counter.DECODE_STEPS}
    assert set(Counter) - set(COUNTERS) == internal  # attribution and speedup read these
    assert set(GAUGES) == set(Gauge)
    (latencies,) = (
        f
        for f in export_families([state.report(NOW)], OwnCounts(), export_options)
        if f.metric is metrics.ENGINE_LATENCY
    )
    assert {labels[2] for labels in latencies.labels} == set(Phase)


def test_latency_is_over_the_window(state, export_options, samples_of):
    """Between the first and the last poll: twice (1, 5, 9, 10, 10)."""
    found = {
        dict(labels)["quantile"]: value
        for (name, labels), value in values(state, export_options, samples_of).items()
        if name == "specdec_engine_latency_seconds" and ("phase", "tpot") in labels
    }
    assert found == pytest.approx({"0.5": 0.1, "0.9": 1.0, "0.95": 5.5, "0.99": 9.1})
