"""Whether a draft fits its target, by rules of thumb for pairing and for memory; and what needs no draft model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidecar.commands.plan.memory import BYTES, Budget, Deployment, Model, budget

# An EAGLE-3 head is one decoder layer whose attention reads two hidden states, a layer that fuses three into one, and
# an output layer over a draft vocabulary. SpecForge's configuration for Llama 3.1 8B (draft vocabulary 32,000) gives
# 0.425B, the same layout with the 70B's dimensions 1.40B; a power law between and beyond them (Qwen3 32B: 0.93B instead
# of 0.78B). EAGLE's README has 0.25B and 0.99B for the heads of EAGLE-1 and 2, which take the target's output layer.
_HEAD_BILLIONS: Final = 0.425
_HEAD_TARGET: Final = 8.0
_HEAD_POWER: Final = 0.55


class Fit(StrEnum):
    """The verdict on a plan."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: the value found and how it reads and, if it breaks the rule, what to do about it."""

    name: str
    value: float
    shown: str
    rule: str
    passed: bool
    remedy: str


@dataclass(frozen=True, slots=True)
class Method:
    """A method without a draft model: the memory it takes (None: part of the target's own weights), and its use."""

    name: str
    needs: str
    memory_gb: float | None
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A deployment's memory, the rules, the verdict that follows from both, and the limits of the rules.

    ``memory_without_draft`` is None and ``methods`` are those that need no draft model if there is none.
    """

    deployment: Deployment
    memory: Budget
    memory_without_draft: Budget | None
    checks: tuple[Check, ...]
    verdict: Fit
    remarks: tuple[str, ...]
    break_even_acceptance: float | None
    methods: tuple[Method, ...]

    @property
    def reasons(self) -> list[str]:
        """The reasons against it; empty for a good plan."""
        return [check.remedy for check in self.checks if not check.passed]


def plan(deployment: Deployment) -> Plan:
    """Judges a deployment; shares are of all memory, not only vLLM's."""
    found = budget(deployment)
    alone = budget(replace(deployment, draft=None)) if deployment.draft else None
    checks = (*_memory_checks(found, alone), *_pairing_checks(deployment, found))
    fit = Fit.GOOD if all(check.passed for check in checks) else Fit.DOUBTFUL
    return Plan(
        deployment=deployment,
        memory=found,
        memory_without_draft=alone,
        checks=checks,
        verdict=Fit.IMPOSSIBLE if found.kv_gb <= 0 else fit,
        remarks=tuple(_remarks(deployment)),
        break_even_acceptance=draft_cost(deployment),
        methods=() if deployment.draft else _methods(deployment.target),
    )


def draft_cost(deployment: Deployment) -> float | None:
    """c: the time of a draft token / that of a target step, at light load; None without a draft.

    Drafting cannot pay below this acceptance rate. Decoding is bound there by reading the weights, so c is a ratio of
    bytes per GPU. With K tokens a step takes 1 + c K plain ones, and so the acceptance rate (1 + c K - 1) / K = c
    breaks even. Load only raises it: a lower bound.
    """
    if deployment.draft is None:
        return None
    draft = deployment.draft.weights_gb / deployment.draft_gpus
    return draft / (deployment.target.weights_gb / deployment.gpus)


def _memory_checks(found: Budget, alone: Budget | None) -> Iterator[Check]:
    alone_fits = alone is not None and alone.kv_gb > 0
    who, what = ("the weights leave", "one of the models") if alone_fits else ("the target alone leaves", "it")
    remedy = f"{who} no room for a KV cache at this utilization: quantize {what} or add GPUs"
    yield Check("room for a KV cache", found.kv_gb, f"{found.kv_gb:,.1f} GB", "above 0", found.kv_gb > 0, remedy)
    share = found.target_gb / found.memory_gb
    remedy = f"the target takes {share:.0%} of the memory: quantize it before you add a draft, or add GPUs"
    yield Check("target's share of memory", share, f"{share:.1%}", "at most 70%", share <= 0.70, remedy)


def _pairing_checks(deployment: Deployment, found: Budget) -> Iterator[Check]:
    if deployment.draft is None:
        return
    share = found.draft_gb / found.memory_gb
    remedy = f"the draft takes {share:.0%} of the memory: quantize it or use a smaller one"
    yield Check("draft's share of memory", share, f"{share:.1%}", "at most 15%", share <= 0.15, remedy)
    ratio = deployment.target.billions / deployment.draft.billions
    if ratio < 8:
        remedy = "is large: drafting takes long; use one of an 8th to a 12th of the target's size"
    else:
        remedy = "is small: its acceptance may be low; measure it with `specdec-sidecar sweep`"
    remedy = f"the draft, 1:{ratio:.1f}, {remedy}"
    yield Check("draft to target", ratio, f"1:{ratio:.1f}", "8 to 12", 8 <= ratio <= 12, remedy)


def _remarks(deployment: Deployment) -> Iterator[str]:
    target, draft = deployment.target, deployment.draft
    if target.kv_bytes is None:
        yield "to count the cache in tokens, give --kv: layers x KV heads x head size, as in the model's config.json"
    elif draft is not None and draft.kv_bytes is None:
        yield "the tokens are without the draft's own keys and values: give --draft-kv"
    if draft is None:
        yield (
            f"eagle3's memory is estimated: {_HEAD_BILLIONS}B x (target / {_HEAD_TARGET:g}B)^{_HEAD_POWER} at 16 bits, "
            "from the layout of the heads for Llama 8B and 70B"
        )
        return
    yield (
        "make sure that both models have the same tokenizer: vLLM compares only the sizes of the vocabularies, and "
        "where one id means different tokens nothing is accepted"
    )
    yield (
        "1:8 to 1:12 is for draft models, not for EAGLE or MTP heads; vLLM's own benchmark used 1:140 and won at low "
        "load. A smaller draft costs less and has a lower acceptance: only a measurement decides"
    )
    cost = draft_cost(deployment) or 0.0
    if cost >= 1:
        yield f"a draft token takes about {cost:.2g} target steps, so drafting can never pay, whatever is accepted"
    else:
        yield (
            f"at light load a draft token takes about {cost:.2g} of a target step, so K tokens break even at a length "
            f"of 1 + {cost:.2g} K, an acceptance of {cost:.0%}. Load raises that: it is a lower bound, not a forecast"
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


def _methods(target: Model) -> tuple[Method, ...]:
    """Heads are estimated at 16 bits."""
    head = _HEAD_BILLIONS * (target.billions / _HEAD_TARGET) ** _HEAD_POWER * 2
    trained, chat = "a head trained for this target", "chat and code at low to medium load; the first choice"
    repeated = "output that repeats earlier ones: agents, templates"
    return (
        Method("eagle3", trained, head, chat),
        Method("mtp", "a target with MTP layers of its own", None, "DeepSeek, GLM, MiMo, Qwen3-Next and their kin"),
        Method("ngram", "nothing", 0.0, "output that repeats its prompt: code edits, extraction, summaries"),
        Method("suffix", "a Python package, and host memory", 0.0, repeated),
    )
