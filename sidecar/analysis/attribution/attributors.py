"""One attributor per model: decides which model a request is for, and which timelines belong to its engines."""

import math
from collections import Counter as Tally
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from sidecar.analysis.attribution.attributor import Attributor
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.result import AttributedRequest, Attribution, attributed
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.plan import EngineKey
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import RequestRecord, RequestStart

DROP_REASONS = frozenset({"no_page_yet", "in_flight"})  # why attribution drops requests to stay bounded
UNKNOWN_MODEL = "unknown"  # label of requests for a model that is not on vLLM's page


class Settled(NamedTuple):
    """A request whose attribution is final, with the model's name as vLLM's page has it."""

    model_name: str
    request: AttributedRequest


class Attributors:
    """Attributes requests to the models on vLLM's page.

    If the page has one model, all requests are for it, whatever name they use, since it serves aliases and adapters
    too. With several models the name decides, and a request for none of them is not attributed. Requests wait until the
    first page is read.
    """

    def __init__(self, buckets: TemperatureBuckets, options: AttributionOptions) -> None:
        self._buckets = buckets
        self._options = options
        self._waiting: deque[RequestStart | RequestRecord] = deque()
        self._lost: list[Settled] = []
        self._timelines: Mapping[EngineKey, Timeline] = {}  # at the last poll
        self._several_processes = False
        self._scraped_at = -math.inf
        self.by_model: dict[str, Attributor] = {}
        self.dropped: Tally[str] = Tally()  # requests dropped here, by reason

    def started(self, request: RequestStart) -> None:
        """A request has begun. Its model is not known yet: with several models only its end is used."""
        if not self.by_model:
            self._wait(request)
        elif len(self.by_model) == 1:
            next(iter(self.by_model.values())).started(request)

    def finished(self, record: RequestRecord) -> None:
        """A request has ended."""
        if not self.by_model:
            self._wait(record)
        elif (owner := self._owner(record.model)) is not None:
            owner.finished(record)
        else:
            self._lose(record)

    def poll(self, at: float, timelines: Mapping[EngineKey, Timeline], *, several_processes: bool) -> list[Settled]:
        """Takes in a scrape at ``at``; ``timelines`` are those of the engines on the page, and of no others."""
        models = {key.model_name for key in timelines}
        # A vLLM restarted with another number of API servers counts steps differently, and if the clock was
        # set back, earlier windows are in the future: start over.
        kept = models if several_processes == self._several_processes and at >= self._scraped_at else set()
        self._timelines, self._several_processes, self._scraped_at = timelines, several_processes, at
        for gone in self.by_model.keys() - kept:
            attributor = self.by_model.pop(gone)
            self.dropped += attributor.dropped
            self._lost += (Settled(gone, one) for one in attributor.flush())
        for model in sorted(models - self.by_model.keys()):
            options = replace(self._options, several_api_servers=several_processes)
            self.by_model[model] = Attributor(self._buckets, options)
        waiting, self._waiting = self._waiting, deque()
        for event in waiting:
            self.started(event) if isinstance(event, RequestStart) else self.finished(event)
        return self.settle(at)

    def settle(self, at: float) -> list[Settled]:
        """The requests that need no further scrape; also called after one that failed, so that nothing piles up."""
        settled, self._lost = self._lost, []
        for model, attributor in self.by_model.items():
            settled += (Settled(model, one) for one in attributor.poll(at, _of(model, self._timelines)))
        return settled

    def flush(self) -> list[Settled]:
        """Attributes all remaining requests, whatever is missing."""
        for event in self._waiting:
            if isinstance(event, RequestRecord):
                self._lose(event)
        self._waiting.clear()
        settled, self._lost = self._lost, []
        for model, attributor in self.by_model.items():
            settled += (Settled(model, one) for one in attributor.flush())
        return settled

    def _owner(self, model: str | None) -> Attributor | None:
        if len(self.by_model) == 1:
            return next(iter(self.by_model.values()))
        return self.by_model.get(model) if model is not None else None

    def _lose(self, record: RequestRecord) -> None:
        label = self._buckets.label(record.temperature)
        self._lost.append(Settled(UNKNOWN_MODEL, attributed(record, label, Attribution.NONE)))

    def _wait(self, event: RequestStart | RequestRecord) -> None:
        if len(self._waiting) >= self._options.most_requests:
            self._waiting.popleft()
            self.dropped["no_page_yet"] += 1
        self._waiting.append(event)


def _of(model: str, timelines: Mapping[EngineKey, Timeline]) -> list[Timeline]:
    return [timeline for key, timeline in timelines.items() if key.model_name == model]
