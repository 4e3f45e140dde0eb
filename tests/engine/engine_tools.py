"""Shorthand for snapshots, for tests of the engine package."""

import math
import re
from types import SimpleNamespace

import pytest

from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import read_lines
from sidecar.engine.names import Counter, Gauge, Phase, wanted
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, SnapshotReader
from sidecar.settings.groups import Limits

M = 'model_name="m"'
BUCKETS = ("0.1", "1.0", "+Inf")
NAME = "vllm:num_requests_running"
ENGINE = f'{M},engine="0"'
RUNNING = f"{NAME}{{{ENGINE}}} 1"
EDGES = (0.1, 1.0, math.inf)
PREFIXES = ("vllm:", "ray_vllm:", "ray_vllm_", "kserve_vllm:")
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


def page_reader(**limits):
    return PageReader(wanted(), Limits.model_construct(**limits))


def snapshot(body, **limits):
    """One page as a snapshot."""
    return SnapshotReader().read(page_reader(**limits).read(body))


def page(*lines):
    return snapshot("".join(f"{line}\n" for line in lines).encode())


def only(*lines):
    (engine,) = page(*lines).engines
    return engine


def ttft(*counts, labels=M, edges=BUCKETS):
    name = "vllm:time_to_first_token_seconds_bucket"
    return [f'{name}{{{labels},le="{edge}"}} {count}' for edge, count in zip(edges, counts, strict=True)]


def judged(body):
    """One page by the line reader alone."""
    lines = read_lines(body, wanted(), Limits().series)
    return SimpleNamespace(series=tuple(lines.samples), values=list(lines.samples.values()), malformed=lines.malformed)


def agrees(page, body):
    """Asserts that the page, however it was read, is what the line reader makes of its body."""
    expected = judged(body)
    assert page.series == expected.series
    assert list(map(repr, page.values)) == list(map(repr, expected.values))
    assert page.malformed == expected.malformed


def values(page):
    """A page's samples as {(name, labels): value}."""
    return {(series.name, series.labels): value for series, value in zip(page.series, page.values, strict=True)}


def with_prefix(body, prefix):
    """A page as Ray or KServe rewrites it: ``ray_vllm_`` names have no colon."""
    return re.sub(rb"(?m)^((?:# (?:TYPE|HELP) )?)vllm:", rb"\1" + prefix.encode(), body)


def expected_counters(version, multiproc, arch, truth):
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


def engine(counters=None, positions=(), ttft=None, *, edges=EDGES, gauges=None, capacity=None, traits=()):
    """Shorthand for an engine's snapshot."""
    histograms = {} if ttft is None else {Phase.TTFT: HistogramReading(edges, tuple(map(float, ttft)))}
    return EngineSnapshot(
        EngineKey("m", "0"), counters or {}, tuple(positions), gauges or {}, histograms, capacity, frozenset(traits)
    )
