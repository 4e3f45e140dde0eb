"""Whether a draft fits its target, by the rules of thumb for pairing and for memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.commands.plan.memory import Budget, Deployment, budget

SMALLEST_RATIO: Final = 8.0  # target / draft parameters
LARGEST_RATIO: Final = 12.0
LARGEST_DRAFT_SHARE: Final = 0.15  # of all memory
LARGEST_TARGET_SHARE: Final = 0.70  # of all memory


class Fit(StrEnum):
    """The verdict on a plan."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: what was found and, where it is broken, what to do about it."""

    name: str
    value: float
    rule: str
    passed: bool
    remedy: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment's memory, the rules, and the verdict that follows from both."""

    deployment: Deployment
    budget: Budget
    checks: tuple[Check, ...]
    fit: Fit

    @property
    def reasons(self) -> list[str]:
        """What speaks against it; empty for a good plan."""
        return [check.remedy for check in self.checks if check.remedy is not None]


def plan(deployment: Deployment) -> Plan:
    """Judges a deployment; shares are of all memory, whatever of it vLLM may use."""
    found = budget(deployment)
    checks = tuple(_checks(deployment, found))
    fit = Fit.GOOD if all(check.passed for check in checks) else Fit.DOUBTFUL
    return Plan(deployment, found, checks, Fit.IMPOSSIBLE if found.kv_gb <= 0 else fit)


def _checks(deployment: Deployment, found: Budget) -> Iterator[Check]:
    yield _check("kv_budget_gb", found.kv_gb, "above 0", found.kv_gb > 0, _no_room(found))
    ratio = deployment.target.billions / deployment.draft.billions
    yield _check("size_ratio", ratio, "8 to 12", SMALLEST_RATIO <= ratio <= LARGEST_RATIO, _pairing(ratio))
    draft = found.draft_gb / found.memory_gb
    yield _check(
        "draft_share",
        draft,
        "at most 15 %",
        draft <= LARGEST_DRAFT_SHARE,
        f"the draft takes {draft:.0%} of the memory: quantize it or take a smaller one",
    )
    target = found.target_gb / found.memory_gb
    yield _check(
        "target_share",
        target,
        "at most 70 %",
        target <= LARGEST_TARGET_SHARE,
        f"the target takes {target:.0%} of the memory: quantize it before you add a draft, or add GPUs",
    )


def _check(name: str, value: float, rule: str, passed: bool, remedy: str) -> Check:
    return Check(name, value, rule, passed, None if passed else remedy)


def _no_room(found: Budget) -> str:
    if found.kv_gb_without_draft <= 0:
        return "the target alone leaves no room for a KV cache at this utilization: quantize it or add GPUs"
    return "the weights leave no room for a KV cache at this utilization: quantize one of the models or add GPUs"


def _pairing(ratio: float) -> str:
    if ratio < SMALLEST_RATIO:
        return f"the draft is large, 1:{ratio:.1f}: drafting takes long; take one of an 8th to a 12th of the target"
    return f"the draft is small, 1:{ratio:.1f}: its acceptance may be low; measure it with `specdec-sidecar sweep`"
