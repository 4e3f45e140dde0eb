"""Every recorded page against the values that made it: each version's names and their meaning."""

import re
from dataclasses import replace

import pytest

from lab.rust_pages import MADE, rust_page
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import SPECULATION, Counter, Gauge, Phase, Trait
from sidecar.engine.snapshot import SnapshotReader
from tests.engine.engine_tools import page_reader, snapshot

RUST = frozenset(MADE.values())
COUNTERS = {
    Counter.GENERATION_TOKENS: "generation_tokens",
    Counter.PROMPT_TOKENS: "prompt_tokens",
    Counter.PREFIX_CACHE_QUERIES: "prefix_queries",
    Counter.PREFIX_CACHE_HITS: "prefix_hits",
    Counter.PREEMPTIONS: "preemptions",
}


def expected_counters(known, truth):
    """What TRUTH.json says of one engine's counters, if its version tells it."""
    histograms = truth["histograms"]
    expected = {
        counter: truth["counters"][name]
        for counter, name in COUNTERS.items()
        if name in truth["counters"]
    }
    if (known["version"], known["arch"]) == ("0.7.3", "v1"):  # it had no such counter
        expected.pop(Counter.PREEMPTIONS, None)
    if known["arch"] == "v1" and truth["spec"] is not None:
        expected |= {counter: truth["spec"][counter] for counter in SPECULATION}
    return expected | {
        Counter.FIRST_TOKENS: histograms["ttft"]["count"],
        Counter.TTFT_SECONDS: pytest.approx(histograms["ttft"]["sum"], abs=1e-5),
        Counter.PREFILLED: histograms["prefill"]["count"],
        Counter.PREFILL_SECONDS: pytest.approx(histograms["prefill"]["sum"], abs=1e-5),
        Counter.QUEUE_SECONDS: pytest.approx(histograms["queue"]["sum"], abs=1e-5),
    }


def assert_true(body, known):
    page = snapshot(body)
    version = tuple(map(int, known["version"].split(".")[:2]))
    assert {engine.key for engine in page.engines} == {
        EngineKey(known["model_name"], e) for e in known["engines"]
    }
    for engine in page.engines:
        truth = known["engines"][engine.key.engine]
        assert engine.counters == expected_counters(known, truth)
        assert engine.accepted_per_position == tuple(
            (truth["spec"] or {}).get("accepted_per_pos") or ()
        )
        running, waiting, usage = (
            truth["gauges"][name] for name in ("running", "waiting", "kv_usage")
        )
        gauges = {
            Gauge.REQUESTS_RUNNING: running,
            Gauge.REQUESTS_WAITING: waiting,
            Gauge.KV_CACHE_USAGE: usage,
        }
        if version >= (0, 20):  # one of each recorded page's waiting requests is deferred
            gauges[Gauge.WAITING_FOR_CAPACITY] = max(waiting - 1, 0)
        if b"engine_sleep_state" in body:  # from 0.11.2 on; no recorded engine sleeps
            gauges[Gauge.AWAKE] = 1
        assert engine.gauges.keys() == gauges.keys(), "names.py reads others than are expected here"
        assert engine.gauges == pytest.approx(gauges, abs=1e-6)
        phases = set(Phase) - ({Phase.TPOT} if version < (0, 11) else set())
        counts = {phase: truth["histograms"][phase]["count"] for phase in phases}
        assert {phase: histogram.count for phase, histogram in engine.histograms.items()} == counts
        assert (Trait.OVERCOUNTED in engine.traits) == (
            known["arch"] == "v0" and truth["spec"] is not None
        )
        assert engine.speculates == (truth["spec"] is not None)
        # 0.7.3 does not tell it; 0.9.2 with two engines tells that of the one whose metrics it does
        # not show.
        has_capacity = (
            version != (0, 7)
            and "engines_fed_but_not_exposed" not in known
            and known.get("frontend") != "rust"
        )
        assert (Trait.RUST_FRONTEND in engine.traits) == (known.get("frontend") == "rust")
        assert engine.kv_cache_capacity_tokens == (27648 * 16 if has_capacity else None)
    return page


