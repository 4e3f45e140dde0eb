"""Parse, cycle and render, timed in this process, side by side with prometheus_client."""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pages import later, real_page, with_engines
from benchmarks.core.product import Product
from benchmarks.table import Row
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.export.declaration import ReportView
from sidecar.export.exporter import Families, families
from sidecar.settings.groups import Limits

_ROUNDS = 15
_WARM_POLLS = 60
_POLLS = 20  # per round


def timed(run: Callable[[], object], calls: int) -> float:
    """CPU seconds per call, averaged over ``calls`` calls."""
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def side_by_side(
    ours: Callable[[], object], theirs: Callable[[], object], calls: tuple[int, int]
) -> tuple[float, float]:
    """The medians of both, measured alternately so that a noisy machine affects both."""
    pairs = [(timed(ours, calls[0]), timed(theirs, calls[1])) for _ in range(_ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(
        pair[1] for pair in pairs
    )


def reader_for(page: bytes) -> Callable[[], object]:
    """A call that reads two pages in turn.

    They differ only in their numbers, as in steady state.
    """
    reader = PageReader(names.wanted(), Limits())
    bodies = [later(page, 1), later(page, 2)]
    turn = iter(range(10**9))
    reader.read(page)
    return lambda: reader.read(bodies[next(turn) % 2])


def parse_rows() -> Iterator[Row]:
    """Parsing compared with prometheus_client."""
    page = real_page()
    ours, theirs = side_by_side(reader_for(page), partial(_parsed, page.decode()), (300, 3))
    what, lines = f"{theirs * 1e6:.0f} ÷ {ours * 1e6:.0f} µs", page.count(b"\n")
    yield Row(f"parse {lines} lines: prometheus_client ÷ ours", what, theirs / ours, at_least=100)


def cycle_rows() -> Iterator[Row]:
    """A whole poll as the sidecar does it: parse, take in the plug-in's messages, judge, log.

    Compared with what a sidecar based on prometheus_client would spend on parsing that page alone.
    """
    for engines in (1, 8):
        page = with_engines(real_page(), engines)
        product = Product(page)
        bodies = iter(product.bodies(_WARM_POLLS + _ROUNDS * _POLLS))
        for _ in range(_WARM_POLLS):
            product.poll(next(bodies))
        assert product.shown()
        ours, parse = side_by_side(
            partial(_poll, product, bodies), partial(_parsed, page.decode()), (_POLLS, 1)
        )
        what = f"a poll of {engines} engine(s): prometheus_client's parse ÷ ours"
        yield Row(what, f"{parse * 1e6:.0f} ÷ {ours * 1e6:.0f} µs", parse / ours, at_least=4)


def _poll(product: Product, bodies: Iterator[bytes]) -> None:
    product.poll(next(bodies))


def _parsed(text: str) -> object:
    return list(text_string_to_metric_families(text))


def _rendered(shown: ReportView) -> bytes:
    return generate_latest(Families(families(shown)))


def render_rows() -> Iterator[Row]:
    """Our page from the report tree, compared with only rendering its families.

    prometheus_client renders both.
    """
    for engines in (1, 8):
        product = Product(with_engines(real_page(), engines))
        for body in product.bodies(_WARM_POLLS):
            product.poll(body)
        shown = product.shown()
        ready = Families(families(shown))
        series = sum(len(family.samples) for family in ready.collect())
        whole, rendering = side_by_side(
            partial(_rendered, shown), partial(generate_latest, ready), (10, 10)
        )
        measured = f"{whole * 1e3:.2f} ÷ {rendering * 1e3:.2f} ms"
        what = f"/metrics of {engines} engine(s), {series} series: tree to text ÷ text alone"
        yield Row(what, measured, whole / rendering, at_most=1.7)
