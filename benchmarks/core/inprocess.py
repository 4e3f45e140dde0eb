"""Parse, cycle and render, timed in this process, side by side with prometheus_client."""

import statistics
import time
from collections.abc import Callable

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pages import later, real_page, with_engines
from benchmarks.table import Row
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.target_state import TargetState
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.snapshot import SnapshotReader
from sidecar.export.client import FamilyCollector
from sidecar.export.collector import ExportOptions, OwnCounts, export_families
from sidecar.export.families import Family
from sidecar.export.text import TextRenderer

_ROUNDS = 15


def timed(run: Callable[[], object], calls: int) -> float:
    """CPU seconds of one call, over ``calls`` of them."""
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def side_by_side(
    ours: Callable[[], object], theirs: Callable[[], object], calls: tuple[int, int]
) -> tuple[float, float]:
    """The medians of both, taken in turn so that a noisy machine is noisy for both."""
    pairs = [(timed(ours, calls[0]), timed(theirs, calls[1])) for _ in range(_ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def reader_for(page: bytes) -> Callable[[], object]:
    """Reading two pages in turn that differ in their numbers, as in steady state."""
    reader = PageReader(names.wanted(), PageLimits())
    bodies = [later(page, 1), later(page, 2)]
    turn = iter(range(10**9))
    reader.read(page)
    return lambda: reader.read(bodies[next(turn) % 2])


def parse_rows() -> list[Row]:
    """Parsing against prometheus_client, against ``split()``, and as the page grows."""
    page = real_page()
    text = page.decode()
    ours, theirs = side_by_side(reader_for(page), lambda: list(text_string_to_metric_families(text)), (300, 3))
    again, split = side_by_side(reader_for(page), page.split, (300, 300))
    large = with_engines(page, 8)
    eight, one = side_by_side(reader_for(large), reader_for(page), (100, 300))
    growth = (eight / one) / (len(large) / len(page))
    lines = page.count(b"\n")
    return [
        Row(
            f"parse {lines} lines: prometheus_client ÷ ours",
            f"{theirs * 1e6:.0f} ÷ {ours * 1e6:.0f} µs",
            theirs / ours,
            at_least=100,
        ),
        Row("parse: ours ÷ page.split()", f"{again * 1e6:.0f} ÷ {split * 1e6:.0f} µs", again / split, at_most=1.5),
        Row("parse 8 engines: time ratio ÷ size ratio", f"{eight * 1e6:.0f} ÷ {one * 1e6:.0f} µs", growth, at_most=1.2),
    ]


def state_of(page: bytes, engines: int, polls: int) -> TargetState:
    """A state that has seen ``polls`` polls of a page with that many engines."""
    state = TargetState("vllm", Lookback(), interval=1.0, max_engines=8)
    reader, snapshots = PageReader(names.wanted(), PageLimits()), SnapshotReader()
    for poll in range(polls):
        body = later(with_engines(page, engines), poll)
        state.scraped(float(poll), 0.002, 1.0, snapshots.read(reader.read(body)))
    return state


def families_of(state: TargetState, now: float) -> list[Family]:
    """What the state puts on the page."""
    return export_families([state.report(now)], OwnCounts(), ExportOptions())


def cycle_rows() -> list[Row]:
    """One poll's work without the network: parse, update, and a page of some 400 series."""
    page = real_page()
    shown, now = state_of(page, 4, 20), 19.0
    series = sum(len(family.values) for family in families_of(shown, now))
    state, poll = TargetState("vllm", Lookback(), interval=1.0, max_engines=8), iter(range(10**9))
    reader, snapshots = PageReader(names.wanted(), PageLimits()), SnapshotReader()
    bodies = [later(page, step) for step in range(400)]
    text = TextRenderer()

    def cycle() -> None:
        at = next(poll)
        state.scraped(float(at), 0.002, 1.0, snapshots.read(reader.read(bodies[at % len(bodies)])))
        text.render(families_of(shown, now))

    cost = statistics.median(timed(cycle, 20) for _ in range(_ROUNDS))
    return [
        Row(f"cycle: parse, update, render {series} series", f"{cost * 1e6:.0f} µs", cost * 1e3, at_most=1.0, unit="ms")
    ]


def render_rows() -> list[Row]:
    """Rendering against prometheus_client on the same families."""
    families = families_of(state_of(real_page(), 4, 20), 19.0)
    text, collector = TextRenderer(), FamilyCollector(families)
    if text.render(families) != generate_latest(collector):
        raise AssertionError("the two pages differ")
    ours, theirs = side_by_side(lambda: text.render(families), lambda: generate_latest(collector), (50, 5))
    series = sum(len(family.values) for family in families)
    return [
        Row(
            f"render {series} series: prometheus_client ÷ ours",
            f"{theirs * 1e6:.0f} ÷ {ours * 1e6:.0f} µs",
            theirs / ours,
            at_least=5,
        )
    ]
