"""Attributes vLLM's draft and accepted tokens to requests, and so to temperatures: ``docs/attribution.md``.

A request with vLLM's own numbers is exact. For the others, its verification steps come first: a stream's events, or
the engine's step clock over its residence. Accepted tokens are the completion tokens that no step accounts for, and
drafts are its steps, or a share of them fitted for each temperature bucket if not every step drafts.
"""

import math
from collections import Counter as Tally
from collections import deque
from collections.abc import Sequence
from typing import Final

from sidecar.analysis.attribution.admission import Admission
from sidecar.analysis.attribution.engine_learner import EngineLearner
from sidecar.analysis.attribution.estimate import ObservedRequest, first_token, observe
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.result import AttributedRequest, Attribution, attributed
from sidecar.analysis.attribution.windows import (
    Window,
    Windows,
    growth_between,
    polls_between,
    queue_at,
    shared_steps,
)
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import Outcome, RequestRecord, RequestStart

_MANY_LOST: Final = 8  # requests without numbers after which the coverage is known to be 0
_MOST_RELEASED: Final = 400  # requests per poll, or twice as many as came since the last one


class Attributor:
    """Attributes one model's counters, over all its engines, to its requests.

    All times are Unix seconds. Sources report requests by ``started`` and ``finished``; after each scrape ``poll``
    returns the requests whose attribution is final. ``dropped`` counts starts forgotten to stay within bounds.
    """

    def __init__(self, buckets: TemperatureBuckets, options: AttributionOptions | None = None) -> None:
        self._buckets = buckets
        self._options = options = options or AttributionOptions()
        self._index = {label: index for index, label in enumerate(buckets.labels)}
        self._windows = Windows(options.history)
        self._engine = EngineLearner(self._windows, len(self._index), options)
        self._admission = Admission(options.most_requests)
        self._sees_starts = True
        self._entered = 0  # requests since the last poll
        self._lost = 0  # requests without numbers
        self._recent: deque[tuple[RequestRecord, int]] = deque()  # finished, but not covered by windows yet
        self._held: list[deque[ObservedRequest]] = [deque() for _ in self._index]
        self._ready: list[AttributedRequest] = []
        self.dropped: Tally[str] = Tally()

    @property
    def coverage(self) -> float | None:
        """Recently attributed draft tokens as a share of those counted, 0 to 1; None while unknown.

        0 if vLLM drafts but its requests never had enough data to learn from.
        """
        coverage = self._engine.coverage
        return 0.0 if coverage is None and self._lost >= _MANY_LOST and self._engine.drafted else coverage

    @property
    def residual(self) -> float | None:
        """The inference's own error: the relative difference of the requests' sums from the counters, or None."""
        return self._engine.residual

    def started(self, request: RequestStart) -> None:
        """A request has begun."""
        if self._admission.started(request.id, request.start):
            self.dropped["in_flight"] += 1

    def finished(self, record: RequestRecord) -> None:
        """A request has ended, whether or not ``started`` was called for it."""
        self._sees_starts = record.id in self._admission
        bucket = self._index[self._buckets.label(record.temperature)]
        ordered = record.start <= record.end < math.inf  # not if a time is NaN
        if ordered:
            self._admission.finished(record.id, record.start, record.end)
        elif self._sees_starts:
            self._admission.forget(record.id)
        if self._exact(record) and (known := record.acceptance) is not None:
            work = (float(known.drafts), float(known.draft_tokens), float(known.accepted_tokens))
            self._ready.append(attributed(record, self._buckets.labels[bucket], Attribution.EXACT, work))
        elif record.outcome is Outcome.ERROR or record.completion_tokens is None or not ordered:
            self._ready.append(attributed(record, self._buckets.labels[bucket], Attribution.NONE))
            self._lost += record.outcome is not Outcome.ERROR
        if record.outcome is Outcome.ERROR or not ordered:
            return  # vLLM generated nothing for it
        if len(self._recent) >= self._options.most_requests:
            self._lose(*self._recent.popleft())
        self._recent.append((record, bucket))

    def poll(self, at: float, timelines: Sequence[Timeline]) -> list[AttributedRequest]:
        """Takes in what was scraped up to ``at``; returns the requests whose attribution is now final."""
        if self._admission.forget_before(at - self._options.history):
            self.dropped["in_flight"] += 1
        self._open_windows(timelines, at - self._options.lateness)
        self._enter(at - self._options.lateness - self._options.hold, at + self._options.hold)
        if (last := self._windows.last) is not None:
            self._engine.close(self._horizon(last.end))
            self._engine.learn(last.end)
            self._release(last.end)
        return self._take_ready()

    def flush(self) -> list[AttributedRequest]:
        """Attributes all remaining requests, whatever is missing."""
        self._enter(math.inf, -math.inf)
        if (last := self._windows.last) is not None:
            self._engine.close(last.end)
            self._engine.learn(last.end, at_last=True)
            self._release(last.end, at_last=True)
        for held in self._held:
            while held:
                request = held.popleft()
                self._lose(request.record, request.bucket)
        return self._take_ready()

    def _take_ready(self) -> list[AttributedRequest]:
        ready, self._ready = self._ready, []
        return ready

    def _open_windows(self, timelines: Sequence[Timeline], until: float) -> None:
        """Opens the windows since the newest one, one per poll of the engine scraped last."""
        newest = max(timelines, key=lambda timeline: timeline.times[-1:], default=None)
        if newest is None:
            return
        last = self._windows.last
        for start, end in polls_between(newest, None if last is None else last.end, until):
            growth = growth_between(timelines, start, end, count_steps=not self._options.several_api_servers)
            if growth is None:
                continue
            in_flight, busy = self._admission.occupancy(start, end)
            # If requests are not seen, or only when they end, unseen ones keep the engine busy too.
            seen = self._engine.all_seen and (self._sees_starts or self._options.lateness > 0)
            share = sum(high - low for low, high in busy) / (end - start)
            steps = shared_steps(growth, in_flight, share) if growth.steps is None else growth.steps
            restarted = any(timeline.restarted_within(start, end) for timeline in timelines)
            seconds, number = end - start, self._admission.in_flight(end)
            self._engine.queue(*queue_at(timelines, end), number, seconds, restarted=restarted)
            self._windows.append(
                Window(
                    start=start,
                    end=end,
                    growth=growth,
                    steps=steps,
                    busy=busy if busy and seen else None,
                    restarted=restarted,
                )
            )

    def _enter(self, oldest: float, newest: float) -> None:
        """Takes in the requests whose end the windows cover.

        Those that ended before ``oldest`` will never be covered, and those after ``newest`` are from another clock.
        """
        covered = -math.inf if self._windows.last is None else self._windows.last.end
        waiting: deque[tuple[RequestRecord, int]] = deque()
        self._entered = 0
        for record, bucket in self._recent:
            if record.end <= covered:
                self._enter_one(record, bucket)
            elif oldest <= record.end <= newest:
                waiting.append((record, bucket))
            else:
                self._lose(record, bucket)
        self._recent = waiting

    def _enter_one(self, record: RequestRecord, bucket: int) -> None:
        self._entered += 1
        admission = self._admission.admitted(record.start, self._engine.limit)
        request = observe(record, bucket, self._windows, admission, self._engine.model.draft_length)
        exact = self._exact(record)
        token = first_token(record)
        begun = admission[0] if token is None else token
        self._engine.add(request, min(max(begun, record.start), record.end), record.end, exact=exact)
        if exact or record.completion_tokens is None:
            return
        if sum(map(len, self._held)) >= self._options.most_requests:  # treat it as held for long enough
            oldest = max(self._held, key=len).popleft()
            self._lose(oldest.record, oldest.bucket)
        self._held[bucket].append(request)

    def _horizon(self, now: float) -> float:
        """The time up to which every request has been reported or given up on."""
        patient = now - self._options.patience
        if not self._sees_starts:
            return patient
        begun = [record.start for record, _ in self._recent]
        if (oldest := self._admission.oldest_start) is not None:
            begun.append(oldest)
        return max(min(begun, default=now), patient)

    def _release(self, now: float, *, at_last: bool = False) -> None:
        # A fit that becomes good enough must not stall the event loop, and with it requests, by settling the whole
        # backlog at once.
        left = math.inf if at_last else max(_MOST_RELEASED, 2 * self._entered)
        for bucket, held in enumerate(self._held):
            error = self._engine.bucket_error(bucket) if held and self._engine.applies else math.inf
            while held and left > 0:
                waited = now - held[0].record.end
                final = at_last or waited > self._options.hold
                if error > self._allowed(waited) and not final:
                    break
                left -= 1
                request = held.popleft()
                if error <= self._options.worst_error:
                    self._give(request)
                else:
                    self._lose(request.record, request.bucket)

    def _allowed(self, waited: float) -> float:
        options = self._options
        return options.good_error + (options.worst_error - options.good_error) * min(waited / options.hold, 1.0)

    def _give(self, request: ObservedRequest) -> None:
        found = self._engine.estimate(request)
        if found is None or not found.informative:
            self._lose(request.record, request.bucket)
            return
        work = (found.drafts, found.drafts * request.draft_length, found.accepted)
        label = self._buckets.labels[request.bucket]
        self._ready.append(
            attributed(request.record, label, Attribution.INFERRED, work, reliable=found.reliable, error=found.error)
        )

    def _lose(self, record: RequestRecord, bucket: int) -> None:
        """Returns a request without numbers, unless it was returned when it ended."""
        if not self._exact(record) and record.completion_tokens is not None:
            self._ready.append(attributed(record, self._buckets.labels[bucket], Attribution.NONE))
            self._lost += 1

    def _exact(self, record: RequestRecord) -> bool:
        return record.acceptance is not None and not self._options.infer_all
