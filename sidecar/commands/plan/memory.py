"""The memory budget: weights of the target and its draft, and what is left for the KV cache.

A GB is 10^9 bytes. Weights are parameters times bytes, without activations, CUDA graphs and quantization scales.
"""

from dataclasses import dataclass
from typing import Final

GPU_GB: Final = {  # from the data sheets
    **dict.fromkeys(("a10", "a30", "l4", "rtx4090"), 24.0),
    "rtx5090": 32.0,
    "a100-40": 40.0,
    **dict.fromkeys(("a40", "l40s"), 48.0),
    **dict.fromkeys(("a100-80", "h100"), 80.0),
    "mi250": 128.0,
    "h200": 141.0,
    "b200": 180.0,
    "mi300x": 192.0,
    "mi325x": 256.0,
}

BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Bytes per parameter or cached value, without quantization scales and zero points."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model of ``billions`` of parameters; ``kv_bytes`` per token of context, over all GPUs, None if unknown."""

    billions: float
    precision: str
    kv_bytes: float | None = None

    @property
    def weights_gb(self) -> float:
        """The weights' size."""
        return self.billions * BYTES[self.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Both models spread over ``gpus`` of ``gpu_gb`` each, as in vLLM, which may use the share ``utilization``."""

    target: Model
    draft: Model | None
    gpus: int
    gpu_gb: float
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes in GB, and tokens if the KV cache's bytes per token are known.

    ``kv_gb`` is the part of ``left_gb`` that vLLM may use for the KV cache; at 0 or below, the models do not fit.
    """

    memory_gb: float
    target_gb: float
    draft_gb: float
    kv_gb: float
    kv_tokens: float | None

    @property
    def weights_gb(self) -> float:
        """The size of both models' weights."""
        return self.target_gb + self.draft_gb

    @property
    def left_gb(self) -> float:
        """All memory minus the weights."""
        return self.memory_gb - self.weights_gb

    @property
    def fits(self) -> bool:
        """Whether anything is left for the KV cache."""
        return self.kv_gb > 0


def budget(deployment: Deployment) -> Budget:
    """Computes the budget; the draft's own keys and values, if known, add to the bytes of each token."""
    target, draft = deployment.target, deployment.draft
    draft_gb, draft_kv = (draft.weights_gb, draft.kv_bytes or 0.0) if draft else (0.0, 0.0)
    memory = deployment.gpus * deployment.gpu_gb
    kv = memory * deployment.utilization - target.weights_gb - draft_gb
    tokens = None if target.kv_bytes is None else max(kv, 0.0) * 1e9 / (target.kv_bytes + draft_kv)
    return Budget(memory_gb=memory, target_gb=target.weights_gb, draft_gb=draft_gb, kv_gb=kv, kv_tokens=tokens)
