"""Kinds of layers: the parameters of each, what it caches per token, and its state per request.

``KINDS`` is the whole table. The size of a model with a layer of another kind is unknown. Biases,
norms and the like are left out.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from sidecar.sizes.caches import CachedLayers, CacheLayout, StateLayers
from sidecar.sizes.fields import ModelFields

KindName = Literal[
    "attention",
    "window",
    "MLA",
    "gated delta net",
    "Kimi delta attention",
    "lightning attention",
    "Mamba",
    "Mamba 2",
    "MLP",
    "experts",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of layer.

    ``cached`` returns nothing if it caches no tokens, ``state`` returns None if it keeps no state.
    """

    parameters: Callable[[ModelFields], float]
    cached: Callable[[ModelFields], tuple[CachedLayers, ...]] = lambda _fields: ()
    state: Callable[[ModelFields], StateLayers | None] = lambda _fields: None


def attention_kind(fields: ModelFields) -> KindName:
    """The kind of the layers that attend to all tokens."""
    return "MLA" if fields.kv_lora_rank else "attention"


def state_kind(fields: ModelFields) -> KindName | None:
    """The kind of the layers that keep a state; None if it is not known here."""
    if fields.linear_num_key_heads and fields.linear_num_value_heads:
        return "gated delta net"
    if fields.linear_attn_config is not None:
        return "Kimi delta attention"
    if fields.mamba_heads and isinstance(fields.mamba_head_dim, int):
        return "Mamba 2"
    if fields.mamba_expand:
        return "Mamba"
    if fields.attn_type_list is not None or fields.layer_group_size:
        return "lightning attention"
    return None


# Attention


def attention_parameters(fields: ModelFields, inputs: int = 1) -> float:
    """The parameters of full attention.

    Unless it is MLA, its input is ``inputs`` times as wide as the hidden size.
    """
    if fields.kv_lora_rank:
        return _mla_parameters(fields)
    return _grouped_attention(fields, fields.kv_heads, inputs)


def _grouped_attention(fields: ModelFields, kv_heads: int | None, inputs: int = 1) -> float:
    key = fields.size_of_head
    value = fields.v_head_dim or key
    queries = fields.heads * key * (2 if fields.gates_attention else 1)
    cached = (kv_heads or fields.heads) * (key + value)
    output = fields.heads * value
    return float(inputs * fields.hidden_size * (queries + cached) + output * fields.hidden_size)


def _keys_and_values(fields: ModelFields) -> tuple[CachedLayers, ...]:
    key = fields.size_of_head
    return (CachedLayers(1, fields.kv_heads or fields.heads, key + (fields.v_head_dim or key)),)


def _window_parameters(fields: ModelFields) -> float:
    return _grouped_attention(fields, fields.window_kv_heads or fields.kv_heads)


def _window_cached(fields: ModelFields) -> tuple[CachedLayers, ...]:
    (full,) = _keys_and_values(fields)
    kv_heads = fields.window_kv_heads or full.kv_heads
    return (replace(full, kv_heads=kv_heads, window=fields.sliding_window),)


def _mla_parameters(fields: ModelFields) -> float:
    """The projections of multi-head latent attention, as in DeepSeek."""
    rank = fields.kv_lora_rank or 0
    key = fields.qk_nope_head_dim + fields.qk_rope_head_dim
    value = fields.v_head_dim or fields.qk_nope_head_dim
    query = fields.hidden_size * fields.heads * key
    if fields.q_lora_rank:
        query = fields.q_lora_rank * (fields.hidden_size + fields.heads * key)

    down = fields.hidden_size * (rank + fields.qk_rope_head_dim)
    up = rank * fields.heads * (fields.qk_nope_head_dim + value)
    return float(query + down + up + fields.heads * value * fields.hidden_size)


