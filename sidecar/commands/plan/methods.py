"""vLLM's methods other than a draft model: those that need no draft or only a head."""

from dataclasses import dataclass
from typing import Final

from sidecar.commands.plan.memory import Model

# An EAGLE-3 head is one decoder layer whose attention reads two hidden states, a layer that fuses three into one, and
# an output layer over a draft vocabulary. SpecForge's configuration for Llama 3.1 8B (draft vocabulary 32,000) gives
# 0.425B, the same layout with the 70B's dimensions 1.40B; a power law between and beyond them (Qwen3 32B: 0.93B instead
# of 0.78B). EAGLE's README has 0.25B and 0.99B for the heads of EAGLE-1 and 2, which take the target's output layer.
_HEAD_BILLIONS: Final = 0.425
_HEAD_TARGET: Final = 8.0
_HEAD_POWER: Final = 0.55
HEAD_ESTIMATE: Final = (
    f"estimated: {_HEAD_BILLIONS}B x (target / {_HEAD_TARGET:g}B)^{_HEAD_POWER} at 16 bits, "
    "from the layout of the heads for Llama 8B and 70B"
)


@dataclass(frozen=True, slots=True)
class Method:
    """What it ``needs``, the ``memory_gb`` it takes (None: part of the target's own weights), and what it suits."""

    name: str
    needs: str
    memory_gb: float | None
    purpose: str


def methods(target: Model) -> tuple[Method, ...]:
    """All of them for this target; heads are estimated at 16 bits."""
    head = _HEAD_BILLIONS * (target.billions / _HEAD_TARGET) ** _HEAD_POWER * 2
    return (
        Method(
            "eagle3", "a head trained for this target", head, "chat and code at low to medium load; the first choice"
        ),
        Method("mtp", "a target with MTP layers of its own", None, "DeepSeek, GLM, MiMo, Qwen3-Next and their kin"),
        Method("ngram", "nothing", 0.0, "output that repeats its prompt: code edits, extraction, summaries"),
        Method(
            "suffix", "a Python package, and host memory", 0.0, "output that repeats earlier ones: agents, templates"
        ),
    )
