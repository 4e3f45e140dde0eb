"""Layers that keep a state of fixed size for each request, instead of keys and values."""

import math
from dataclasses import dataclass

from sidecar.sizes.fields import LinearAttention, ModelFields


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A layer with a state: its parameters, and the values of one state.

    Biases and norms are left out. Source of the values: ``MambaStateShapeCalculator`` of vLLM 0.32
    (model_executor/layers/mamba/mamba_utils.py), where each of them has 16 or 32 bits.
    """

    parameters: float
    values: int


def state_layer(fields: ModelFields) -> StateLayer | None:
    """The layer that these fields describe; None if its kind is not known here."""
    if fields.linear_num_key_heads and fields.linear_num_value_heads:
        return _gated_delta_net(fields, fields.linear_num_key_heads, fields.linear_num_value_heads)
    if fields.linear_attn_config is not None:
        return _kimi_delta_attention(fields, fields.linear_attn_config)
    if fields.mamba_heads and isinstance(fields.mamba_head_dim, int):
        return _mamba2(fields, fields.mamba_heads, fields.mamba_head_dim)
    if fields.mamba_expand:
        return _mamba(fields, round(fields.mamba_expand * fields.hidden_size))
    return None


def _gated_delta_net(fields: ModelFields, key_heads: int, value_heads: int) -> StateLayer:
    """As Qwen3-Next's: queries, keys, values, their gate, and two scalars for each head."""
    keys = key_heads * fields.linear_key_head_dim
    values = value_heads * fields.linear_value_head_dim
    inputs = 2 * keys + 2 * values + 2 * value_heads

    convolved = (2 * keys + values) * (fields.convolution - 1)
    return StateLayer(
        parameters=float(fields.hidden_size * (inputs + values)),
        values=convolved + values * fields.linear_key_head_dim,
    )


def _kimi_delta_attention(fields: ModelFields, attention: LinearAttention) -> StateLayer:
    """Kimi Linear's: four projections, and two gates of low rank."""
    width = attention.num_heads * attention.head_dim
    low_rank = attention.head_dim * (fields.hidden_size + width)
    inputs = 4 * width + attention.num_heads

    convolved = 3 * width * (fields.convolution - 1)
    return StateLayer(
        parameters=float(fields.hidden_size * inputs + 2 * low_rank),
        values=convolved + width * attention.head_dim,
    )


def _mamba2(fields: ModelFields, heads: int, head_dim: int) -> StateLayer:
    inner = heads * head_dim
    groups = 2 * fields.mamba_groups * fields.mamba_state
    inputs = 2 * inner + groups + heads

    convolved = (inner + groups) * (fields.convolution - 1)
    return StateLayer(
        parameters=float(fields.hidden_size * (inputs + inner)),
        values=convolved + inner * fields.mamba_state,
    )


def _mamba(fields: ModelFields, inner: int) -> StateLayer:
    """The first Mamba, as Jamba's."""
    rank = fields.mamba_dt_rank
    if not isinstance(rank, int):
        rank = math.ceil(fields.hidden_size / 16)

    width = 3 * fields.hidden_size + 2 * rank + 3 * fields.mamba_state
    return StateLayer(
        parameters=float(inner * width),
        values=inner * (fields.convolution - 1 + fields.mamba_state),
    )