def _mla_cached(fields: ModelFields) -> tuple[CachedLayers, ...]:
    """One vector, which all heads share; a sparse MLA also has a key by which it selects tokens.

    vLLM counts that key, with a scale for each 128 of its values, as a layer of its own.
    """
    layout: CacheLayout = "sparse latent" if fields.index_topk else "latent"
    values = (fields.kv_lora_rank or 0) + fields.qk_rope_head_dim
    latent = CachedLayers(1, 1, values, layout=layout)
    if not fields.index_topk:
        return (latent,)

    selecting = fields.index_head_dim + 4 * (fields.index_head_dim // 128)
    return (latent, CachedLayers(1, 1, selecting, layout="indexer"))


# States


def _delta_net_parameters(fields: ModelFields) -> float:
    """As in Qwen3-Next: queries, keys, values, their gate, and two scalars for each head."""
    keys, values, value_heads = _delta_net_sizes(fields)
    inputs = 2 * keys + 2 * values + 2 * value_heads
    return float(fields.hidden_size * (inputs + values))


def _delta_net_state(fields: ModelFields) -> StateLayers:
    keys, values, _ = _delta_net_sizes(fields)
    return StateLayers(
        count=1,
        values=values * fields.linear_key_head_dim,
        precision=fields.state_precision,
        channels=2 * keys + values,
        inputs=fields.convolution - 1,
    )


def _delta_net_sizes(fields: ModelFields) -> tuple[int, int, int]:
    """The width of all keys, that of all values, and the number of value heads."""
    value_heads = fields.linear_num_value_heads or 0
    keys = (fields.linear_num_key_heads or 0) * fields.linear_key_head_dim
    return keys, value_heads * fields.linear_value_head_dim, value_heads


def _kimi_parameters(fields: ModelFields) -> float:
    """Four projections, and two gates of low rank."""
    heads, head_dim = _kimi_heads(fields)
    width = heads * head_dim
    low_rank = head_dim * (fields.hidden_size + width)
    return float(fields.hidden_size * (4 * width + heads) + 2 * low_rank)


def _kimi_state(fields: ModelFields) -> StateLayers:
    """The recurrence has 32 bits, whatever the model's precision."""
    heads, head_dim = _kimi_heads(fields)
    width = heads * head_dim
    inputs = fields.convolution - 1
    return StateLayers(1, width * head_dim, "fp32", channels=3 * width, inputs=inputs)


def _kimi_heads(fields: ModelFields) -> tuple[int, int]:
    attention = fields.linear_attn_config
    return (attention.num_heads, attention.head_dim) if attention else (0, 0)


def _lightning_parameters(fields: ModelFields) -> float:
    """As in MiniMax-01: queries, keys, values, a gate and the output."""
    return float(5 * fields.hidden_size * fields.heads * fields.size_of_head)


def _lightning_state(fields: ModelFields) -> StateLayers:
    return StateLayers(1, fields.heads * fields.size_of_head**2)


def _mamba_parameters(fields: ModelFields) -> float:
    """The first Mamba, as in Jamba."""
    rank = fields.mamba_dt_rank
    if not isinstance(rank, int):
        rank = math.ceil(fields.hidden_size / 16)
    width = 3 * fields.hidden_size + 2 * rank + 3 * fields.mamba_state
    return float(_mamba_width(fields) * width)


def _mamba_state(fields: ModelFields) -> StateLayers:
    inner = _mamba_width(fields)
    return StateLayers(
        count=1,
        values=inner * fields.mamba_state,
        channels=inner,
        inputs=fields.convolution - 1,
        keeps_drafts=False,
    )


def _mamba_width(fields: ModelFields) -> int:
    return round((fields.mamba_expand or 0) * fields.hidden_size)


def _mamba2_parameters(fields: ModelFields) -> float:
    heads, inner = _mamba2_sizes(fields)
    inputs = 2 * inner + 2 * fields.mamba_groups * fields.mamba_state + heads
    return float(fields.hidden_size * (inputs + inner))


def _mamba2_state(fields: ModelFields) -> StateLayers:
    _, inner = _mamba2_sizes(fields)
    return StateLayers(
        count=1,
        values=inner * fields.mamba_state,
        precision=fields.state_precision,
        channels=inner,
        inputs=fields.convolution - 1,
        groups=fields.mamba_groups,
        group_channels=2 * fields.mamba_state,
    )


def _mamba2_sizes(fields: ModelFields) -> tuple[int, int]:
    """The number of heads, and the width of all of them."""
    heads, head_dim = fields.mamba_heads or 0, fields.mamba_head_dim
    return heads, heads * head_dim if isinstance(head_dim, int) else 0


# Feed-forward networks


def _mlp(fields: ModelFields) -> float:
    width = fields.dense_width or fields.intermediate_size
    return float(_matrices(fields) * fields.hidden_size * width)


def expert(fields: ModelFields) -> float:
    """The parameters of one of the experts among which the router chooses."""
    width = fields.moe_intermediate_size or fields.intermediate_size
    return float(_matrices(fields) * width * (fields.moe_latent_size or fields.hidden_size))


def _experts(fields: ModelFields) -> float:
    """The experts of one layer, those that all tokens share, and the router."""
    width = fields.moe_intermediate_size or fields.intermediate_size
    shared = fields.number_of_shared_experts * (fields.shared_expert_width or width)
    number = fields.experts or 0
    always = _matrices(fields) * shared * fields.hidden_size
    return number * expert(fields) + always + number * fields.hidden_size


def _matrices(fields: ModelFields) -> int:
    """The number of matrices in a feed-forward network: one with a squared ReLU has no gate."""
    return 2 if fields.activation == "relu2" else 3


KINDS: Final[Mapping[KindName, Kind]] = {
    "attention": Kind(parameters=attention_parameters, cached=_keys_and_values),
    "window": Kind(parameters=_window_parameters, cached=_window_cached),
    "MLA": Kind(parameters=_mla_parameters, cached=_mla_cached),
    "gated delta net": Kind(parameters=_delta_net_parameters, state=_delta_net_state),
    "Kimi delta attention": Kind(parameters=_kimi_parameters, state=_kimi_state),
    "lightning attention": Kind(parameters=_lightning_parameters, state=_lightning_state),
    "Mamba": Kind(parameters=_mamba_parameters, state=_mamba_state),
    "Mamba 2": Kind(parameters=_mamba2_parameters, state=_mamba2_state),
    "MLP": Kind(parameters=_mlp),
    "experts": Kind(parameters=_experts),
}
