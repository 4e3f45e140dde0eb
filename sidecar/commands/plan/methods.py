"""vLLM's methods beside a draft model: those that need no draft, or only a head."""

from dataclasses import dataclass
from typing import Final

from sidecar.commands.plan.memory import Deployment, budget

# EAGLE's authors publish heads of 0.25B for 8B and 0.99B for 70B (not verified here); a power law between them.
_HEAD_BILLIONS: Final = 0.25
_HEAD_TARGET: Final = 8.0
_HEAD_POWER: Final = 0.634


@dataclass(frozen=True, slots=True)
class Method:
    """What it ``needs``, the ``memory_gb`` it takes (None: part of the target's own weights), and what it suits."""

    name: str
    needs: str
    memory_gb: float | None
    purpose: str


def methods(deployment: Deployment) -> tuple[Method, ...]:
    """All of them for this target; heads are estimated at 16 bits."""
    head = head_billions(deployment.target.billions) * 2
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


def head_billions(target_billions: float) -> float:
    """An EAGLE head's parameters, in billions; an estimate."""
    return float(_HEAD_BILLIONS * (target_billions / _HEAD_TARGET) ** _HEAD_POWER)


def leaves_room(deployment: Deployment, method: Method) -> bool:
    """Whether a KV cache fits beside the target and the method."""
    return budget(deployment).kv_gb_without_draft - (method.memory_gb or 0.0) > 0
