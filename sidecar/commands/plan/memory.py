"""Where the memory goes: weights of the target and of its draft, and what is left for the KV cache.

GB are 10^9 bytes. Weights are parameters times bytes; activations, CUDA graphs and what quantization adds are not in.
"""

from dataclasses import dataclass

from sidecar.commands.plan.hardware import BYTES

_GB = 1e9


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token of context takes in the KV cache: a key and a value for each layer and KV head."""

    layers: int
    heads: int
    head_size: int

    def bytes_per_token(self, precision: str) -> float:
        """Bytes a token, over all GPUs together."""
        return 2 * self.layers * self.heads * self.head_size * BYTES[precision]


@dataclass(frozen=True, slots=True)
class Model:
    """``billions`` of parameters; ``kv_bytes`` a token of context, None where not known."""

    billions: float
    precision: str
    kv_bytes: float | None = None

    @property
    def weights_gb(self) -> float:
        """The weights' size."""
        return self.billions * BYTES[self.precision]


@dataclass(frozen=True, slots=True)
class Deployment:
    """``gpus`` of ``gpu_gb`` each that share the models (tensor or pipeline parallel); vLLM may use ``utilization``."""

    target: Model
    draft: Model
    gpus: int
    gpu_gb: float
    utilization: float


@dataclass(frozen=True, slots=True)
class Budget:
    """GB, and tokens where the KV cache's size a token is known. A budget below 0 means that it does not fit.

    ``left_gb`` is all memory less the weights; ``kv_gb`` what of that vLLM may use for the KV cache.
    ``kv_tokens_lost`` compares a cache beside the target alone with one that the draft takes weights from; where
    the draft's own keys and values are known, they take their part of each token as well.
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
    """Adds it up."""
    target, draft = deployment.target, deployment.draft
    memory = deployment.gpus * deployment.gpu_gb
    usable = memory * deployment.utilization
    weights = target.weights_gb + draft.weights_gb
    kv, alone = usable - weights, usable - target.weights_gb
    tokens = _tokens(kv, target.kv_bytes, draft.kv_bytes or 0.0)
    tokens_alone = _tokens(alone, target.kv_bytes, 0.0)
    return Budget(
        memory_gb=memory,
        target_gb=target.weights_gb,
        draft_gb=draft.weights_gb,
        weights_gb=weights,
        left_gb=memory - weights,
        kv_gb=kv,
        kv_gb_without_draft=alone,
        kv_tokens=tokens,
        kv_tokens_without_draft=tokens_alone,
        kv_tokens_lost=None if tokens is None or tokens_alone is None else tokens_alone - tokens,
    )


def _tokens(gb: float, target: float | None, draft: float) -> float | None:
    return None if target is None else max(gb, 0.0) * _GB / (target + draft)
