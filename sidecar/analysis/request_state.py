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
from sidecar.analysis.verdict import Judge, Verdict, VerdictThresholds, advice
from sidecar.engine.plan import EngineKey
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import RequestRecord, RequestStart


@dataclass(frozen=True, slots=True)
class ModelRequests:
    """One model's requests at one moment; ``coverage`` and ``residual`` are 0 to 1, None while unknown."""

    model_name: str
    stats: RequestStats
    recent: Mapping[str, RecentWork]  # by temperature
    verdicts: Mapping[str, Verdict]  # by temperature
    advice: Mapping[str, str]  # by temperature, where there is any
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
        thresholds: VerdictThresholds,
        drop_reasons: Iterable[str] = (),
    ) -> None:
        """``drop_reasons`` are those to count from 0 on."""
        self._source = source
        self._labels = buckets.labels
        self._thresholds = thresholds
        self._attributors = Attributors(buckets, options)
        self._history = options.history
        self._stats: dict[str, RequestStats] = {}
        self._verdicts: dict[str, Mapping[str, Verdict]] = {}
        self._polled_at = -math.inf
        self._seen: dict[str, float] = {}  # when a model was last on vLLM's page, or had a request
        self._judges: dict[str, Judge] = {}
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
            self._model(model)  # its series begin at 0, before its first request
        self._seen |= dict.fromkeys(shown, at)
        self._take(at, settled)
        for model in [model for model, seen in self._seen.items() if seen < at - self._history]:
            for known in (self._seen, self._stats, self._judges, self._verdicts):
                del known[model]

    def unpolled(self, at: float) -> None:
        """Settles what is settled though a scrape at ``at`` failed."""
        self._take(at, self._attributors.unpolled(at))

    def report(self, now: float) -> RequestReport:
        """The state at ``now``, Unix seconds."""
        dropped = self._dropped.copy()
        dropped.update(self._attributors.dropped)  # adds, and unlike + keeps what is 0
        for attributor in self._attributors.by_model.values():
            dropped.update(attributor.dropped)
        models = tuple(self._report(model, stats, now) for model, stats in self._stats.items())
        return RequestReport(self._source, self._events, dropped, models)

    def _take(self, at: float, settled: Iterable[Settled]) -> None:
        for one in settled:
            self._model(one.model_name).add(one.request, at)
            self._seen[one.model_name] = at
        # Here and not in ``report``: however many read, and when, they read the same verdict.
        for model, stats in self._stats.items():
            self._verdicts[model] = self._judges[model].judge(stats.recent(at))

    def _model(self, model: str) -> RequestStats:
        stats = self._stats.get(model)
        if stats is None:
            stats = self._stats[model] = RequestStats(self._labels, self._thresholds.window)
            self._judges[model] = Judge(self._thresholds)
            self._verdicts[model] = dict.fromkeys(self._labels, Verdict.INSUFFICIENT_DATA)
        return stats

    def _report(self, model: str, stats: RequestStats, now: float) -> ModelRequests:
        attributor = self._attributors.by_model.get(model)
        recent = stats.recent(now)
        found = {
            temperature: text
            for temperature, work in recent.items()
            if (text := advice(self._verdicts[model][temperature], work, self._thresholds))
        }
        return ModelRequests(
            model,
            stats,
            recent,
            self._verdicts[model],
            found,
            attributor.coverage if attributor else None,
            attributor.residual if attributor else None,
            stats.attribution_outcomes(now),
        )
