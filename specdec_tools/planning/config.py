"""Reads a model's ``config.json``, and what lies beside it, into a ``ModelShape``.

Where the weights are there as well, their size on disk counts, not that of the parameters.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from sidecar.commands.arguments import read_input
from sidecar.engine.methods import HEADS
from sidecar.errors import InputError
from sidecar.sizes.caches import CachedLayers, StateLayers
from sidecar.sizes.fields import LENGTHS, OVERRIDING_LENGTH, ModelFields
from sidecar.sizes.kinds import KINDS, attention_kind
from sidecar.sizes.layers import Layer, layers_of
from sidecar.sizes.parameters import Parameters
from sidecar.sizes.precision import UNQUANTIZED
from specdec_tools.planning.files import MOST_BYTES, read_fields
from specdec_tools.planning.shape import ModelShape

_MOST_TOKENIZER_BYTES: Final = 64 * 1024 * 1024
_MTP_ASSUMED: Final = (
    "the target's config.json names no MTP layers, so one is counted, as vLLM assumes: make sure "
    "that its files have one"
)
_UNKNOWN: Final = "unknown: plan does not know what some of its layers are"
_LOGGED: Final = (
    "Give --available-kv-cache what vLLM logged as `Available KV cache memory`; its log also has "
    "the tokens, as `GPU KV cache size`"
)
_BY_HAND: Final = f"Name a folder with its weights, or give its size, such as 32b. {_LOGGED}"
_BY_DTYPE: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_BY_BITS: Final = {4: "int4", 8: "int8"}
# Kinds of RoPE whose longest context is scaled already (vLLM 0.32, config/model.py,
# ``_get_and_verify_max_len``).
_SCALED_ROPE: Final = frozenset(
    {"su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"}
)


def read_model(path: Path, precision: str | None, method: str | None) -> ModelShape:
    """The model whose folder or ``config.json`` this is.

    ``precision`` is None for that of the files. ``method`` is the one by which a draft drafts, None
    for a target.

    Raises:
        InputError: it cannot be read, or is not the configuration of such a model.
    """
    folder = path if path.is_dir() else path.parent
    file = path / "config.json" if path.is_dir() else path
    config = read_fields(file)
    stored = _stored_precision(config)
    if precision is None and stored is None:
        raise InputError(f"{file}: unknown quantization; set --target-precision, --draft-precision")

    layers = layers_of(config)
    if _is_head(method):
        model = _head(config, method)
    elif layers is not None:
        model = _decoder(config, layers)
    else:
        model = _of_unknown_layers(config)

    model = replace(
        model,
        name=str(folder),
        precision=precision or stored or UNQUANTIZED,
        file_bytes=_file_bytes(folder) if precision in (None, stored) else None,
        file_precision=stored,
        heads=config.heads,
        family=config.model_type,
        vocabulary=config.vocab_size,
        tokenizer=_tokenizer(folder),
        longest_context=_longest_context(config),
        has_weights=_file_bytes(folder) is not None,
    )
    if model.parameters is None and model.file_bytes is None:
        raise InputError(f"{file}: {_UNKNOWN}. {_BY_HAND}")
    return _with_mtp(model, config)


def _head(config: ModelFields, method: str | None) -> ModelShape:
    """A head that drafts; it attends to all tokens unless its configuration says otherwise."""
    layers = layers_of(config)
    size = Parameters(config, layers or ())
    parameters = size.head(method)
    return ModelShape(
        parameters=parameters,
        active_parameters=parameters,
        embedded=size.head_output(method),
        layers=() if layers is None else tuple(_cached(config, layers)),
    )


def _decoder(config: ModelFields, layers: Sequence[Layer]) -> ModelShape:
    size = Parameters(config, layers)
    return ModelShape(
        parameters=size.whole(),
        active_parameters=size.active(),
        embedded=size.embeddings(),
        layers=tuple(_cached(config, layers)),
        states=tuple(_states(config, layers)),
        notes=tuple(_notes(config, layers)),
    )


def _of_unknown_layers(config: ModelFields) -> ModelShape:
    """Its size is that of its weights on disk."""
    note = f"{config.model_type}: {_UNKNOWN}, so no tokens are counted without --kv. {_LOGGED}"
    return ModelShape(parameters=None, active_parameters=None, notes=(note,))


def method_of(path: Path) -> str:
    """The method that a draft's ``config.json`` names: a head's, or ``draft_model``.

    Raises:
        InputError: it cannot be read, or is not the configuration of such a model.
    """
    config = read_fields(path / "config.json" if path.is_dir() else path)
    names = " ".join(config.architectures or ()).lower()
    for method in ("eagle3", "eagle", "dflash"):
        if method in names:
            return method
    return "draft_model"


def _stored_precision(config: ModelFields) -> str | None:
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
            return int(json.loads(read_input(index, MOST_BYTES))["metadata"]["total_size"])
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


def _longest_context(config: ModelFields) -> int | None:
    """The tokens that vLLM lets a request have, as it derives them; None if it takes any number.

    vLLM 0.32 reads the tokenizer's own limit only for models that pool (config/model.py,
    ``get_and_verify_max_len``), and so it is not read here.
    """
    lengths = [config.lengths.get(name) for name in LENGTHS]
    known = [length for length in lengths if length is not None]
    longest = config.lengths.get(OVERRIDING_LENGTH) or min(known, default=None)
    if longest is None or not config.family.scales_context:
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
    return method in HEADS


def _cached(config: ModelFields, layers: Sequence[Layer]) -> Iterator[CachedLayers]:
    """The layers by what they cache; the last ones may share what earlier ones cache."""
    caching = layers[: len(layers) - config.num_kv_shared_layers]
    for kind, count in Counter(kind for layer in caching for kind in layer).items():
        for cached in KINDS[kind].cached(config):
            yield replace(cached, count=count * cached.count)


def _states(config: ModelFields, layers: Sequence[Layer]) -> Iterator[StateLayers]:
    for kind, count in Counter(kind for layer in layers for kind in layer).items():
        state = KINDS[kind].state(config)
        if state is not None:
            yield replace(state, count=count * state.count)


def _notes(config: ModelFields, layers: Sequence[Layer]) -> Iterator[str]:
    """What is counted as something else, or by a default of vLLM that can be changed."""
    if any(_states(config, layers)):
        yield (
            "states are counted as vLLM 0.32 keeps them with prefix caching, 2 + K for each "
            "request (1 + K without), and as precise as it makes them by default "
            "(`--mamba-cache-dtype`, `--mamba-ssm-cache-dtype`)"
        )
    if config.index_topk and (config.index_topk_pattern or config.index_topk_freq > 1):
        yield (
            f"some layers of {config.model_type} share the indexer of another one; one in each "
            "layer is counted"
        )


def _with_mtp(target: ModelShape, config: ModelFields) -> ModelShape:
    """The target with its layers for multi-token prediction as a draft of its own.

    The files have these as well, but vLLM loads them only to draft.
    """
    count = config.mtp_layers
    is_assumed = count is None
    if count is None:
        count = config.family.mtp_layers
    if not count:
        return target

    size = Parameters(config, ())
    attention = KINDS[attention_kind(config)].cached(config)
    cached = tuple(replace(one, count=count * one.count) for one in attention)
    active = size.active_mtp_layer()
    mtp = replace(
        target,
        name="MTP layers of the target",
        parameters=count * size.mtp_layer(),
        active_parameters=None if active is None else count * active,
        embedded=0.0,
        file_bytes=None,
        layers=cached if target.layers else (),
        states=(),
        notes=(_MTP_ASSUMED,) if is_assumed else (),
    )
    own_bytes = target.file_bytes
    if own_bytes is not None:
        own_bytes -= int(mtp.weights_gb * 1e9)

    return replace(target, file_bytes=own_bytes, mtp=mtp)
