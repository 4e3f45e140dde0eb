"""What layers keep for a request: a part for each of its tokens, or one state of fixed size."""

from dataclasses import dataclass
from typing import Final, Literal

from sidecar.sizes.precision import BYTES, UNQUANTIZED

CacheLayout = Literal["heads", "latent", "sparse latent", "indexer"]
"""What a layer caches for a token: a key and a value for each KV head; the latent vector of
multi-head latent attention (MLA), dense or sparse; or the 8-bit key by which sparse MLA selects."""
_SPARSE_LATENT_FP8: Final = 656
"""Bytes of vLLM's layout fp8_ds_mla: 512 values and 4 scales, and 64 values at 16 bits for RoPE."""
_SCALE_BYTES: Final = 4
_VALUES_OF_A_SCALE: Final = 16  # in NVFP4, whose scales take a byte each


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Attention layers that cache alike.

    ``head_values`` are the values cached per token and KV head: key and value, or a vector that all
    heads share, which counts as one head. ``window`` is the sliding window in tokens, None for full
    attention.
    """

    count: int
    kv_heads: int
    head_values: int
    window: int | None = None
    layout: CacheLayout = "heads"

    @property
    def values(self) -> int:
        """How many values one layer caches per token, for all KV heads."""
        return self.kv_heads * self.head_values

    def bytes_per_token(self, tensor_parallel: int, precision: str) -> float:
        """The bytes that each of the GPUs caches per token in one layer.

        ``tensor_parallel`` is the number of GPUs, ``precision`` that of the cache. GPUs beyond the
        number of heads hold copies (vLLM 0.32, config/model.py, ``get_num_kv_heads``).
        """
        heads = max(1, self.kv_heads // tensor_parallel)
        return heads * self._head_bytes(precision)

    def _head_bytes(self, precision: str) -> float:
        """The bytes that one KV head caches per token, with its scales.

        Sources, in vLLM 0.32: ``customize_spec`` in v1/attention/backends/triton_attn.py for
        integers and ``nvfp4_kv_cache_full_dim`` in utils/torch_utils.py for 4-bit floats; for
        sparse MLA ``get_kv_cache_spec`` in model_executor/layers/attention/mla_attention.py, and
        ``Indexer`` in model_executor/models/deepseek_v2.py for what selects its tokens.
        """
        if self.layout == "indexer":
            return self.head_values
        if self.layout == "sparse latent" and precision == "fp8":
            return _SPARSE_LATENT_FP8

        values = self.head_values * BYTES[precision]
        if precision in {"int8", "int4"}:
            return values + 2 * _SCALE_BYTES  # of the key and of the value
        if precision == "fp4":
            return values + self.head_values / _VALUES_OF_A_SCALE
        return values


@dataclass(frozen=True, slots=True)
class StateLayers:
    """Layers that keep a state of fixed size for each request, all of them alike.

    A state is the ``values`` of a recurrence, at ``precision``, and the last ``inputs`` of each of
    the ``channels`` of a convolution, at 16 bits; each of ``groups`` has ``group_channels`` more of
    them. The inputs of draft tokens are kept, too, unless ``keeps_drafts`` is false. GPUs share all
    of it, and copy groups that they cannot share. Source: ``MambaStateShapeCalculator`` and
    ``MambaStateDtypeCalculator`` of vLLM 0.32 (model_executor/layers/mamba/mamba_utils.py).
    """

    count: int
    values: int
    precision: str = UNQUANTIZED
    channels: int = 0
    inputs: int = 0
    groups: int = 0
    group_channels: int = 0
    keeps_drafts: bool = True

    def bytes_per_state(self, tensor_parallel: int, draft_tokens: int) -> float:
        """The bytes of one state of one layer on each of ``tensor_parallel`` GPUs."""
        groups = self.groups
        if groups % tensor_parallel:
            groups += tensor_parallel - groups

        inputs = self.inputs + (draft_tokens if self.keeps_drafts else 0)
        convolution = (self.channels + groups * self.group_channels) * inputs * BYTES[UNQUANTIZED]
        return (self.values * BYTES[self.precision] + convolution) / tensor_parallel
