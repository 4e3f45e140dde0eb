"""The state of one server's requests: a request sink; each poll settles what the source delivered."""

import math
from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sidecar.analysis.attribution.attributors import UNKNOWN_MODEL, Attributors, Settled
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.result import AttributionOutcome
from sidecar.analysis.request_stats import RequestStats
from sidecar.analysis.request_window import SpeculationSummary
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.merge import OTHER
from sidecar.engine.plan import EngineKey
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import AskedUsage, RequestRecord, RequestStart


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequests:
    """One model's requests at one moment; ``coverage`` and ``residual`` are 0 to 1, None if unknown."""

    model_name: str
    stats: RequestStats
    recent: Mapping[str, SpeculationSummary]  # by temperature, over the sliding window that ended at the last poll
    coverage: float | None
    residual: float | None
    attribution_outcomes: Mapping[AttributionOutcome, int]  # over the sliding window


@dataclass(frozen=True, slots=True)
class RequestReport:
    """One server's requests at one moment.

    ``events`` counts records, ``dropped`` lost ones by reason, ``asked_usage`` streams for which usage was requested.
    """

    source: str
    events: int
    dropped: Mapping[str, int]
    asked_usage: Mapping[AskedUsage, int]
    models: tuple[ModelRequests, ...]
    overflowed_models: int = 0  # models that became "other", counted at each poll that settled one of their requests


class RequestState:
    """Keeps what a source delivers; bounded in requests, models and label sets whatever the traffic."""

    def __init__(
        self,
        source: str,
        *,
        buckets: TemperatureBuckets,
        options: AttributionOptions,
        window: float,
        drop_reasons: Iterable[str] = (),
        max_models: int = 1,
    ) -> None:
        """``window`` is the sliding window in seconds; ``drop_reasons`` are counted from 0 on.

        The first ``max_models`` models that have requests keep their names; further ones count as ``other``.
        """
        self._source = source
        self._labels = buckets.labels
        self._window = window
        self._attributors = Attributors(buckets, options)
        self._history = options.history
        self._max_models = max_models
        self._overflowed_models = 0
        self._stats: dict[str, RequestStats] = {}
        self.models: tuple[ModelRequests, ...] = ()  # all, as of the last poll, successful or not
        self._scraped_at = -math.inf
        self._seen: dict[str, float] = {}  # when a model was last on vLLM's page, or had a request
        self._events = 0
        self._dropped: Tally[str] = Tally(dict.fromkeys(drop_reasons, 0))
        self._asked_usage: Tally[AskedUsage] = Tally(dict.fromkeys(AskedUsage, 0))

    def started(self, request: RequestStart) -> None:
        """See ``RequestSink``."""
        self._attributors.started(request)

    def finished(self, record: RequestRecord) -> None:
        """See ``RequestSink``."""
        self._events += 1
        if record.asked_usage is not None:
            self._asked_usage[record.asked_usage] += 1
        self._attributors.finished(record)

    def dropped(self, reason: str, count: int) -> None:
        """See ``RequestSink``."""
        self._dropped[reason] += count

    def scraped(self, at: float, timelines: Mapping[EngineKey, Timeline], *, several_processes: bool) -> list[Settled]:
        """Settles requests after a successful poll at ``at``, and returns them."""
        if at < self._scraped_at:  # the clock was set back
            self._seen = dict.fromkeys(self._seen, at)
            for stats in self._stats.values():
                stats.clear_window()
        self._scraped_at = at
        settled = self._attributors.poll(at, timelines, several_processes=several_processes)
        shown = self._attributors.by_model.keys()
        self._take(at, settled)
        for model in self._stats.keys() - shown - {OTHER.model_name}:
            self._stats[model].clear_window()  # it is no longer on the page
        if len(shown) <= self._max_models:
            for model in shown:
                self._stats_of(self._label(model))  # its series begin at 0, before its first request
        self._seen |= dict.fromkeys(shown, at)
        for model in [model for model, seen in self._seen.items() if seen < at - self._history]:
            del self._seen[model]
            self._stats.pop(model, None)
        self._read(at)
        return settled

    def failed(self, at: float) -> list[Settled]:
        """Settles requests that need no further poll, although the one at ``at`` failed, and returns them."""
        settled = self._attributors.settle(at)
        self._take(at, settled)
        self._read(at)
        return settled

    def report(self) -> RequestReport:
        """The state as of the last poll."""
        dropped = self._dropped.copy()
        dropped.update(self._attributors.dropped)  # unlike +, keeps counts of 0
        for attributor in self._attributors.by_model.values():
            dropped.update(attributor.dropped)
        return RequestReport(
            self._source, self._events, dropped, dict(self._asked_usage), self.models, self._overflowed_models
        )

    def _take(self, at: float, settled: Iterable[Settled]) -> None:
        others = set()
        for one in settled:
            model = self._label(one.model_name)
            if model != one.model_name:
                others.add(one.model_name)
            self._stats_of(model).add(one.request, at)
            self._seen[model] = at
        self._overflowed_models += len(others)

    def _label(self, model: str) -> str:
        """The model's own name, or ``other`` past the bound and for a model that is not on vLLM's page."""
        named = [name for name in self._stats if name != OTHER.model_name]
        if model in named:
            return model
        if model == UNKNOWN_MODEL:
            return OTHER.model_name
        if len(named) >= self._max_models:
            left = [name for name in named if name not in self._attributors.by_model]
            if not left:
                return OTHER.model_name
            del self._stats[left[0]]  # vLLM serves another model now
        return model

    def _stats_of(self, model: str) -> RequestStats:
        stats = self._stats.get(model)
        if stats is None:
            stats = self._stats[model] = RequestStats(self._labels, self._window)
        return stats

    def _read(self, at: float) -> None:
        self.models = tuple(self._model_requests(model, stats, at) for model, stats in self._stats.items())

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
