"""Notes on the split by temperature, by source and by attribution outcome."""

import pytest

from sidecar.analysis.attribution.result import AttributionOutcome
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.analysis.request_stats import RequestStats
from sidecar.analysis.verdict import Evidence, Judge, ModelEvidence, VerdictThresholds
from sidecar.export.request_notes import request_notes
from sidecar.export.status import request_status

FLAGS = "--per-request-spec-decode-metrics"


def report(source="proxy", coverage=None, **ended):
    found = dict.fromkeys(AttributionOutcome, 0) | {AttributionOutcome(kind): count for kind, count in ended.items()}
    model = ModelRequests(
        model_name="m",
        stats=RequestStats((), 60.0),
        recent={},
        coverage=coverage,
        residual=None,
        attribution_outcomes=found,
    )
    return RequestReport(source, 1, {}, {}, (model,))


def judged(coverage=None, **_):
    evidence = ModelEvidence(model_name="m", whole=Evidence(), temperatures={}, coverage=coverage)
    return Judge(VerdictThresholds(coverage=0.8)).judge([evidence])


def notes(**given):
    return list(request_notes(report(**given), judged(**given)))


def test_streams_without_usage_are_reported_with_what_helps():
    (note,) = notes(without_usage=900, unfinished=24)
    assert note.startswith("900 of the 924 finished requests in the window were streams without usage")
    assert "`SPECDEC_REQUESTS__ASK_USAGE=true`" in note
    assert "include_usage" in note
    assert FLAGS not in note
    assert notes(without_usage=9)[0].startswith("All 9 finished requests in the window")


@pytest.mark.parametrize("source", ["proxy", "middleware"])
def test_what_is_inferred_may_be_exact(source):
    (note,) = notes(source=source, inferred=5)
    assert FLAGS in note
    assert notes(source=source, unknown=5) == [note]
    assert notes(source=source, inferred=5, exact=1) == []
    assert notes(source=source) == []


def test_no_flag_makes_traces_exact():
    (note,) = notes(source="traces", inferred=5)
    assert "--" not in note
    assert "`middleware` or `proxy`" in note


@pytest.mark.parametrize(
    ("source", "cause"), [("proxy", "own port"), ("middleware", "every API server"), ("traces", "a sample")]
)
def test_low_coverage_is_told_of_with_its_likely_cause(source, cause):
    note = notes(source=source, coverage=0.05, exact=5)[0]
    assert note.startswith("Only 5% of m's draft tokens")
    assert cause in note
    assert not any("Only" in one for one in notes(source=source, coverage=0.8, exact=5))


def test_streams_without_usage_are_cause_enough_for_low_coverage():
    first, second = notes(coverage=0.05, exact=5, without_usage=95)
    assert "streams without usage" in first
    assert second.endswith("only for that part.")


def test_the_status_counts_them():
    found = request_status(report(exact=3, inferred=2, without_usage=5), (), {})
    assert (found["ended"], found["attributed"], len(found["notes"])) == (10, 5, 1)
    assert found["models"][0]["ended"] == {
        "exact": 3,
        "inferred": 2,
        "without_usage": 5,
        "unfinished": 0,
        "unknown": 0,
    }
