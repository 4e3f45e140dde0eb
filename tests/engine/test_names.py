"""Every recorded page against the values that made it: each version's names and their meaning."""

import re

import pytest

from sidecar.engine.names import Trait
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import SnapshotReader
from tests.engine.engine_tools import (
    PREFIXES,
    expected_counters,
    expected_gauges,
    expected_phases,
    page_reader,
    snapshot,
    with_prefix,
)


def assert_true(body, known):
    page = snapshot(body)
    assert {engine.key for engine in page.engines} == {EngineKey(known["model_name"], e) for e in known["engines"]}
    for engine in page.engines:
        expected = known["engines"][engine.key.engine]
        assert engine.counters == expected_counters(known["version"], known["multiproc"], known["arch"], expected)
        positions = (expected["spec"] or {}).get("accepted_per_pos") or ()
        assert engine.accepted_per_position == tuple(positions)
        assert engine.gauges == pytest.approx(expected_gauges(known["version"], expected), abs=1e-6)
        assert {phase: h.count for phase, h in engine.histograms.items()} == expected_phases(known["version"], expected)
        assert (Trait.OVERCOUNTED in engine.traits) == (known["arch"] == "v0" and expected["spec"] is not None)
    return page


def test_page_gives_its_truth(page_name, recorded, truth):
    assert page_name in truth, "add the page's values to tests/data/pages/TRUTH.json"
    page = assert_true(recorded(page_name), truth[page_name])
    assert page.malformed == 0
    assert (page.process_start is None) == truth[page_name]["multiproc"]
    assert all((Trait.DIFFUSION in engine.traits) == ("diffusion" in page_name) for engine in page.engines)


@pytest.mark.parametrize("prefix", PREFIXES[1:])
def test_page_gives_its_truth_under_other_prefixes(prefix, page_name, recorded, truth):
    assert_true(with_prefix(recorded(page_name), prefix), truth[page_name])


def test_quantiles_lie_in_the_bucket_of_the_true_one(page_name, recorded, truth):
    """A histogram read under a wrong name or with mixed-up edges would put them elsewhere."""
    for engine in snapshot(recorded(page_name)).engines:
        expected = truth[page_name]["engines"][engine.key.engine]["histograms"]
        for phase, histogram in engine.histograms.items():
            if histogram.count == 0:
                continue
            within = next(i for i, edge in enumerate(histogram.edges) if expected[phase]["max"] <= edge)
            assert histogram.counts[within] == histogram.count
            assert within == 0 or histogram.counts[within - 1] < histogram.count
            below = [i for i, edge in enumerate(histogram.edges) if edge < expected[phase]["min"]]
            assert all(histogram.counts[i] == 0 for i in below)


def test_the_openmetrics_form_of_a_page_gives_the_same(recorded, truth):
    body = recorded("extra/vllm-0.6.6.post1-v0.openmetrics.txt")
    assert_true(body, truth["vllm-0.6.6.post1-v0.prom"])


def test_a_page_as_vllms_rust_front_end_writes_it_gives_the_same(recorded):
    """OpenMetrics: families without ``_total``, exemplars, an end mark; no settings of the cache, no process."""
    lines = [
        line
        for line in recorded("vllm-0.33.0.prom").decode().splitlines()
        if "cache_config_info" not in line and "process_" not in line and "_created" not in line
    ]
    text = "\n".join([*lines, "# EOF"]) + "\n"
    text = re.sub(r"(?m)^(# (?:TYPE|HELP) \S+)_total ", r"\1 ", text)
    text = re.sub(r"(?m)^(\S+_bucket\{.*\} \S+)$", r'\1 # {trace_id="ab12"} 0.5 1700000000.0', text)
    (ours,), (plain,) = (snapshot(body).engines for body in (text.encode(), recorded("vllm-0.33.0.prom")))
    assert (ours.counters, ours.accepted_per_position) == (plain.counters, plain.accepted_per_position)
    assert (ours.gauges, ours.histograms) == (plain.gauges, plain.histograms)
    assert ours.kv_cache_capacity_tokens is None


def test_one_reader_for_pages_of_all_versions(truth, recorded):
    """What was learned from one page must not leak into the next, such as after an upgrade of vLLM."""
    pages, snapshots = page_reader(), SnapshotReader()
    for name in (*sorted(truth), *sorted(truth, reverse=True)):
        for _ in range(10):
            last = snapshots.read(pages.read(recorded(name)))
        assert last == snapshot(recorded(name)), name
