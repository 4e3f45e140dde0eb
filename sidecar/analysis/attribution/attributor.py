"""Whose draft and accepted tokens they were: vLLM's counters, shared out to requests and so to temperatures.

A request with vLLM's own numbers is exact. For the others the steps come first: a streamed event is a step, and else
the engine's own step count is the clock (``attribution_estimate``). Accepted tokens are the completion tokens after
the first that no step accounts for. Where every step drafts, drafts are steps; elsewhere they come from a fit per
temperature (``attribution_drafting``). Which of this holds is worked out from the counters (``attribution_method``).
"""

import math
from collections import Counter as Tally
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sidecar.analysis.attribution.admission import Admission
from sidecar.analysis.attribution.estimate import (
    Life,
    Steps,
    amounts_known,
    amounts_of,
    bounded,
    located,
    steps_of,
    work_of,
)
from sidecar.analysis.attribution.knowledge import Knowledge
from sidecar.analysis.attribution.ledger import Count
from sidecar.analysis.attribution.method import Method
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.result import AttributedRequest, Attribution, attributed
from sidecar.analysis.attribution.window import (
    Interval,
    Window,
    Windows,
    growth_between,
    occupancy,
    polls_between,
    queue_at,
)
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.timeline import Timeline
from sidecar.requests.record import Outcome, RequestRecord, RequestStart

_MANY_LOST: Final = 8
_MOST_SETTLED: Final = 400  # requests a poll, or twice as many as came since the last one


