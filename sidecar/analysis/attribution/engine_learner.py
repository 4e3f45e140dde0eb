"""Learns an engine's model from its closed windows and from requests whose steps are known."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sidecar.analysis.attribution.drafting import Drafting
from sidecar.analysis.attribution.engine_model import USUAL_PREFILL, USUAL_PREFILL_SHARED, EngineModel, Prefill
from sidecar.analysis.attribution.estimate import (
    Estimate,
    ObservedRequest,
    amounts_exact,
    amounts_inferred,
    estimate,
    steps_of,
)
from sidecar.analysis.attribution.exposure import PARTLY_SEEN, Amount, Exposures
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.windows import Window, Windows

_PRIOR_WEIGHT: Final = 5  # measurements that the prior prefill is worth: its error of 0.35 against a request's 1
_PREFILLS: Final = 256  # the latest measurements, which follow the load
_ENOUGH_PREFILLS: Final = 8  # fewer are too few for a meaningful standard deviation
_QUEUED: Final = 0.02  # waiting / (running + waiting): 0.000 to 0.002 without a queue, 0.3 with one (recordings)
_SEEN_IN_FLIGHT: Final = 0.9  # of vLLM's running and waiting requests
_MOSTLY_SEEN: Final = 0.9  # with less, a queue's and the shared clock's numbers are off by up to 0.6
_ENOUGH_REQUESTS: Final = 8  # fewer say little about an engine; convention
_ENOUGH_DRAFTS: Final = 100
_MOST_RESIDUAL: Final = 0.1  # above it nothing is inferred; whole recordings leave up to 0.04


class EngineLearner:
    """``model`` and how well it agrees with the counters; ``buckets`` is the number of temperature buckets."""

    def __init__(self, windows: Windows, buckets: int, options: AttributionOptions) -> None:
        self._windows = windows
        self._options = options
        self._exposures = Exposures(windows, buckets, options.memory)
        self._drafting = Drafting(buckets, options.memory)
        self._prefills: deque[float] = deque(maxlen=_PREFILLS)  # measured on the latest requests
        self._learned = -math.inf
        self._running = self._waiting = self._in_flight = self._most_running = 0.0
        self.model = EngineModel(clock_is_shared=options.several_api_servers)
        self.model = replace(self.model, prefill=self._prefill())
        self.ready = False  # whether there was enough to learn from

    @property
    def all_seen(self) -> bool:
        """Whether every request is seen, judging by vLLM's gauges and, once known, by the tokens."""
        if self._in_flight < _SEEN_IN_FLIGHT * (self._running + self._waiting):
            return False
        return not self.ready or self._exposures.seen_share == 1

    @property
    def drafted(self) -> bool:
        """Whether vLLM drafted in the closed windows."""
        return self._exposures.counted.drafts > 0

    @property
    def applies(self) -> bool:
        """Whether requests may be given inferred numbers.

        A shared clock and a queue need all requests in flight. The fit of drafts tolerates some unseen ones.
        """
        share, alone = self._exposures.seen_share, not self.model.clock_is_shared and not self.model.queued
        seen = share > _MOSTLY_SEEN or (alone and (self.model.every_step_drafts or share > PARTLY_SEEN))
        return self.ready and seen and (self.residual or 0.0) < _MOST_RESIDUAL

    @property
    def coverage(self) -> float | None:
        """Attributed draft tokens as a share of those counted, 0 to 1; None while unknown."""
        if not self.ready or not self.drafted:
            return None
        attributed = self._drafts() if self.applies else self._exposures.sums[Amount.EXACT_DRAFTS]
        return min(attributed / self._exposures.counted.drafts, 1.0)

    @property
    def residual(self) -> float | None:
        """The relative difference of the requests' sums from the counters; None while unknown."""
        return self._exposures.residual(self._drafts()) if self.ready else None

    @property
    def limit(self) -> int | None:
        """How many requests run at once, if others wait for admission."""
        return max(round(self._most_running), 1) if self.model.queued else None

    def queue(self, running: float, waiting: float, in_flight: int, seconds: float, *, restarted: bool) -> None:
        """Takes in vLLM's gauges at a poll, ``seconds`` after the last one, and how many requests were seen then."""
        keep = math.exp(-seconds / self._options.memory)
        self._in_flight = self._in_flight * keep + in_flight * seconds
        self._running = self._running * keep + running * seconds
        self._waiting = self._waiting * keep + waiting * seconds
        self._most_running = max(running, 0.0 if restarted else self._most_running * (1 - (1 - keep) / 4))
        self.model = replace(self.model, queued=self._waiting > _QUEUED * (self._running + self._waiting))

    def estimate(self, request: ObservedRequest) -> Estimate | None:
        """A request's speculation according to the present model; None if it cannot be inferred."""
        steps = steps_of(request, self.model)
        if steps is None or steps.ambiguous:
            return None
        return estimate(request, steps, self._share(request.bucket), self.model.drafts_per_token)

    def add(self, request: ObservedRequest, start: float, end: float, *, exact: bool) -> None:
        """Takes in a finished request, whose amounts are spread from ``start`` to ``end``."""
        known = request.record.acceptance
        if exact and known is not None:
            self._exposures.spread(amounts_exact(request.record, known), start, end)
            if self.ready and self.model.every_step_drafts:
                self._measure_prefill(request, known.drafts)
            return
        steps = steps_of(request, self.model)
        if steps is None:
            return
        found = estimate(request, steps, self._share(request.bucket), self.model.drafts_per_token)
        self._exposures.spread(amounts_inferred(request, steps, found), start, end)
        if not steps.error:
            self._measure_prefill(request, steps.count)

    def close(self, until: float) -> None:
        """Closes the windows that end by ``until``."""

        def observe(window: Window, amounts: Sequence[float]) -> None:
            self._drafting.observe(window, amounts, self.model.draft_length)

        counted = self._exposures.counted
        if counted.drafts <= 0 and (last := self._windows.last) is not None:
            counted = last.growth
        if counted.drafts > 0:
            self.model = replace(self.model, draft_length=max(counted.draft_tokens / counted.drafts, 1.0))
        self._exposures.close(until, observe)

    def learn(self, at: float, *, at_last: bool = False) -> None:
        """Learns from the closed windows, every few seconds."""
        if at - self._learned < self._options.learn_every and not at_last:
            return
        self._learned = at
        sums, counted = self._exposures.sums, self._exposures.counted
        if sums[Amount.REQUESTS] < _ENOUGH_REQUESTS or counted.drafts < _ENOUGH_DRAFTS:
            return
        self.model = replace(
            self.model,
            every_step_drafts=self._exposures.every_step_drafts,
            prefill=self._prefill(),
            drafts_per_token=counted.drafts / max(counted.generated, 1.0),
        )
        self.ready = True
        if not self.model.every_step_drafts:
            self._drafting.solve()

    def bucket_error(self, bucket: int) -> float:
        """The standard error of a bucket's acceptance rate that all its requests have in common."""
        if self.model.every_step_drafts:
            return 0.0
        return self._drafting.acceptance_error(bucket, self._exposures.sums, self.model.draft_length)

    def _prefill(self) -> Prefill:
        """The measurements so far, weighted against the prior."""
        usual = USUAL_PREFILL_SHARED if self.model.clock_is_shared else USUAL_PREFILL
        known: Prefill | None = self._prefill_by_sums()
        if (number := len(self._prefills)) >= _ENOUGH_PREFILLS:
            mean = math.fsum(self._prefills) / number
            deviation = math.sqrt(math.fsum((steps - mean) ** 2 for steps in self._prefills) / number)
            error = deviation / math.sqrt(number)
            known = Prefill(steps=mean, error=error, deviation=deviation, number=number)
        if known is None:
            return usual
        weight = known.number / (known.number + _PRIOR_WEIGHT)
        return replace(known, steps=weight * known.steps + (1 - weight) * usual.steps)

    def _prefill_by_sums(self) -> Prefill | None:
        """The prefill for which requests' sums equal the counters; None if they may differ for other reasons."""
        sums, counted = self._exposures.sums, self._exposures.counted
        share, number = self._exposures.seen_share, sums[Amount.CLOCKED]
        if number < _ENOUGH_PREFILLS or share < 1 or self.model.queued or not self.model.every_step_drafts:
            return None
        emitted = counted.emitted - (sums[Amount.EMITTED] - sums[Amount.CLOCKED_EMITTED])
        return replace(USUAL_PREFILL, steps=(sums[Amount.CLOCKED_STEPS] - emitted) / number, number=round(number))

    def _measure_prefill(self, request: ObservedRequest, steps: float) -> None:
        if request.residence_steps is not None and request.record.choices == 1 and not request.waited:
            self._prefills.append(request.residence_steps - steps - 1)

    def _share(self, bucket: int) -> float:
        return 1.0 if self.model.every_step_drafts else self._drafting.share(bucket)

    def _drafts(self) -> float:
        sums = self._exposures.sums
        every = self.model.every_step_drafts
        inferred = sums[Amount.STEPS] if every else self._drafting.drafts(sums, self.model.draft_length)
        return sums[Amount.EXACT_DRAFTS] + inferred
