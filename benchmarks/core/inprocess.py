"""Parse, cycle and render, timed in this process, side by side with prometheus_client."""

import contextlib
import statistics
import time
from collections.abc import Callable

import structlog
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.core.pages import later, real_page, with_engines
from benchmarks.table import Row
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.request_state import RequestState
from sidecar.analysis.target_log import LoggedTarget
from sidecar.analysis.target_state import TargetState
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.snapshot import SnapshotReader
from sidecar.export.client import FamilyCollector
from sidecar.export.collector import ExportOptions, OwnCounts, export_families
from sidecar.export.exporter import Exporter
from sidecar.export.families import Family
from sidecar.export.text import TextRenderer
from sidecar.log import StateLog
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord, RequestStart

_ROUNDS = 15
_WARM_POLLS = 60
_REQUESTS_A_POLL = 10


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
    """The page made from the state."""
    return export_families([state.report(now)], OwnCounts(), ExportOptions())


def cycle_rows() -> list[Row]:
    """One poll and one page as the product does them: parse, update, attribute, judge, log, render, with requests.

    Beside it, what a sidecar based on prometheus_client would spend on parsing that page and rendering those families.
    """
    page = real_page()
    text = page.decode()
    product = Product(page)
    for _ in range(_WARM_POLLS):
        product.cycle()
    families = product.families()
    series = sum(len(family.values) for family in families)
    collector = FamilyCollector(families)

    def theirs() -> None:
        list(text_string_to_metric_families(text))
        generate_latest(collector)

    ours, reference = side_by_side(product.cycle, theirs, (20, 2))
    return [
        Row(
            f"cycle with {_REQUESTS_A_POLL} requests and {series} series: prometheus_client's parse and render ÷ ours",
            f"{reference * 1e6:.0f} ÷ {ours * 1e6:.0f} µs",
            reference / ours,
            at_least=4,
        )
    ]


class Product:
    """The path from vLLM's page and requests to our page, without the network; a poll a second in simulated time."""

    def __init__(self, page: bytes) -> None:
        log = structlog.get_logger()
        window = Lookback().latency
        self._requests = RequestState(
            "middleware", buckets=TemperatureBuckets(), options=AttributionOptions(), window=window
        )
        self._state = TargetState("vllm", Lookback(), interval=1.0, max_engines=8, requests=self._requests)
        self._sink = LoggedTarget(self._state, log, StateLog(log))
        self._reader, self._snapshots = PageReader(names.wanted(), PageLimits()), SnapshotReader()
        self._bodies = [later(page, step) for step in range(400)]
        self._polls = 0
        self._exporter = Exporter(lambda: (self.families(), {}))

    def families(self) -> list[Family]:
        """What is on the page now."""
        return export_families([self._state.report(float(self._polls))], OwnCounts(), ExportOptions())

    def cycle(self) -> None:
        """One poll and one page."""
        self._polls += 1
        for number in range(_REQUESTS_A_POLL):
            self._request(number)
        body = self._bodies[self._polls % len(self._bodies)]
        self._sink.scraped(float(self._polls), 0.002, 1.0, self._snapshots.read(self._reader.read(body)))
        with contextlib.suppress(StopIteration):
            self._exporter.render("", "").send(None)

    def _request(self, number: int) -> None:
        """A request that took four seconds; every other one has vLLM's own numbers."""
        name, end = f"{self._polls}-{number}", self._polls - number / _REQUESTS_A_POLL
        self._requests.started(RequestStart(name, end - 4.0))
        self._requests.finished(
            RequestRecord(
                id=name,
                path="/v1/chat/completions",
                model=None,
                temperature=(0.0, 0.2, 0.6, 1.0)[number % 4],
                choices=1,
                stream=True,
                start=end - 4.0,
                first_token=end - 3.8,
                end=end,
                outcome=Outcome.COMPLETED,
                completion_tokens=200,
                stream_events=90,
                acceptance=RequestAcceptance(90, 270, 110, (20, 40, 20, 10)) if number % 2 else None,
            )
        )


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
