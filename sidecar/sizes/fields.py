"""The fields of a model's configuration, under the names that different families give them."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
)

from sidecar.sizes.families import Family, family_of
from sidecar.sizes.precision import UNQUANTIZED

_MOST_LAYERS: Final = 10_000
# Names for the longest context. If several are given, the shortest counts (vLLM 0.32,
# transformers_utils/model_arch_config_convertor.py, ``derive_max_model_len_and_key``).
LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
OVERRIDING_LENGTH: Final = "model_max_length"
# Fields of layers that keep a state of fixed size, or have yet another kind of cache. Another field
# has to say which layers these are.
_OTHER_CACHES: Final = (
    "block_configs",
    "compress_ratios",
    "conv_L_cache",
    "layer_group_size",
    "linear_attn_config",
    "linear_key_head_dim",
    "linear_num_value_heads",
    "lru_width",
    "mamba_d_ssm",
    "mamba_d_state",
    "mamba_n_heads",
    "mamba_num_heads",
    "ssm_state_size",
    "state_size",
    "time_step_rank",
)


def _named(*names: str) -> Any:
    return Field(None, validation_alias=AliasChoices(*names))


class LinearAttention(BaseModel):
    """Kimi Linear's layers with a state; ``full_attn_layers`` numbers the others from 1."""

    num_heads: PositiveInt
    head_dim: PositiveInt
    full_attn_layers: list[int] | None = None


