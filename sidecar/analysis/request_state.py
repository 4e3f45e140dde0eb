"""What is known of one server's requests: a request sink, fed by a source, settled by each scrape."""

import math
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidecar.analysis.attribution.attributors import Attributors, Settled
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.outcome import AttributionOutcome
from sidecar.analysis.request_stats import RecentWork, RequestStats
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.plan import EngineKey
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import RequestRecord, RequestStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequests:
    """One model's requests at one moment; ``coverage`` and ``residual`` are 0 to 1, None while unknown."""

    model_name: str
    stats: RequestStats
    recent: Mapping[str, RecentWork]  # by temperature, over the sliding window that ended at the last poll
    coverage: float | None
    residual: float | None
    attribution_outcomes: Mapping[AttributionOutcome, int]  # over the sliding window


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One server's requests at one moment. ``events`` counts records, ``dropped`` what was lost, by reason."""

    source: str
    events: int
    dropped: Mapping[str, int]
    models: tuple[ModelRequests, ...]


class RequestState:
    """Keeps what a source tells; bounded in requests, models and label sets whatever the traffic."""

    def __init__(
        self,
        source: str,
        buckets: TemperatureBuckets,
        options: AttributionOptions,
        window: float,
        drop_reasons: Iterable[str] = (),
    ) -> None:
        """``window`` is the sliding window in seconds; ``drop_reasons`` are those to count from 0 on."""
        self._source = source
        self._labels = buckets.labels
        self._window = window
        self._attributors = Attributors(buckets, options)
        self._history = options.history
        self._stats: dict[str, RequestStats] = {}
        self._models: tuple[ModelRequests, ...] = ()
        self._polled_at = -math.inf
        self._seen: dict[str, float] = {}  # when a model was last on vLLM's page, or had a request
        self._events = 0
        self._dropped: Tally[str] = Tally(dict.fromkeys(drop_reasons, 0))

    def started(self, request: RequestStart) -> None:
        """See ``RequestSink``."""
        self._attributors.started(request)

    def finished(self, record: RequestRecord) -> None:
        """See ``RequestSink``."""
        self._events += 1
        self._attributors.finished(record)

    def dropped(self, reason: str, count: int) -> None:
        """See ``RequestSink``."""
        self._dropped[reason] += count

    def polled(self, at: float, timelines: Mapping[EngineKey, Timeline], *, several_processes: bool) -> None:
        """Settles what a scrape at ``at`` settles."""
        if at < self._polled_at:  # the clock was set back
            self._seen = dict.fromkeys(self._seen, at)
            for stats in self._stats.values():
                stats.forget_recent()
        self._polled_at = at
        settled = self._attributors.poll(at, timelines, several_processes=several_processes)
        shown = self._attributors.by_model
        for model in self._stats.keys() - shown.keys():
            self._stats[model].forget_recent()  # nothing is known of it any more
        for model in shown:
            self._stats_of(model)  # its series begin at 0, before its first request
        self._seen |= dict.fromkeys(shown, at)
        self._take(at, settled)
        for model in [model for model, seen in self._seen.items() if seen < at - self._history]:
            del self._seen[model]
            self._stats.pop(model, None)
        self._read(at)

    def unpolled(self, at: float) -> None:
        """Settles what is settled though a scrape at ``at`` failed."""
        self._take(at, self._attributors.unpolled(at))
        self._read(at)

    @property
    def models(self) -> tuple[ModelRequests, ...]:
        """All models as of the last poll, good or failed: however often they are read, the windows are read once."""
        return self._models

    def report(self) -> RequestReport:
        """The state as of the last poll."""
        dropped = self._dropped.copy()
        dropped.update(self._attributors.dropped)  # adds, and unlike + keeps what is 0
        for attributor in self._attributors.by_model.values():
            dropped.update(attributor.dropped)
        return RequestReport(self._source, self._events, dropped, self._models)

    def _take(self, at: float, settled: Iterable[Settled]) -> None:
        for one in settled:
            self._stats_of(one.model_name).add(one.request, at)
            self._seen[one.model_name] = at

    def _stats_of(self, model: str) -> RequestStats:
        stats = self._stats.get(model)
        if stats is None:
            stats = self._stats[model] = RequestStats(self._labels, self._window)
        return stats

    def _read(self, at: float) -> None:
        self._models = tuple(self._model_requests(model, stats, at) for model, stats in self._stats.items())

    def _model_requests(self, model: str, stats: RequestStats, at: float) -> ModelRequests:
        attributor = self._attributors.by_model.get(model)
        return ModelRequests(
            model_name=model,
            stats=stats,
            recent=stats.recent(at),
            coverage=attributor.coverage if attributor else None,
            residual=attributor.residual if attributor else None,
            attribution_outcomes=stats.attribution_outcomes(at),
        )
