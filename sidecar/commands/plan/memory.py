"""The memory budget: weights of the target and its draft, and what is left for the KV cache.

GB are 10^9 bytes. Weights are parameters times bytes; activations, CUDA graphs and quantization's scales are not
included.
"""

from dataclasses import dataclass
from typing import Final

GPU_GB: Final = {  # from the data sheets
    name: gigabytes
    for gigabytes, names in (
        (24.0, ("a10", "a30", "l4", "rtx4090")),
        (32.0, ("rtx5090",)),
        (40.0, ("a100-40",)),
        (48.0, ("a40", "l40s")),
        (80.0, ("a100-80", "h100")),
        (128.0, ("mi250",)),
        (141.0, ("h200",)),
        (180.0, ("b200",)),
        (192.0, ("mi300x",)),
        (256.0, ("mi325x",)),
    )
    for name in names
}

BYTES: Final = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
"""Bytes per parameter or cached value, without quantization's scales and zero points."""


@dataclass(frozen=True, slots=True)
class KvShape:
    """The size of one token of context in the KV cache: a key and a value for each layer and KV head."""

    layers: int
    heads: int
    head_size: int

    def bytes_per_token(self, precision: str) -> float:
        """Bytes per token, over all GPUs together."""
        return 2 * self.layers * self.heads * self.head_size * BYTES[precision]


@dataclass(frozen=True, slots=True)
class Model:
    """``billions`` of parameters; ``kv_bytes`` per token of context, None if unknown."""

    billions: float
    precision: str
    kv_bytes: float | None = None

    @property
    def weights_gb(self) -> float:
        """The weights' size."""
        return self.billions * BYTES[self.precision]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """``gpus`` of ``gpu_gb`` each that share the target; vLLM may use ``utilization`` of them.

    ``draft_gpus`` is vLLM's ``draft_tensor_parallel_size``: all of them, or 1, and then one GPU holds all of the draft.
    """

    target: Model
    draft: Model | None
    gpus: int
    gpu_gb: float
    utilization: float
    draft_gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """GB, and tokens if the KV cache's bytes per token are known. A budget below 0 does not fit.

    ``left_gb`` is all memory minus the weights; ``kv_gb`` is the part of it that vLLM may use for the KV cache: on each
    GPU as many blocks as the fullest one has room for. ``kv_tokens_lost`` are the tokens that the draft's weights
    displace; its own keys and values, if known, also take a part of each token.
    """

    memory_gb: float
    target_gb: float
    draft_gb: float
    weights_gb: float
    left_gb: float
    kv_gb: float
    kv_gb_without_draft: float
    kv_tokens: float | None
    kv_tokens_without_draft: float | None
    kv_tokens_lost: float | None


def budget(deployment: Deployment) -> Budget:
    """Computes the budget."""
    target, draft = deployment.target, deployment.draft
    draft_gb, draft_kv = (draft.weights_gb, draft.kv_bytes or 0.0) if draft else (0.0, 0.0)
    memory, weights = deployment.gpus * deployment.gpu_gb, target.weights_gb + draft_gb
    alone = memory * deployment.utilization - target.weights_gb
    kv = alone - draft_gb * deployment.gpus / deployment.draft_gpus
    tokens = tokens_alone = None
    if target.kv_bytes is not None:
        tokens, tokens_alone = (
            max(kv, 0.0) * 1e9 / (target.kv_bytes + draft_kv),
            max(alone, 0.0) * 1e9 / target.kv_bytes,
        )
    return Budget(
        memory_gb=memory,
        target_gb=target.weights_gb,
        draft_gb=draft_gb,
        weights_gb=weights,
        left_gb=memory - weights,
        kv_gb=kv,
        kv_gb_without_draft=alone,
        kv_tokens=tokens,
        kv_tokens_without_draft=tokens_alone,
        kv_tokens_lost=None if tokens is None or tokens_alone is None else tokens_alone - tokens,
    )