class ModelFields(BaseModel):
    """The fields that decide a model's size, and what it caches."""

    model_config = ConfigDict(extra="ignore")

    model_type: str | None = None
    architectures: list[str] | None = None
    dtype: str | None = _named("dtype", "torch_dtype")
    quantization_config: dict[str, Any] | None = None
    lengths: dict[str, PositiveInt | None] = {}
    rope: dict[str, Any] | None = _named("rope_scaling", "rope_parameters")

    hidden_size: PositiveInt
    layers: PositiveInt = Field(
        le=_MOST_LAYERS, validation_alias=AliasChoices("num_hidden_layers", "n_layer")
    )
    vocab_size: PositiveInt
    draft_vocab_size: PositiveInt | None = None
    target_hidden_size: PositiveInt | None = None
    tie_word_embeddings: bool = False
    mtp_layers: int | None = _named(
        "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"
    )

    # Attention
    heads: PositiveInt = Field(validation_alias=AliasChoices("num_attention_heads", "n_head"))
    kv_heads: PositiveInt | None = _named("num_key_value_heads")
    head_dim: PositiveInt | None = _named("head_dim", "attention_head_dim")
    v_head_dim: PositiveInt | None = None
    attn_output_gate: bool | None = None
    kv_lora_rank: PositiveInt | None = None
    q_lora_rank: PositiveInt | None = None
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    index_topk: int | None = None
    index_head_dim: PositiveInt = 128
    index_topk_freq: int = 1
    index_topk_pattern: str | list[str] | None = None
    num_kv_shared_layers: int = 0
    sliding_window: int | None = None
    use_sliding_window: bool = True
    sliding_window_pattern: PositiveInt | None = None
    hybrid_layer_pattern: list[int] | None = None
    window_kv_heads: PositiveInt | None = _named("swa_num_key_value_heads")

    # Which layers have attention, and which keep a state
    layer_types: list[str] | None = _named("layer_types", "layers_block_type")
    hybrid_override_pattern: str | None = None
    attn_type_list: list[int] | None = None
    attention_places: list[int] | None = _named("attn_layer_indices", "full_attn_idxs")
    linear_attn_config: LinearAttention | None = None
    attention_interval: NonNegativeInt | None = _named("full_attention_interval")
    layer_group_size: NonNegativeInt | None = None
    attn_layer_period: PositiveInt | None = None
    attn_layer_offset: int = 0
    has_other_caches: bool = False

    # Layers that keep a state
    linear_num_key_heads: PositiveInt | None = None
    linear_num_value_heads: PositiveInt | None = None
    linear_key_head_dim: PositiveInt = 128
    linear_value_head_dim: PositiveInt = 128
    mamba_heads: PositiveInt | None = _named("mamba_num_heads", "mamba_n_heads")
    mamba_head_dim: PositiveInt | str | None = _named("mamba_head_dim", "mamba_d_head")
    mamba_groups: PositiveInt = Field(
        1, validation_alias=AliasChoices("n_groups", "mamba_n_groups")
    )
    mamba_state: PositiveInt = Field(
        16, validation_alias=AliasChoices("ssm_state_size", "mamba_d_state")
    )
    mamba_expand: float | None = None
    convolution: PositiveInt = Field(
        4, validation_alias=AliasChoices("linear_conv_kernel_dim", "conv_kernel", "mamba_d_conv")
    )
    mamba_dt_rank: PositiveInt | str | None = None
    state_dtype: str | None = _named("mamba_ssm_dtype", "mamba_ssm_cache_dtype")

    # Feed-forward networks and experts
    intermediate_size: int = 0
    dense_width: int | None = _named("intermediate_size_mlp", "dense_intermediate_size")
    activation: str | None = _named("mlp_hidden_act", "hidden_act", "hidden_activation")
    experts: int | None = _named(
        "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    )
    # A list has a number for each layer, which is not known here.
    experts_per_token: int | list[int] | None = _named(
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "top_k_experts",
        "moe_top_k",
        "moe_topk",
        "moe_k",
    )
    moe_intermediate_size: int | None = None
    moe_latent_size: PositiveInt | None = None
    shared_experts: int | None = _named(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts"
    )
    shared_expert_width: int | None = _named(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"
    )

    # Which layers have experts
    first_k_dense_replace: int = 0
    moe_layer_freq: int | list[int] = 1
    sparse_step: int = Field(
        1,
        validation_alias=AliasChoices(
            "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"
        ),
    )
    mlp_only_layers: list[int] | None = None
    expert_layer_period: PositiveInt = 1
    expert_layer_offset: int = 0
    moe_layers: list[int] | None = None
    moe_layers_enum: str | None = None
    mlp_layer_types: list[str] | None = None
    moe_layer_start_index: int = 0
    moe_layer_end_index: int = -1

    @property
    def family(self) -> Family:
        """What is assumed if no field says it."""
        return family_of(self.model_type)

    @property
    def size_of_head(self) -> int:
        """The values of a key; the hidden size is divided among the heads if no field says it."""
        return self.head_dim or self.hidden_size // self.heads

    @property
    def gates_attention(self) -> bool:
        """Whether attention has a gate as large as its queries, as in Qwen3-Next."""
        if self.attn_output_gate is not None:
            return self.attn_output_gate
        return self.family.gates_attention

    @property
    def state_precision(self) -> str:
        """The precision of a state's recurrence, for kinds of layers that leave it to the model."""
        assumed = self.family.state_dtype
        dtype = assumed and (self.state_dtype or assumed)
        return "fp32" if dtype == "float32" else UNQUANTIZED

    @property
    def idle_experts(self) -> int | None:
        """How many experts of a layer a token does not pass; None if no field says it."""
        chosen = self.experts_per_token
        experts = self.experts or 0
        if not isinstance(chosen, int) or not 0 < chosen <= experts:
            return None
        return experts - chosen

    @property
    def number_of_shared_experts(self) -> int:
        """How many experts of a layer every token passes."""
        if self.shared_experts is not None:
            return self.shared_experts
        return 1 if self.shared_expert_width else self.family.shared_experts


def fields_of(config: Mapping[str, Any]) -> ModelFields:
    """The fields of a configuration whose first level is that of the language model.

    Raises:
        pydantic.ValidationError: it is not the configuration of a decoder.
    """
    lengths = {name: config.get(name) for name in (*LENGTHS, OVERRIDING_LENGTH)}
    others = any(config.get(name) for name in _OTHER_CACHES)
    return ModelFields.model_validate({**config, "lengths": lengths, "has_other_caches": others})
