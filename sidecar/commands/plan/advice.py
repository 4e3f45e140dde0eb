"""Whether a draft fits its target, by rules of thumb for pairing and memory; and methods without a draft model."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.commands.plan.memory import BYTES, Budget, Deployment, Model

METHODS: Final = (
    # The head's sizes are those of SpecForge's layout at the dimensions of Llama 3.1.
    ("eagle3", "a head trained for this target: 0.4B for 8B, 1.4B for 70B", "chat and code at low to medium load"),
    ("mtp", "a target with MTP layers of its own", "DeepSeek, GLM, MiMo, Qwen3-Next and similar"),
    ("ngram", "nothing", "output that repeats its prompt: code edits, extraction, summaries"),
    ("suffix", "a Python package, and host memory", "output that repeats earlier ones: agents, templates"),
)
"""Methods without a draft model: name, what they need, and what they suit."""


class Fit(StrEnum):
    """The verdict on a plan."""

    GOOD = "good"
    DOUBTFUL = "doubtful"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: the value found and the rule, both as shown, and what to do if the rule is broken."""

    name: str
    found: str
    rule: str
    passed: bool
    remedy: str


def verdict(found: Budget, rules: list[Check]) -> Fit:
    """The verdict that follows from the budget and the rules."""
    if not found.fits:
        return Fit.IMPOSSIBLE
    return Fit.GOOD if all(rule.passed for rule in rules) else Fit.DOUBTFUL


def checks(deployment: Deployment, found: Budget) -> Iterator[Check]:
    """Checks the rules; shares are of all memory, not only of vLLM's part."""
    remedy = "the weights leave no room for a KV cache at this utilization: quantize them or add GPUs"
    yield Check("room for a KV cache", f"{found.kv_gb:,.1f} GB", "above 0", found.fits, remedy)
    share = found.target_gb / found.memory_gb
    remedy = f"the target takes {share:.0%} of the memory: quantize it before you add a draft, or add GPUs"
    yield Check("target's share of memory", f"{share:.1%}", "at most 70%", share <= 0.70, remedy)
    if deployment.draft is None:
        return
    share = found.draft_gb / found.memory_gb
    remedy = f"the draft takes {share:.0%} of the memory: quantize it or use a smaller one"
    yield Check("draft's share of memory", f"{share:.1%}", "at most 15%", share <= 0.15, remedy)
    ratio = deployment.target.billions / deployment.draft.billions
    if ratio < 8:
        remedy = "is large, so drafting takes long: use one that is 1/8 to 1/12 of the target's size"
    else:
        remedy = "is small, so its acceptance rate may be low: measure it with `specdec-sidecar sweep`"
    remedy = f"the draft (1:{ratio:.1f}) {remedy}"
    yield Check("draft to target", f"1:{ratio:.1f}", "8 to 12", 8 <= ratio <= 12, remedy)


def remarks(target: Model, draft: Model | None) -> Iterator[str]:
    """The caveats of the numbers and the rules."""
    if target.kv_bytes is None:
        yield "to count the cache in tokens, set --kv: layers x KV heads x head size, as in the model's config.json"
    elif draft is not None and draft.kv_bytes is None:
        yield "the token count is without the draft's own keys and values: set --draft-kv"
    if draft is None:
        return
    yield (
        "make sure that both models have the same tokenizer: vLLM compares only the vocabulary sizes, and if the same "
        "id means different tokens, nothing is accepted"
    )
    yield (
        "1:8 to 1:12 is for draft models, not for EAGLE or MTP heads; vLLM's own benchmark used 1:140 and won at low "
        "load. A smaller draft costs less, but has a lower acceptance rate: measure to find out which is better"
    )
    # Decoding at light load is bound by reading the weights. With K tokens a step takes as long as 1 + c K plain ones,
    # so the acceptance rate (1 + c K - 1) / K = c breaks even.
    cost = draft.weights_gb / target.weights_gb
    yield (
        f"at light load a draft token takes about {cost:.2g} of a target step, so K tokens break even at a length "
        f"of 1 + {cost:.2g} K, an acceptance rate of {cost:.0%}. Load raises that: it is a lower bound, not a forecast"
    )
    if BYTES[target.precision] < BYTES[draft.precision]:
        yield (
            f"the target is at {target.precision} and the draft at {draft.precision}: quantize the draft first, as its "
            "errors cost acceptance but never quality, or use one precision for both"
        )