class Attributor:
    """Shares the counters of one model, all its engines together, out to its requests.

    All times are Unix seconds. Sources tell of requests by ``started`` and ``finished``; after each scrape ``poll``
    returns the requests that are settled. ``dropped`` counts those forgotten to stay within bounds.
    """

    def __init__(self, buckets: TemperatureBuckets, options: AttributionOptions | None = None) -> None:
        self._buckets = buckets
        self._options = options = options or AttributionOptions()
        self._index = {label: index for index, label in enumerate(buckets.labels)}
        self._windows = Windows(options.history)
        self._known = Knowledge(self._windows, len(self._index), options)
        self._admission = Admission(options.most_requests)
        self._entered = 0  # requests since the last poll
        self._lost = 0  # requests that got no numbers
        self._blind = False  # the source tells of ends alone
        self._over = [0.0] * len(self._index)  # steps that requests' bounds did not let through, by bucket
        self._recent: deque[Life] = deque()
        self._held: list[deque[Life]] = [deque() for _ in self._index]
        self._ready: list[AttributedRequest] = []
        self.dropped: Tally[str] = Tally()

    @property
    def method(self) -> Method | None:
        """How steps and drafts are counted; None while too little is known."""
        return self._known.method if self._known.decided else None

    @property
    def coverage(self) -> float | None:
        """Draft tokens that are attributed, as a part of those counted, 0 to 1, lately; None while unknown.

        0 where vLLM drafts and too little was ever told of its requests to choose a method on.
        """
        coverage = self._known.coverage
        if coverage is None and self._lost >= _MANY_LOST and self._known.ledger.counts[Count.DRAFTS] > 0:
            return 0.0
        return coverage

    @property
    def residual(self) -> float | None:
        """The inference's own error: how far requests' sums are off the counters, as a part; None while unknown."""
        return self._known.residual

    def started(self, request: RequestStart) -> None:
        """A request has begun."""
        if self._admission.started(request.id, request.start) is not None:
            self.dropped["in_flight"] += 1

    def finished(self, record: RequestRecord) -> None:
        """A request has ended, whether or not ``started`` was called for it."""
        self._blind = record.id not in self._admission
        taken = self._admission.finished(record.id, record.start, record.end)
        label = self._buckets.label(record.temperature)
        ordered = record.start <= record.end < math.inf  # not where a time is NaN
        if record.acceptance is not None and not self._options.infer_all:
            known = record.acceptance
            work = (float(known.drafts), float(known.draft_tokens), float(known.accepted_tokens))
            self._ready.append(attributed(record, label, Attribution.EXACT, work))
        elif record.outcome is Outcome.ERROR or record.completion_tokens is None or not ordered:
            self._ready.append(attributed(record, label, Attribution.NONE))
            self._lost += record.outcome is not Outcome.ERROR
        if record.outcome is Outcome.ERROR or not ordered:
            return  # vLLM generated nothing for it
        if len(self._recent) >= self._options.most_requests:
            self.dropped["pending"] += 1
            self._lose(self._recent.popleft())
        self._recent.append(Life(record, self._index[label], taken, doubt=self._admission.doubt(record.start)))

    def poll(self, at: float, timelines: Sequence[Timeline]) -> list[AttributedRequest]:
        """Takes in what was scraped up to ``at``; returns the requests that are settled by it, each one once."""
        if self._admission.forget_before(at - self._options.history):
            self.dropped["in_flight"] += 1
        for start, end in self._new_polls(timelines, at - self._options.lateness):
            self._open(timelines, start, end)
        self._enter_requests(at - self._options.lateness - self._options.hold, at + self._options.hold)
        if (last := self._windows.last) is not None:
            self._known.close(self._horizon(last.end))
            self._learn(timelines, last.end)
            self._release(last.end)
        ready, self._ready = self._ready, []
        return ready

    def flush(self, timelines: Sequence[Timeline]) -> list[AttributedRequest]:
        """Settles all that is left, whatever is missing."""
        self._enter_requests(math.inf, -math.inf)
        if (last := self._windows.last) is not None:
            self._known.close(last.end)
            self._learn(timelines, last.end, at_last=True)
            self._release(last.end, at_last=True)
        for held in self._held:
            while held:
                self._lose(held.popleft())
        ready, self._ready = self._ready, []
        return ready

    def _new_polls(self, timelines: Sequence[Timeline], until: float) -> list[Interval]:
        """The polls since the newest window, by the engine that was heard of last."""
        spans = [(timeline.span.end, index) for index, timeline in enumerate(timelines) if timeline.span is not None]
        if not spans:
            return []
        last = self._windows.last
        return polls_between(timelines[max(spans)[1]], None if last is None else last.end, until)

    def _open(self, timelines: Sequence[Timeline], start: float, end: float) -> None:
        growth = growth_between(timelines, start, end)
        if growth is None:
            return
        if self._options.several_api_servers:
            growth = growth._replace(steps=None)
        intervals = [(begun, end) for begun in self._admission.starts]
        intervals += [(life.record.start, life.record.end) for life in self._recent]
        mean, busy = occupancy(intervals, start, end)
        if not self._known.all_seen or (self._blind and not self._options.lateness):
            busy = None  # others keep the engine busy as well
        broken = any(timeline.restarted_within(start, end) for timeline in timelines)
        window = Window(start, end, growth, mean, busy, broken, queue_at(timelines, end))
        self._windows.append(window)
        self._known.ledger.opened(window)

    def _enter_requests(self, oldest: float, newest: float) -> None:
        """Reads the clocks off for the requests whose end the windows cover.

        Those that ended before ``oldest`` never will be, and those after ``newest`` are from a clock of their own.
        """
        covered = -math.inf if self._windows.last is None else self._windows.last.end
        waiting: deque[Life] = deque()
        self._entered = 0
        for life in self._recent:
            if life.record.end <= covered:
                self._enter(located(life, self._windows, self._known.tokens_per_draft))
            elif not oldest <= life.record.end <= newest:
                self._lose(life)
            else:
                waiting.append(life)
        self._recent = waiting

    def _enter(self, life: Life) -> None:
        self._entered += 1
        record, known = life.record, self._known
        if self._exact(record):
            if life.credible:
                known.ledger.spread(amounts_known(life, known.method), record.start, record.end)
            return
        if record.completion_tokens is None:
            return  # already given out; its steps show as unseen traffic
        steps = steps_of(life, known.method)
        if steps is not None:
            steps = replace(steps, count=bounded(steps.count, life))
            work = work_of(life, steps, known.share(life.bucket), known.usual)
            start = life.taken if record.first_token is None else record.first_token
            known.ledger.spread(amounts_of(life, steps, work, known.method), start, record.end)
        held = self._held[life.bucket]
        if sum(map(len, self._held)) >= self._options.most_requests:
            self.dropped["pending"] += 1
            self._lose(max(self._held, key=len).popleft())
        held.append(life)

    def _horizon(self, now: float) -> float:
        """Until when all requests are known, or were waited for long enough."""
        begun = [life.record.start for life in self._recent]
        if (oldest := self._admission.oldest_start) is not None:
            begun.append(oldest)
        patient = now - self._options.patience
        return patient if self._blind else max(min(begun, default=now), patient)

    def _learn(self, timelines: Sequence[Timeline], at: float, *, at_last: bool = False) -> None:
        if not self._known.learn(timelines, at, at_last=at_last):
            return
        taken = self._admission.limit_to(self._known.method.limit)
        for held in self._held:
            for index, life in enumerate(held):
                if life.record.id in taken:
                    doubt = self._admission.doubt(life.record.start)
                    corrected = replace(life, taken=taken[life.record.id], doubt=doubt)
                    held[index] = located(corrected, self._windows, self._known.tokens_per_draft)

    def _release(self, now: float, *, at_last: bool = False) -> None:
        # A fit that begins to tell must not stop the event loop, and with it requests, for all that have waited.
        left = math.inf if at_last else max(_MOST_SETTLED, 2 * self._entered)
        for bucket, held in enumerate(self._held):
            error = self._known.bucket_error(bucket) if held and self._known.tells else math.inf
            while held and left > 0 and (at_last or error <= self._allowed(now - held[0].record.end)):
                left -= 1
                life = held.popleft()
                if error <= self._options.worst_error:
                    self._give(life)
                else:
                    self._lose(life)
            while held and left > 0 and held[0].record.end < now - self._options.hold:
                left -= 1
                self._lose(held.popleft())

    def _allowed(self, waited: float) -> float:
        options = self._options
        return options.good_error + (options.worst_error - options.good_error) * min(waited / options.hold, 1.0)

    def _give(self, life: Life) -> None:
        steps = steps_of(life, self._known.method)
        if steps is None or steps.doubtful:
            self._lose(life)
            return
        count = steps.count
        if steps.error:
            # What bounds take away from one request is given back with the next, so that the sums stay right.
            owed = min(max(self._over[life.bucket], -1.0), 1.0)
            count = bounded(steps.count + owed, life)
            self._over[life.bucket] += steps.count - count
        work = work_of(life, Steps(count, steps.error), self._known.share(life.bucket), self._known.usual)
        numbers = (work.drafts, work.drafts * life.drafted, work.accepted)
        label = self._buckets.labels[life.bucket]
        self._ready.append(
            attributed(life.record, label, Attribution.INFERRED, numbers, tells=work.telling, error=work.error)
        )

    def _lose(self, life: Life) -> None:
        """Gives a request out without numbers, unless it was given out when it ended."""
        if not self._exact(life.record) and life.record.completion_tokens is not None:
            label = self._buckets.labels[life.bucket]
            self._ready.append(attributed(life.record, label, Attribution.NONE))
            self._lost += 1

    def _exact(self, record: RequestRecord) -> bool:
        return record.acceptance is not None and not self._options.infer_all