def test_every_recorded_page_gives_the_values_that_made_it(page_name, recorded, truth):
    """From vLLM 0.6 on; the values are of the requests that were sent, not of our reading."""
    assert page_name in truth, "add the page's values to tests/data/pages/TRUTH.json"
    page = assert_true(recorded(page_name), truth[page_name])
    is_rust = truth[page_name].get("frontend") == "rust"
    assert page.malformed == 0
    assert (page.process_start is None) == (truth[page_name]["multiproc"] or is_rust)
    assert (page.is_sum, page.is_rust) == (truth[page_name]["multiproc"], is_rust)
    assert all(
        (Trait.DIFFUSION in engine.traits) == ("diffusion" in page_name) for engine in page.engines
    )


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "kserve_vllm:"])
def test_every_recorded_page_gives_the_same_under_the_prefixes_of_ray_and_kserve(
    prefix, page_name, recorded
):
    body = re.sub(
        rb"(?m)^((?:# (?:TYPE|HELP) )?)vllm:", rb"\1" + prefix.encode(), recorded(page_name)
    )
    if page_name in RUST:
        pytest.skip("neither Ray's agent nor KServe's passes on OpenMetrics")

    own = snapshot(recorded(page_name))
    if prefix.startswith("ray"):  # the start time is that of Ray's agent
        own = replace(own, process_start=None, shows_replicas=True)

    assert snapshot(body) == own


def test_histograms_have_their_observations_between_the_true_extremes(page_name, recorded, truth):
    """A histogram read under a wrong name or with mixed-up edges would put them elsewhere."""
    for engine in snapshot(recorded(page_name)).engines:
        expected = truth[page_name]["engines"][engine.key.engine]["histograms"]
        for phase, histogram in engine.histograms.items():
            if histogram.count == 0:
                continue
            within = next(
                i for i, edge in enumerate(histogram.edges) if expected[phase]["max"] <= edge
            )
            assert histogram.counts[within] == histogram.count
            assert within == 0 or histogram.counts[within - 1] < histogram.count
            below = [i for i, edge in enumerate(histogram.edges) if edge < expected[phase]["min"]]
            assert all(histogram.counts[i] == 0 for i in below)


def test_the_rust_frontend_s_pages_are_made_from_python_s_with_the_same_values(recorded):
    for source, made in MADE.items():
        assert rust_page(recorded(source).decode()) == recorded(made).decode(), (
            "run .venv/bin/python -m lab.rust_pages"
        )


def test_the_rust_frontend_s_zeros_do_not_say_that_vllm_speculates(recorded):
    """It creates the counters of drafts as soon as an engine connects, speculating or not."""
    body = recorded("vllm-0.33.0-rust-nospec.prom")
    (plain,) = snapshot(body).engines
    assert b"vllm:spec_decode_num_drafts_total" in body
    assert not plain.speculates
    assert not plain.counters.keys() & set(SPECULATION)

    drafted = body.replace(
        b'num_drafts_total{model_name="meta-llama/Llama-3.1-8B-Instruct",engine="0"} 0',
        b'num_drafts_total{model_name="meta-llama/Llama-3.1-8B-Instruct",engine="0"} 1',
    )
    (speculating,) = snapshot(drafted).engines
    assert speculating.counters.items() >= {Counter.DRAFTS: 1, Counter.ACCEPTED_TOKENS: 0}.items()


def test_zeros_on_python_s_page_mean_speculation(recorded):
    """There, vLLM creates them only if it is configured to speculate."""
    (idle,) = snapshot(recorded("vllm-0.33.0-idle.prom")).engines
    assert idle.speculates
    assert idle.counters[Counter.DRAFTS] == 0


def test_the_openmetrics_form_of_a_page_gives_the_same(recorded, truth):
    body = recorded("extra/vllm-0.6.6.post1-v0.openmetrics.txt")
    assert_true(body, truth["vllm-0.6.6.post1-v0.prom"])


def test_a_page_of_dynamos_worker_is_read_despite_its_additional_labels(recorded):
    """A real one (Dynamo 1.6.1, vLLM 0.32.0, the lab).

    The start is that of its counters, for lack of the process's.
    """
    page = snapshot(recorded("extra/dynamo-1.6.1.txt"))
    [engine] = page.engines
    assert (page.process_start, engine.key) == (pytest.approx(1.795490885e9), EngineKey("lab", "0"))
    # the plug-in's as well
    counted = {Counter.DRAFTS: 1163, Counter.DRAFT_TOKENS: 3489, Counter.ACCEPTED_TOKENS: 1800}
    assert engine.counters.items() >= counted.items()
    assert set(engine.histograms) == set(Phase)


def test_one_reader_reads_the_pages_of_all_versions(truth, recorded):
    """What was learned from one page must not leak into the next.

    Versions change, such as after an upgrade of vLLM.
    """
    pages, snapshots = page_reader(), SnapshotReader()
    for name in (*sorted(truth), *sorted(truth, reverse=True)):
        for _ in range(10):
            last = snapshots.read(pages.read(recorded(name)))
        assert last == snapshot(recorded(name)), name
