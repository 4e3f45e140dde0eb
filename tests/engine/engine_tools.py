"""Shorthand for snapshots, for tests of the engine package."""

import math

from sidecar.engine.engine_key import EngineKey
from sidecar.engine.exposition import PageReader, read_lines
from sidecar.engine.names import Phase, wanted
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, SnapshotReader
from sidecar.settings.groups import Limits

M = 'model_name="m"'
BUCKETS = ("0.1", "1.0", "+Inf")
NAME = "vllm:num_requests_running"
ENGINE = f'{M},engine="0"'
RUNNING = f"{NAME}{{{ENGINE}}} 1"
EDGES = (0.1, 1.0, math.inf)


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
    return [
        f'{name}{{{labels},le="{edge}"}} {count}' for edge, count in zip(edges, counts, strict=True)
    ]


def judged(body):
    """One page by the line reader alone."""
    return read_lines(body, wanted(), Limits().series)[0]


def agrees(page, body):
    """Asserts that the page, however it was read, is what the line reader makes of its body."""
    expected = judged(body)
    assert page.series == expected.series
    assert list(map(repr, page.values)) == list(map(repr, expected.values))
    assert page.malformed == expected.malformed


def values(page):
    """A page's samples as {(name, labels): value}."""
    return {
        (series.name, series.labels): value
        for series, value in zip(page.series, page.values, strict=True)
    }


def engine(
    counters=None, positions=(), ttft=None, *, edges=EDGES, gauges=None, capacity=None, traits=()
):
    """Shorthand for an engine's snapshot."""
    histograms = (
        {} if ttft is None else {Phase.TTFT: HistogramReading(edges, tuple(map(float, ttft)))}
    )
    return EngineSnapshot(
        EngineKey("m", "0"),
        counters or {},
        tuple(positions),
        gauges or {},
        histograms,
        capacity,
        frozenset(traits),
    )
