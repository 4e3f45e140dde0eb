"""What is known of an engine so far: the method in use, the share of steps that draft, and how well it all adds up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sidecar.analysis.attribution.drafting import Drafting
from sidecar.analysis.attribution.estimate import Usual
from sidecar.analysis.attribution.ledger import Count, Ledger, Slot
from sidecar.analysis.attribution.method import (
    Method,
    choose,
    coverage,
    differs,
    enough,
    holds,
    residual,
    seen_share,
    usual_wait,
)
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.attribution.overhang import spread_of
from sidecar.analysis.attribution.window import Clock, Window, Windows, accepted_by_position
from sidecar.engine.timeline import Timeline

_MOST_RESIDUAL: Final = 0.1  # of the counters' growth; in recordings that are whole it is below 0.02


class Knowledge:
    """Learns from the windows as they are closed; ``buckets`` is their number."""

    def __init__(self, windows: Windows, buckets: int, options: AttributionOptions) -> None:
        self._windows = windows
        self._buckets = buckets
        self._options = options
        self._drafting = Drafting(buckets, options.memory)
        self._learned = 0.0
        self.ledger = Ledger(windows, buckets, options.memory)
        method = Method(clock=Clock.SHARED if options.several_api_servers else Clock.STEPS)
        self.method = replace(method, wait=usual_wait(method))
        self.usual = Usual()
        self._residual_before: float | None = None  # under the method before, until this one has sums of its own
        self.decided = False  # whether there was enough to choose the method on
        self._checked = False  # whether there was enough since then to see what part of the traffic is seen

    @property
    def all_seen(self) -> bool:
        """Whether, as far as is known, no traffic goes past the sources."""
        return not self.decided or seen_share(self.ledger.sums, self.ledger.counts) == 1

    @property
    def tokens_per_draft(self) -> float:
        """Draft tokens a draft, lately."""
        tokens, drafts = self.ledger.counts[Count.DRAFT_TOKENS], self.ledger.counts[Count.DRAFTS]
        if drafts <= 0 and len(self._windows):
            tokens, drafts = self._windows.tokens_per_draft(0, len(self._windows) - 1)
        return max(tokens / drafts, 1.0) if drafts > 0 else 1.0

    @property
    def tells(self) -> bool:
        """Whether requests may be given inferred numbers: the method is chosen, holds, and its sums come out right."""
        if not self._checked or not holds(self.method, seen_share(self.ledger.sums, self.ledger.counts)):
            return False
        residual = self.residual
        return residual is None or residual < _MOST_RESIDUAL

    @property
    def coverage(self) -> float | None:
        """Draft tokens that are attributed, as a part of those counted, 0 to 1; None while unknown."""
        if not self.decided:
            return None
        attributed = self._drafts() if self.tells else self.ledger.sums[Slot.KNOWN_DRAFTS]
        return coverage(self.ledger.counts, attributed)

    @property
    def residual(self) -> float | None:
        """How far requests' sums are off the counters, as a part of these; None while unknown."""
        if not self.decided:
            return None
        if self.ledger.counts[Count.DRAFTS] <= 0:
            return self._residual_before
        return residual(self.ledger.sums, self.ledger.counts, self._drafts())

    def share(self, bucket: int) -> float:
        """The share of a bucket's spare steps (``Drafting``) that draft."""
        return 1.0 if self.method.every_step else self._drafting.share(bucket)

    def bucket_error(self, bucket: int) -> float:
        """The standard error of a bucket's acceptance rate that its requests have in common."""
        if self.method.every_step:
            return 0.0
        return self._drafting.acceptance_error(bucket, self.ledger.sums, self.tokens_per_draft)

    def close(self, until: float) -> None:
        """Closes the windows that end by ``until``."""

        def observe(window: Window, brought: Sequence[float]) -> None:
            self._drafting.observe(window, brought, self.tokens_per_draft)

        self.ledger.close(until, observe)

    def learn(self, timelines: Sequence[Timeline], at: float, *, at_last: bool = False) -> bool:
        """Works everything out anew, every few seconds; returns whether the number that run at once was changed."""
        if at - self._learned < self._options.learn_every and not at_last:
            return False
        self._learned = at
        sums, counts = self.ledger.sums, self.ledger.counts
        spread = spread_of(*accepted_by_position(timelines, at - self._options.memory))
        self.usual = Usual(spread, counts[Count.DRAFTS] / max(counts[Count.GENERATED], 1.0))
        once = not self._options.several_api_servers
        before, enough_now = self.method, enough(sums, counts)
        chosen = choose(self.ledger, before, counted_once=once)
        # To begin anew takes time that is not left at last.
        changed = differs(chosen, before) and not (at_last and self.decided)
        # What was summed up under another method would be taken for this one's.
        if changed:
            self._residual_before = self.residual
            self.method = replace(chosen, wait=usual_wait(chosen), wait_error=0.0)
            self.ledger.restart(at)
            self._drafting = Drafting(self._buckets, self._options.memory)
        elif not differs(chosen, before):
            self.method = chosen
        self.decided = self.decided or enough_now
        self._checked = not changed and (self._checked or enough_now)
        if not self.method.every_step:
            self._drafting.solve()
        return changed and chosen.limit != before.limit

    def _drafts(self) -> float:
        sums = self.ledger.sums
        inferred = sums[Slot.STEPS] if self.method.every_step else self._drafting.drafts(sums, self.tokens_per_draft)
        return sums[Slot.KNOWN_DRAFTS] + inferred
