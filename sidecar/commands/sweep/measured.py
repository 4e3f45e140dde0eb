"""One server at one level: what ``sweep --save`` writes and every number in ``sweep`` and ``compare`` comes from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal

from sidecar.analysis.acceptance import NO_DRAFTS, Acceptance
from sidecar.analysis.acceptance import together as sum_of
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.workload import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """``samples`` are the completed requests: round after round, in the order of their ends.

    ``seconds`` is the time from the first request's start to the last one's end. ``counted`` is how much vLLM's
    counters grew meanwhile, None without any; ``others``: vLLM also served other clients, so neither the times nor
    the counters' growth are due to these requests alone.
    """

    samples: tuple[Sample, ...]
    failed: int
    seconds: float
    counted: Acceptance | None
    others: bool
    complete: bool

    @property
    def acceptance(self) -> Acceptance:
        """From the replies if they have vLLM's numbers, else from its counters, unless it also served others."""
        exact = [one for one in self.samples if one.drafts is not None]
        if not exact:
            known = self.counted if self.samples and not self.others else None
            return replace(known or NO_DRAFTS, requests=len(self.samples))
        return Acceptance(
            requests=len(exact),
            drafts=sum(one.drafts or 0 for one in exact),
            draft_tokens=sum(one.draft_tokens for one in exact),
            accepted_tokens=sum(one.accepted_tokens for one in exact),
            accepted_per_position=tuple(map(sum, zip_longest(*(one.positions for one in exact), fillvalue=0))),
        )

    @property
    def source(self) -> Literal["replies", "counters", "none"]:
        """Where ``acceptance`` comes from."""
        if not self.acceptance.draft_tokens:
            return "none"
        return "replies" if any(one.drafts is not None for one in self.samples) else "counters"

    def in_flight(self, load: Load) -> float:
        """The mean number of requests in flight; in an open loop, rate x mean duration (Little's law)."""
        durations = [one.duration for one in self.samples] or [0.0]
        return load.at_once or (load.rate or 0.0) * sum(durations) / len(durations)

    def of(self, temperature: float) -> "Measured":
        """The requests at one temperature of a mix."""
        inside = tuple(one for one in self.samples if one.temperature == temperature)
        return replace(self, samples=inside, counted=None)

    def parts(self, count: int) -> Iterator["Measured"]:
        """Batches of consecutive requests; each gets time in proportion to its durations, as the load is constant."""
        size, total = len(self.samples) // count, sum(one.duration for one in self.samples)
        for start in range(0, count * size, size or 1):
            part = self.samples[start : start + size]
            seconds = self.seconds * sum(one.duration for one in part) / total if total else 0.0
            yield replace(self, samples=part, counted=None, seconds=seconds)


def together(parts: Sequence[Measured]) -> Measured:
    """The rounds of one level, or several levels, as one."""
    counted = [part.counted for part in parts if part.counted is not None]
    return Measured(
        samples=tuple(one for part in parts for one in part.samples),
        failed=sum(part.failed for part in parts),
        seconds=sum(part.seconds for part in parts),
        counted=sum_of(counted) if len(counted) == len(parts) else None,
        others=any(part.others for part in parts),
        complete=all(part.complete for part in parts),
    )
