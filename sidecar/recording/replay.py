"""Replays a recording through the live attribution: the same code, event by event in chronological order."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from sidecar.analysis.attribution.attributors import Attributors, Settled
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.plain_decoding import PlainDecoding
from sidecar.analysis.request_window import SlidingRequests, SpeculationSummary
from sidecar.analysis.speed_state import ModelSpeed, SpeedOptions, SpeedState
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.continuation import Continuation
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot
from sidecar.engine.timeline import Timeline
from sidecar.recording.recording import Scrape, read_requests, read_scrapes
from sidecar.requests.record import RequestRecord, RequestStart

_HISTORY: Final = 3600.0  # seconds
_STRETCH: Final = 5.0  # seconds: the speedup's error comes from the differences between such parts

_Event = Scrape | RequestStart | RequestRecord
_Timed = tuple[float, int, _Event]  # time, then the order of simultaneous events


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """``coverage``: attributed / counted draft tokens, from the first poll to the last; ``residual``: the live one.

    ``speed`` is over the whole recording; None if it shows no model that speculates, or several.
    """

    temperatures: Mapping[str, SpeculationSummary]
    coverage: float | None
    residual: float | None
    requests: Sequence[AttributedRequest]
    speed: ModelSpeed | None = None

    @property
    def speedup(self) -> float | None:
        """Plain time per token / actual, for everything decoded; None if unknown."""
        return self.speed.whole.speedup.ratio if self.speed and self.speed.whole.speedup else None

    def speedup_at(self, temperature: str) -> float | None:
        """The same for one temperature."""
        found = self.speed.temperatures.get(temperature) if self.speed else None
        return found.speedup.ratio if found and found.speedup else None

    def as_json(self) -> dict[str, Any]:
        """The result without the single requests, as plain JSON values."""
        temperatures = {
            label: {
                "attribution": bucket.attribution or Attribution.NONE,
                "requests": bucket.requests,
                "draft_tokens": round(bucket.draft_tokens),
                "accepted_tokens": round(bucket.accepted_tokens),
                "acceptance": bucket.acceptance,
                "p10": bucket.p10,
                "p50": bucket.p50,
                "p90": bucket.p90,
                "speedup": self.speedup_at(label),
            }
            for label, bucket in self.temperatures.items()
        }
        return {
            "temperatures": temperatures,
            "coverage": self.coverage,
            "residual": self.residual,
            "speedup": self.speedup,
            "break_even_acceptance": self.speed.whole.break_even_acceptance if self.speed else None,
            "reference": self.speed.reference if self.speed else None,
            "withheld": self.speed.whole.withheld if self.speed else None,
        }


def replay(
    directory: Path,
    *,
    infer: bool,
    buckets: TemperatureBuckets | None = None,
    curves: Mapping[str, PlainCurve] | None = None,
) -> ReplayResult:
    """Replays a recording; ``infer``: without vLLM's own numbers for each request.

    ``curves`` are measured plain step times by model name.

    Raises:
        RecordingError: the recording is unusable.
    """
    scrapes, records = read_scrapes(directory), list(read_requests(directory))
    return replay_events(scrapes, records, infer=infer, buckets=buckets or TemperatureBuckets(), curves=curves)


def replay_events(
    scrapes: Iterable[Scrape],
    records: Sequence[RequestRecord],
    *,
    infer: bool,
    buckets: TemperatureBuckets,
    curves: Mapping[str, PlainCurve] | None = None,
) -> ReplayResult:
    """The same for polls and requests from any origin; the polls are in chronological order."""
    player = _Player(buckets, infer=infer, curves=curves or {})
    for event in _in_order(scrapes, records):
        player.play(event)
    return player.result()


def plain_curves(scrapes: Iterable[Scrape]) -> dict[str, PlainCurve]:
    """Plain step times by load and model, from the polls of an engine that does not speculate."""
    decoding = PlainDecoding()
    for scrape in scrapes:
        if scrape.snapshot is not None:
            decoding.scraped(scrape.at, scrape.snapshot)
    return decoding.curves()


def _in_order(scrapes: Iterable[Scrape], records: Sequence[RequestRecord]) -> Iterator[_Event]:
    """All events in chronological order; a request ends before the next starts, as a sequential client would see it."""
    events: list[_Timed] = [(record.end, 0, record) for record in records]
    events += [(record.start, 1, RequestStart(record.id, record.start)) for record in records]
    when = itemgetter(0, 1)
    events.sort(key=when)
    polls: Iterator[_Timed] = ((scrape.at, 2, scrape) for scrape in scrapes)
    return (event for _, _, event in merge(events, polls, key=when))


class _Player:
    """Keeps the state that the live program keeps: a timeline per engine, the attributors, and the speed."""

    def __init__(self, buckets: TemperatureBuckets, *, infer: bool, curves: Mapping[str, PlainCurve]) -> None:
        self._buckets = buckets
        options = SpeedOptions(
            curves=curves, temperatures=buckets.labels, window=math.inf, stretch=_STRETCH, history=_HISTORY
        )
        self._speed = SpeedState(options)
        self._scraped_at = 0.0
        self._attributors = Attributors(buckets, AttributionOptions(infer_all=infer))
        self._engines: dict[EngineKey, tuple[Continuation, Timeline]] = {}
        self._ends: dict[EngineKey, list[EngineSnapshot]] = {}
        self._requests: list[AttributedRequest] = []

    def play(self, event: _Event) -> None:
        if isinstance(event, Scrape):
            self._scraped(event)
        elif isinstance(event, RequestStart):
            self._attributors.started(event)
        else:
            self._attributors.finished(event)

    def _scraped(self, scrape: Scrape) -> None:
        if scrape.snapshot is None:
            return
        for engine in scrape.snapshot.engines:
            continuation, timeline = self._engines.setdefault(engine.key, (Continuation(), Timeline(_HISTORY)))
            totals = continuation.advance(engine)
            timeline.append(scrape.at, totals)
            self._ends.setdefault(engine.key, [totals.engine])[1:] = [totals.engine]
        shown = {engine.key: self._engines[engine.key][1] for engine in scrape.snapshot.engines}
        several = scrape.snapshot.process_start is None
        self._scraped_at = scrape.at
        self._speed.scraped(scrape.at, shown, several_processes=several)
        self._take(self._attributors.poll(scrape.at, shown, several_processes=several))

    def _take(self, settled: list[Settled]) -> None:
        self._speed.finished(self._scraped_at, settled)
        self._requests += (one.request for one in settled)

    def result(self) -> ReplayResult:
        self._take(self._attributors.flush())
        residuals = [a.residual for a in self._attributors.by_model.values() if a.residual is not None]
        windows = {label: SlidingRequests(math.inf, most=len(self._requests)) for label in self._buckets.labels}
        for request in self._requests:
            windows[request.temperature].add(request, 0.0)
        seen = {request.temperature for request in self._requests}
        temperatures = {label: window.read(0.0) for label, window in windows.items() if label in seen}
        counted = sum(
            ends[-1].counters.get(Counter.DRAFT_TOKENS, 0) - ends[0].counters.get(Counter.DRAFT_TOKENS, 0)
            for ends in self._ends.values()
        )
        found = sum(request.draft_tokens for request in self._requests)
        coverage = min(found / counted, 1.0) if counted > 0 else None
        speeds = list(self._speed.models(self._scraped_at).values())
        speed = speeds[0] if len(speeds) == 1 else None
        return ReplayResult(temperatures, coverage, max(residuals, default=None), self._requests, speed)
