"""Whether a draft fits its target, by rules of thumb for pairing and for memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.commands.plan.memory import BYTES, Budget, Deployment, budget
from sidecar.commands.plan.model_files import ModelFiles

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
    """One rule: the value found and, if it breaks the rule, what to do about it."""

    name: str
    value: float
    rule: str
    passed: bool
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A deployment's memory, the rules, the verdict that follows from both, and the limits of the rules."""

    deployment: Deployment
    budget: Budget
    checks: tuple[Check, ...]
    fit: Fit
    remarks: tuple[str, ...]

    @property
    def reasons(self) -> list[str]:
        """The reasons against it; empty for a good plan."""
        return [check.remedy for check in self.checks if check.remedy is not None]


def draft_cost(deployment: Deployment) -> float | None:
    """c: the time of a draft token / that of a target step, at light load; None without a draft.

    Drafting cannot pay below this acceptance rate. Decoding is bound there by reading the weights, so c is a ratio of
    bytes per GPU. With K tokens a step takes 1 + c K plain ones, and so the acceptance rate (1 + c K - 1) / K = c
    breaks even. Load only raises it: a lower bound.
    """
    if not deployment.draft.billions:
        return None
    draft = deployment.draft.weights_gb / deployment.draft_gpus
    return draft / (deployment.target.weights_gb / deployment.gpus)


def plan(deployment: Deployment, target: ModelFiles | None = None, draft: ModelFiles | None = None) -> Plan:
    """Judges a deployment, with the models' own files if given; shares are of all memory, not only vLLM's."""
    found = budget(deployment)
    checks = (*_memory(deployment, found), *_pairing(deployment), *_files(target, draft))
    fit = Fit.GOOD if all(check.passed for check in checks) else Fit.DOUBTFUL
    return Plan(
        deployment=deployment,
        budget=found,
        checks=checks,
        fit=Fit.IMPOSSIBLE if found.kv_gb <= 0 else fit,
        remarks=tuple(_remarks(deployment, known=target is not None and draft is not None)),
    )


def _memory(deployment: Deployment, found: Budget) -> Iterator[Check]:
    yield _check("kv_budget_gb", found.kv_gb, "above 0", passed=found.kv_gb > 0, remedy=_no_room(found))
    if deployment.draft.billions:
        draft = found.draft_gb / found.memory_gb
        remedy = f"the draft takes {draft:.0%} of the memory: quantize it or use a smaller one"
        yield _check("draft_share", draft, "at most 15%", passed=draft <= LARGEST_DRAFT_SHARE, remedy=remedy)
    target = found.target_gb / found.memory_gb
    remedy = f"the target takes {target:.0%} of the memory: quantize it before you add a draft, or add GPUs"
    yield _check("target_share", target, "at most 70%", passed=target <= LARGEST_TARGET_SHARE, remedy=remedy)


def _pairing(deployment: Deployment) -> Iterator[Check]:
    if not deployment.draft.billions:
        return
    ratio = deployment.target.billions / deployment.draft.billions
    if ratio < SMALLEST_RATIO:
        remedy = (
            f"the draft is large, 1:{ratio:.1f}: drafting takes long; use one of an 8th to a 12th of the target's size"
        )
    else:
        remedy = (
            f"the draft is small, 1:{ratio:.1f}: its acceptance may be low; measure it with `specdec-sidecar sweep`"
        )
    yield _check("size_ratio", ratio, "8 to 12", passed=SMALLEST_RATIO <= ratio <= LARGEST_RATIO, remedy=remedy)


def _files(target: ModelFiles | None, draft: ModelFiles | None) -> Iterator[Check]:
    """Family, vocabulary and tokenizer, each if both models' files have it; 1 if they are the same, else 0."""
    if target is None or draft is None:
        return
    for name, one, other, remedy in (
        ("family", target.family, draft.family, "expect a low acceptance"),
        ("vocab_size", target.vocab_size, draft.vocab_size, "vLLM rejects this without use_heterogeneous_vocab"),
        (
            "tokenizer",
            target.vocabulary,
            draft.vocabulary,
            "one token id means different tokens, so nothing is accepted",
        ),
    ):
        if one is not None and other is not None:
            same = one == other
            yield _check(name, float(same), "the same", passed=same, remedy=f"the {name} differs; {remedy}")


def _check(name: str, value: float, rule: str, *, passed: bool, remedy: str) -> Check:
    return Check(name, value, rule, passed, None if passed else remedy)


def _no_room(found: Budget) -> str:
    if found.kv_gb_without_draft <= 0:
        return "the target alone leaves no room for a KV cache at this utilization: quantize it or add GPUs"
    return "the weights leave no room for a KV cache at this utilization: quantize one of the models or add GPUs"


def _remarks(deployment: Deployment, *, known: bool) -> Iterator[str]:
    target, draft = deployment.target, deployment.draft
    if not draft.billions:
        return
    if not known:
        yield (
            "family and tokenizer were not compared: give --target-dir and --draft-dir. vLLM itself compares only the "
            "sizes of the vocabularies"
        )
    yield (
        "1:8 to 1:12 is for draft models, not for EAGLE or MTP heads; vLLM's own benchmark used 1:140 and won at low "
        "load. A smaller draft costs less and has a lower acceptance: only a measurement decides"
    )
    cost = draft_cost(deployment) or 0.0
    yield (
        f"at light load a draft token takes about {cost:.2g} of a target step, so K tokens break even at a length of "
        f"1 + {cost:.2g} K, an acceptance of {cost:.0%}. Load raises that: it is a lower bound, not a forecast"
    )
    wide, narrow = BYTES[draft.precision], BYTES[target.precision]
    if narrow < wide:
        yield (
            f"the target is at {target.precision} and the draft at {draft.precision}: quantize the draft first, as its "
            "errors cost acceptance but never quality, or use one precision for both"
        )
    elif wide < 2:
        yield f"the draft is at {draft.precision}: compare its acceptance before and after (`specdec-sidecar compare`)"
    if deployment.gpus > 1 and deployment.draft_gpus == 1:
        yield (
            "one GPU holds all of the draft, and the fullest GPU bounds the cache on all. vLLM 0.32 takes "
            "draft_tensor_parallel_size 1 beside a larger target for heads only, not for the method draft_model"
        )
    elif deployment.gpus > 1:
        yield f"the draft is split over all {deployment.gpus} GPUs, as vLLM does by default (--draft-gpus 1 for one)"
