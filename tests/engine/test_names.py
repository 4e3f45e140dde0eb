"""Every recorded page against the values that made it: each version's names and their meaning."""

import re

import pytest

from sidecar.engine.names import Counter, Gauge, Phase, Trait
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import SnapshotReader
from tests.engine.engine_tools import page_reader, snapshot

COUNTERS = {
    Counter.GENERATION_TOKENS: "generation_tokens",
    Counter.PROMPT_TOKENS: "prompt_tokens",
    Counter.PREFIX_CACHE_QUERIES: "prefix_queries",
    Counter.PREFIX_CACHE_HITS: "prefix_hits",
}
SPECULATION = {
    Counter.DRAFTS: "drafts",
    Counter.DRAFT_TOKENS: "draft_tokens",
    Counter.ACCEPTED_TOKENS: "accepted_tokens",
}


def with_prefix(body, prefix):
    """A page as Ray or KServe rewrites it: ``ray_vllm_`` names have no colon."""
    return re.sub(rb"(?m)^((?:# (?:TYPE|HELP) )?)vllm:", rb"\1" + prefix.encode(), body)


def expected_counters(version, arch, truth):
    """What TRUTH.json says of one engine's counters, for a version that tells it."""
    known = {counter: truth["counters"].get(name) for counter, name in COUNTERS.items()}
    histograms = truth["histograms"]
    known[Counter.STEPS] = histograms["iteration_tokens"]["count"]
    known[Counter.DECODE_STEPS] = histograms["itl"]["count"]
    known[Counter.DECODE_SECONDS] = pytest.approx(histograms["itl"]["sum"], abs=1e-5)
    known[Counter.FIRST_TOKENS] = histograms["ttft"]["count"]
    # 0.7.3's V1 engine had no such counter.
    known[Counter.PREEMPTIONS] = None if (version, arch) == ("0.7.3", "v1") else truth["counters"].get("preemptions")
    if arch == "v1" and truth["spec"] is not None:
        known |= {counter: truth["spec"][name] for counter, name in SPECULATION.items()}
    return {counter: value for counter, value in known.items() if value is not None}


def expected_gauges(version, truth):
    gauges = truth["gauges"]
    known = {
        Gauge.REQUESTS_RUNNING: gauges["running"],
        Gauge.REQUESTS_WAITING: gauges["waiting"],
        Gauge.KV_CACHE_USAGE: gauges["kv_usage"],
    }
    if tuple(map(int, version.split(".")[:2])) >= (0, 20):  # one of each recorded page's waiting requests is deferred
        known[Gauge.WAITING_FOR_CAPACITY] = max(gauges["waiting"] - 1, 0)
    return known


def expected_phases(version, truth):
    """Observations by phase; per-request TPOT exists from 0.11 on."""
    has_tpot = tuple(map(int, version.split(".")[:2])) >= (0, 11)
    phases = [phase for phase in Phase if phase is not Phase.TPOT or has_tpot]
    return {phase: truth["histograms"][phase]["count"] for phase in phases}


def assert_true(body, known):
    page = snapshot(body)
    assert {engine.key for engine in page.engines} == {EngineKey(known["model_name"], e) for e in known["engines"]}
    for engine in page.engines:
        expected = known["engines"][engine.key.engine]
        assert engine.counters == expected_counters(known["version"], known["arch"], expected)
        positions = (expected["spec"] or {}).get("accepted_per_pos") or ()
        assert engine.accepted_per_position == tuple(positions)
        assert engine.gauges == pytest.approx(expected_gauges(known["version"], expected), abs=1e-6)
        assert {phase: h.count for phase, h in engine.histograms.items()} == expected_phases(known["version"], expected)
        assert (Trait.OVERCOUNTED in engine.traits) == (known["arch"] == "v0" and expected["spec"] is not None)
        assert engine.speculates == (expected["spec"] is not None)
    return page


def test_every_recorded_page_gives_the_values_that_made_it(page_name, recorded, truth):
    assert page_name in truth, "add the page's values to tests/data/pages/TRUTH.json"
    page = assert_true(recorded(page_name), truth[page_name])
    assert page.malformed == 0
    assert (page.process_start is None) == truth[page_name]["multiproc"]
    assert all((Trait.DIFFUSION in engine.traits) == ("diffusion" in page_name) for engine in page.engines)


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "kserve_vllm:"])
def test_every_recorded_page_gives_the_same_under_other_prefixes(prefix, page_name, recorded, truth):
    assert_true(with_prefix(recorded(page_name), prefix), truth[page_name])


def test_histograms_have_their_observations_between_the_true_extremes(page_name, recorded, truth):
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


def test_a_page_of_dynamos_worker_is_read_despite_its_additional_labels(recorded):
    """A real one (Dynamo 1.6.1, vLLM 0.32.0, the lab): the start is that of its counters, for lack of the process's."""
    page = snapshot(recorded("extra/dynamo-1.6.1.txt"))
    [engine] = page.engines
    assert (page.process_start, engine.key) == (pytest.approx(1.795490885e9), EngineKey("lab", "0"))
    counted = {Counter.DRAFTS: 1163, Counter.DRAFT_TOKENS: 3489, Counter.ACCEPTED_TOKENS: 1800}  # the plug-in's as well
    assert engine.counters.items() >= counted.items()
    assert set(engine.histograms) == set(Phase)


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


def test_one_reader_reads_the_pages_of_all_versions(truth, recorded):
    """What was learned from one page must not leak into the next, such as after an upgrade of vLLM."""
    pages, snapshots = page_reader(), SnapshotReader()
    for name in (*sorted(truth), *sorted(truth, reverse=True)):
        for _ in range(10):
            last = snapshots.read(pages.read(recorded(name)))
        assert last == snapshot(recorded(name)), name
