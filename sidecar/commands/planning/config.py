"""Reads a model's ``config.json``, and what lies beside it, into a ``ModelShape``.

The parameters are those of the usual decoder: attention (grouped, or MLA as in DeepSeek), a gated
MLP of three matrices or experts of them, embeddings. Where the weights are there as well, their
size on disk counts instead.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from sidecar.commands.arguments import read_input
from sidecar.commands.planning.shape import UNQUANTIZED, CachedLayers, CacheLayout, ModelShape
from sidecar.errors import InputError

_MOST_BYTES: Final = 16 * 1024 * 1024  # of a config.json
_MOST_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
_STATEFUL: Final = ("linear_attention", "mamba", "mamba2", "recurrent", "conv")
_BY_DTYPE: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_BY_BITS: Final = {4: "int4", 8: "int8"}
# Names of the longest context, of which the shortest counts (vLLM 0.32,
# transformers_utils/model_arch_config_convertor.py, ``derive_max_model_len_and_key``).
_LENGTHS: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
_OVERRIDING_LENGTH: Final = "model_max_length"
# Kinds of RoPE whose longest context is scaled already (vLLM 0.32, config/model.py,
# ``_get_and_verify_max_len``).
_SCALED_ROPE: Final = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)


def _named(*names: str) -> Any:
    return Field(None, validation_alias=AliasChoices(*names))


class _Config(BaseModel):
    """The fields that decide a model's size, under the names of several families."""

    model_config = ConfigDict(extra="ignore")

    model_type: str | None = None
    architectures: list[str] | None = None
    dtype: str | None = _named("dtype", "torch_dtype")
    hidden_size: PositiveInt
    layers: PositiveInt = Field(validation_alias=AliasChoices("num_hidden_layers", "n_layer"))
    heads: PositiveInt = Field(validation_alias=AliasChoices("num_attention_heads", "n_head"))
    kv_heads: PositiveInt | None = _named("num_key_value_heads")
    head_dim: PositiveInt | None = None
    v_head_dim: PositiveInt | None = None
    kv_lora_rank: PositiveInt | None = None
    q_lora_rank: PositiveInt | None = None
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    vocab_size: PositiveInt
    draft_vocab_size: PositiveInt | None = None
    tie_word_embeddings: bool = False
    intermediate_size: int = 0
    experts: int | None = _named("num_local_experts", "n_routed_experts", "num_experts")
    moe_intermediate_size: int | None = None
    shared_experts: int | None = _named("n_shared_experts")
    shared_expert_intermediate_size: int | None = None
    first_k_dense_replace: int = 0
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = True
    sliding_window_pattern: PositiveInt | None = None
    lengths: dict[str, PositiveInt | None] = {}
    rope: dict[str, Any] | None = _named("rope_scaling", "rope_parameters")
    mtp_layers: int | None = _named(
        "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers"
    )
    index_topk: int | None = None
    index_head_dim: PositiveInt = 128
    index_topk_freq: int = 1
    index_topk_pattern: str | list[str] | None = None
    target_hidden_size: PositiveInt | None = None
    quantization_config: dict[str, Any] | None = None


def read_model(path: Path, precision: str | None, method: str | None) -> ModelShape:
    """The model whose folder or ``config.json`` this is.

    ``precision`` is None for that of the files. ``method`` is the one by which a draft drafts, None
    for a target.

    Raises:
        InputError: it cannot be read, or is not the configuration of such a model.
    """
    folder = path if path.is_dir() else path.parent
    file = path / "config.json" if path.is_dir() else path
    config = _read(file)
    stored = _stored_precision(config)
    if precision is None and stored is None:
        raise InputError(f"{file}: unknown quantization; set --target-precision, --draft-precision")

    size = _Size(config)
    model = ModelShape(
        name=str(folder),
        parameters=size.head(method) if _is_head(method) else size.whole(),
        embedded=size.head_output(method) if _is_head(method) else size.embeddings(),
        precision=precision or stored or UNQUANTIZED,
        file_bytes=_file_bytes(folder) if precision in (None, stored) else None,
        file_precision=stored,
        heads=config.heads,
        layers=tuple(_cached(config)),
        family=config.model_type,
        vocabulary=config.vocab_size,
        tokenizer=_tokenizer(folder),
        longest_context=_longest_context(config),
        notes=tuple(_notes(config)),
        has_weights=_file_bytes(folder) is not None,
    )
    return _with_mtp(model, size, config)


def method_of(path: Path) -> str:
    """The method that a draft's ``config.json`` names: a head's, or ``draft_model``.

    Raises:
        InputError: it cannot be read, or is not the configuration of such a model.
    """
    config = _read(path / "config.json" if path.is_dir() else path)
    names = " ".join(config.architectures or ()).lower()
    for method in ("eagle3", "eagle", "dflash"):
        if method in names:
            return method
    return "draft_model"


