"""Whether two baselines of one model agree: the machine may have become faster or slower."""

from dataclasses import dataclass, replace
from math import hypot
from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.speed.plain import covers, step_time
from sidecar.settings.baselines import PlainStepTimes

_ALIKE: Final = 1.5  # factor of two contexts at which steps may be compared without a slope


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much longer the later baseline's steps take: a relative difference, and its error."""

    difference: float
    error: float

    @property
    def holds(self) -> bool:
        """Whether the difference is no larger than both errors explain."""
        return abs(self.difference) <= CONFIDENCE * self.error


def agreement(later: PlainStepTimes, earlier: PlainStepTimes) -> Agreement | None:
    """Compares the steps at the later one's loads; None if the two share none.

    None, too, if they are of different accelerators.
    """
    if later.is_of_another(earlier.accelerator):
        return None
    differences = []
    errors = []
    for running in later.running:
        if not covers(earlier, running) or not _has_context(earlier, later.context):
            continue
        new = step_time(later, running)
        old = step_time(earlier, running, later.context)
        differences.append(new.seconds / old.seconds - 1)
        errors.append(hypot(new.error / new.seconds, old.error / old.seconds))

    if not differences:
        return None
    # The machine's speed moves all loads at once: their errors do not average out.
    return Agreement(sum(differences) / len(differences), sum(errors) / len(errors))


def _has_context(times: PlainStepTimes, context: float) -> bool:
    low, high = times.context_range
    return low / _ALIKE <= context <= high * _ALIKE


def widened(times: PlainStepTimes, found: Agreement) -> PlainStepTimes:
    """The same with half of the difference in its error, unless the two agree."""
    if found.holds:
        return times
    return replace(times, drift=min(hypot(times.drift, found.difference / 2), 1.0))
