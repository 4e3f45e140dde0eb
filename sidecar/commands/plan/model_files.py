"""Reads a model's files: size, precision, shape of the KV cache, family and tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.commands.arguments import read_input
from sidecar.commands.plan.memory import BYTES, KvShape
from sidecar.errors import InputError

_MOST_CONFIG: Final = 4 * 1024 * 1024  # bytes
_MOST_TOKENIZER: Final = 128 * 1024 * 1024
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Fields are None if the files do not contain them. ``vocabulary`` is the tokenizer's own, token by token."""

    family: str | None
    precision: str | None
    billions: float | None
    kv: KvShape | None
    vocab_size: int | None
    vocabulary: object = None


def read_model(folder: Path) -> ModelFiles:
    """Reads ``config.json``, the tokenizer, and the sizes of the weights' files.

    Raises:
        InputError: there is no ``config.json``, or it is not a model's.
    """
    config = _json(folder / "config.json", _MOST_CONFIG)
    if not isinstance(config, dict):
        raise InputError(f"{folder / 'config.json'}: not a JSON object")
    text = config.get("text_config")
    config = {**config, **text} if isinstance(text, dict) else config
    precision = _precision(config)
    return ModelFiles(
        family=_text(config.get("model_type")),
        precision=precision,
        billions=_billions(folder, precision),
        kv=_kv(config),
        vocab_size=_number(config.get("vocab_size")),
        vocabulary=_vocabulary(folder),
    )


def _json(path: Path, most: int) -> Any:
    try:
        return json.loads(read_input(path, most))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON") from error


def _precision(config: dict[str, Any]) -> str | None:
    quantized = config.get("quantization_config")
    if isinstance(quantized, dict):
        method = str(quantized.get("quant_method", "")).lower()
        bits = quantized.get("bits", quantized.get("w_bit"))
        if "fp8" in method:
            return "fp8"
        return {4: "int4", 8: "int8"}.get(bits) if isinstance(bits, int) else None
    return _DTYPES.get(str(config.get("torch_dtype", config.get("dtype"))))


def _billions(folder: Path, precision: str | None) -> float | None:
    """From the sizes of the weights' files; approximate, since quantized files have parts of higher precision."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors") if file.is_file())
    return size / 1e9 / BYTES[precision] if size and precision is not None else None


def _kv(config: dict[str, Any]) -> KvShape | None:
    layers, heads = _number(config.get("num_hidden_layers")), _number(config.get("num_attention_heads"))
    hidden = _number(config.get("hidden_size"))
    if layers is None or heads is None or hidden is None or "kv_lora_rank" in config:
        return None  # with multi-head latent attention the cache has another shape
    size = _number(config.get("head_dim")) or hidden // heads
    return KvShape(layers, _number(config.get("num_key_value_heads")) or heads, size)


def _vocabulary(folder: Path) -> object:
    for name, part in (("tokenizer.json", "model"), ("vocab.json", None), ("tekken.json", "vocab")):
        if (folder / name).is_file():
            found = _json(folder / name, _MOST_TOKENIZER)
            inner = found.get(part) if part is not None and isinstance(found, dict) else found
            return inner.get("vocab", inner) if isinstance(inner, dict) else inner
    model = folder / "tokenizer.model"
    return model.read_bytes() if model.is_file() and model.stat().st_size <= _MOST_TOKENIZER else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