def _read(file: Path) -> _Config:
    try:
        fields = json.loads(read_input(file, _MOST_BYTES))
        # Models that see images nest the language model's fields.
        nested = fields.get("text_config") or fields.get("llm_config") or {}
        fields = {**fields, **nested}
        lengths = {name: fields.get(name) for name in (*_LENGTHS, _OVERRIDING_LENGTH)}
        return _Config.model_validate({**fields, "lengths": lengths})
    except ValidationError as error:
        missing = ", ".join(str(one["loc"][-1]) for one in error.errors())
        raise InputError(f"{file}: not a decoder's config.json ({missing})") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{file}: not a JSON object") from None


def _stored_precision(config: _Config) -> str | None:
    """The precision of the files; None where the configuration names an unknown quantization."""
    quantization = config.quantization_config
    if not quantization:
        return _BY_DTYPE.get(config.dtype or "bfloat16", UNQUANTIZED)

    named = json.dumps(quantization).lower()
    if "fp4" in named:
        return "fp4"

    bits = quantization.get("bits") or quantization.get("w_bit") or _group_bits(quantization)
    if bits == 8 and '"float"' in named:
        return "fp8"
    if bits in _BY_BITS:
        return _BY_BITS[bits]
    return "fp8" if "fp8" in named else None


def _group_bits(quantization: Mapping[str, Any]) -> int | None:
    """The bits of the weights as llm-compressor writes them."""
    found = re.search(r'"weights": \{[^}]*"num_bits": (\d+)', json.dumps(quantization))
    return int(found[1]) if found else None


def _file_bytes(folder: Path) -> int | None:
    """The size of the weights in the folder; None without any."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            return int(json.loads(read_input(index, _MOST_BYTES))["metadata"]["total_size"])
        return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None
    except (OSError, ValueError, LookupError, TypeError, InputError):
        return None


def _tokenizer(folder: Path) -> str | None:
    """A digest of which token each id is; None without a ``tokenizer.json``."""
    try:
        content = json.loads(read_input(folder / "tokenizer.json", _MOST_TOKENIZER_BYTES))
        vocabulary = content["model"]["vocab"], content.get("added_tokens")
    except (InputError, ValueError, LookupError, TypeError):
        return None
    return sha256(json.dumps(vocabulary, sort_keys=True).encode()).hexdigest()


def _longest_context(config: _Config) -> int | None:
    """The tokens that vLLM lets a request have, as it derives them; None if it takes any number.

    vLLM 0.32 reads the tokenizer's own limit only for models that pool (config/model.py,
    ``get_and_verify_max_len``), and so it is not read here.
    """
    lengths = [config.lengths.get(name) for name in _LENGTHS]
    known = [length for length in lengths if length is not None]
    longest = config.lengths.get(_OVERRIDING_LENGTH) or min(known, default=None)
    if longest is None or "gemma3" in (config.model_type or ""):
        return longest
    return int(longest * _rope_factor(config.rope or {}))


def _rope_factor(rope: Mapping[str, Any]) -> float:
    """How much longer a context is than the configuration says."""
    by_kind_of_layer = [one for one in rope.values() if isinstance(one, Mapping)]
    for one in by_kind_of_layer or (rope,):
        kind = one.get("rope_type", one.get("type", "default"))
        factor = one.get("factor")
        if kind not in _SCALED_ROPE and isinstance(factor, int | float):
            return factor
    return 1.0


def _is_head(method: str | None) -> bool:
    return method in {"eagle", "eagle3", "dflash"}


def _head_dim(config: _Config) -> int:
    return config.head_dim or config.hidden_size // config.heads


def _cached(config: _Config) -> Iterator[CachedLayers]:
    """The layers by what they cache; those that keep a state of fixed size are left out."""
    layers = _attention(config)
    for window, count in Counter(_windows(config)).items():
        yield replace(layers, count=count, window=window)

    yield from _indexer(config, config.layers)


def _attention(config: _Config) -> CachedLayers:
    """One layer of it, without a window."""
    if config.kv_lora_rank:
        latent = config.kv_lora_rank + config.qk_rope_head_dim
        layout: CacheLayout = "sparse latent" if config.index_topk else "latent"
        return CachedLayers(1, 1, latent, layout=layout)

    key = _head_dim(config)
    return CachedLayers(1, config.kv_heads or config.heads, key + (config.v_head_dim or key))


def _indexer(config: _Config, count: int) -> Iterator[CachedLayers]:
    """What selects the tokens of a sparse MLA in so many layers: a key, and a scale for 128 values.

    vLLM counts it as a layer of its own.
    """
    if config.index_topk and config.kv_lora_rank:
        values = config.index_head_dim + 4 * (config.index_head_dim // 128)
        yield CachedLayers(count, 1, values, layout="indexer")


def _windows(config: _Config) -> Iterator[int | None]:
    """The window of each layer that caches keys and values."""
    sliding = config.sliding_window if config.use_sliding_window else None

    for place in range(config.layers):
        if config.layer_types is not None and place < len(config.layer_types):
            kind = config.layer_types[place]
            if kind not in _STATEFUL:
                yield sliding if "sliding" in kind else None
        elif config.sliding_window_pattern:
            is_full = (place + 1) % config.sliding_window_pattern == 0
            yield None if is_full else sliding
        elif config.model_type == "gemma2":
            is_full = place % 2 == 1
            yield None if is_full else sliding
        else:
            yield sliding


def _notes(config: _Config) -> Iterator[str]:
    stateful = [kind for kind in config.layer_types or () if kind in _STATEFUL]
    if stateful:
        yield (
            f"{len(stateful)} layers of {config.model_type} keep a state of fixed size for each "
            "request, which is not counted"
        )
    if config.index_topk and (config.index_topk_pattern or config.index_topk_freq > 1):
        yield (
            f"some layers of {config.model_type} share the indexer of another one; one in each "
            "layer is counted"
        )


def _with_mtp(target: ModelShape, size: "_Size", config: _Config) -> ModelShape:
    """The target with its layers for multi-token prediction as a draft of its own.

    The files have these as well, but vLLM loads them only to draft.
    """
    if not config.mtp_layers:
        return target

    count = config.mtp_layers
    cached = (replace(_attention(config), count=count), *_indexer(config, count))
    mtp = replace(
        target,
        name="MTP layers of the target",
        parameters=count * size.mtp_layer(),
        embedded=0.0,
        file_bytes=None,
        layers=cached,
        notes=(),
    )
    own_bytes = target.file_bytes
    if own_bytes is not None:
        own_bytes -= int(mtp.weights_gb * 1e9)

    return replace(target, file_bytes=own_bytes, mtp=mtp)


@dataclass(frozen=True, slots=True)
class _Size:
    """Parameters of a model's parts, without biases and the like."""

    config: _Config

    def whole(self) -> float:
        dense = self.config.first_k_dense_replace if self.config.experts else self.config.layers
        sparse = self.config.layers - dense
        attention = self.config.layers * self.attention()
        return self.embeddings() + attention + dense * self.mlp() + sparse * self.experts()

    def embeddings(self) -> float:
        matrices = 1 if self.config.tie_word_embeddings else 2
        return float(matrices * self.config.vocab_size * self.config.hidden_size)

    def attention(self, inputs: int = 1) -> float:
        """Of one layer, whose input is ``inputs`` times the hidden size wide."""
        config = self.config
        if config.kv_lora_rank:
            return self.latent_attention(config.kv_lora_rank)
        width = inputs * config.hidden_size
        queries = config.heads * _head_dim(config)
        keys = (config.kv_heads or config.heads) * _head_dim(config)
        return float(width * (queries + 2 * keys) + queries * config.hidden_size)

    def latent_attention(self, rank: int) -> float:
        """MLA's five projections, as DeepSeek's."""
        config = self.config
        key = config.qk_nope_head_dim + config.qk_rope_head_dim
        value = config.v_head_dim or config.qk_nope_head_dim
        query = config.hidden_size * config.heads * key
        if config.q_lora_rank:
            query = config.q_lora_rank * (config.hidden_size + config.heads * key)
        down = config.hidden_size * (rank + config.qk_rope_head_dim)
        up = rank * config.heads * (config.qk_nope_head_dim + value)
        return float(query + down + up + config.heads * value * config.hidden_size)

    def mlp(self) -> float:
        return float(3 * self.config.hidden_size * self.config.intermediate_size)

    def experts(self) -> float:
        """The experts of one layer, those that all tokens share, and the router."""
        config = self.config
        width = config.moe_intermediate_size or config.intermediate_size
        shared = config.shared_expert_intermediate_size or width * (config.shared_experts or 0)
        number = config.experts or 0
        return float(config.hidden_size * (3 * (number * width + shared) + number))

    def mtp_layer(self) -> float:
        """A layer of the target, and the matrix that joins its two inputs."""
        block = self.experts() if self.config.experts else self.mlp()
        return self.attention() + block + 2 * self.config.hidden_size**2

    def head(self, method: str | None) -> float:
        """A head as EAGLE's or SpecForge's; its embedding is the target's."""
        inputs = 2 if method == "eagle3" else 1
        layers = self.config.layers * (self.attention(inputs) + self.mlp())
        features = 3 if method == "eagle3" else 2
        source = self.config.target_hidden_size or self.config.hidden_size
        joined = features * source * self.config.hidden_size
        return layers + joined + self.head_output(method)

    def head_output(self, method: str | None) -> float:
        """EAGLE-3's own output matrix; other heads use the target's."""
        if method != "eagle3":
            return 0.0
        vocabulary = self.config.draft_vocab_size or self.config.vocab_size
        return float(vocabulary * self.config.hidden_size)
