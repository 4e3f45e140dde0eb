"""What vLLM's own code makes of a KV cache: ``python -m lab.cache MODEL``, by the Python of vLLM.

Reads a JSON list of caches: memory in bytes, block size, context, batched tokens, vLLM's name of
the cache's precision, and the layers, each with its count, KV heads, values per head, window and
layout as ``plan`` names it. A cache with ``hybrid``, the folder of a model whose layers may keep a
state, has ``draft_tokens`` and the numbers of its layers ``with_attention`` and ``with_state``
besides; vLLM reads the rest from the folder. Prints for each how many blocks there are, and how
many tokens vLLM says that they hold.
"""

import json
import os
import sys
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity, get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    SparseCacheRole,
    get_kv_quant_mode,
)

_LAYOUT = "LBHNC"  # of vLLM's CPU and FlashAttention backends
_FP8_DS_MLA_BYTES = 656  # as vllm/model_executor/layers/attention/mla_attention.py has it


def main(model: str) -> None:
    """Prints the answers as one JSON list."""
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    caches = json.load(sys.stdin)
    print(json.dumps([_answer(model, cache) for cache in caches]))


def _answer(model: str, cache: dict[str, Any]) -> list[int]:
    return hybrid_capacity(model, cache) if "hybrid" in cache else capacity(model, cache)


def hybrid_capacity(tokenizer: str, cache: dict[str, Any]) -> list[int]:
    """As ``capacity``, of the cache that vLLM aligns to the states of a model."""
    tokens = cache["draft_tokens"]
    ngram = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": 4}
    config = EngineArgs(
        model=cache["hybrid"],
        tokenizer=tokenizer,
        skip_tokenizer_init=True,
        max_model_len=cache["context"],
        block_size=cache["block_size"],
        dtype="bfloat16",
        enforce_eager=True,
        speculative_config=ngram if tokens else None,
    ).create_engine_config()
    options = config.cache_config
    options.kv_cache_layout = _LAYOUT
    # A worker of vLLM does this once it has its model.
    Platform._align_hybrid_block_size(config, TritonAttentionBackend)  # noqa: SLF001

    named = config.model_config.architecture
    model, _ = ModelRegistry.resolve_model_cls(named, model_config=config.model_config)
    attention = TritonAttentionBackend.customize_spec(
        FullAttentionSpec(
            block_size=options.block_size,
            num_kv_heads=config.model_config.get_num_kv_heads(config.parallel_config),
            head_size=config.model_config.get_head_size(),
            dtype=torch.bfloat16,
        )
    )
    state = MambaSpec(
        shapes=tuple(model.get_mamba_state_shape_from_config(config)),
        dtypes=tuple(model.get_mamba_state_dtype_from_config(config)),
        block_size=options.mamba_block_size,
        page_size_padded=options.mamba_page_size_padded,
        mamba_cache_mode=options.mamba_cache_mode,
        num_speculative_blocks=tokens,
    )
    specs: dict[str, KVCacheSpec] = {}
    for spec, count in ((attention, cache["with_attention"]), (state, cache["with_state"])):
        specs |= {f"model.layers.{len(specs) + place}.mixer": spec for place in range(count)}

    (found,) = get_kv_cache_configs(config, [specs], [cache["bytes"]])
    held, _ = get_kv_cache_capacity(config, found)
    return [found.num_blocks, held]


def capacity(model: str, cache: dict[str, Any]) -> list[int]:
    """The number of blocks, and of tokens in requests as long as the context."""
    config = EngineArgs(
        model=model,
        max_model_len=cache["context"],
        block_size=cache["block_size"],
        max_num_batched_tokens=cache["batched_tokens"],
        dtype="bfloat16",
        enforce_eager=True,
        async_scheduling=False,
        hf_overrides={"max_position_embeddings": 2**20},
    ).create_engine_config()
    config.cache_config.kv_cache_layout = _LAYOUT

    specs: dict[str, KVCacheSpec] = {}
    for kind in cache["layers"]:
        for _ in range(kind["count"]):
            name = f"model.layers.{len(specs)}.self_attn.attn"
            specs[name] = layer(kind, cache["block_size"], cache["precision"])

    (found,) = get_kv_cache_configs(config, [specs], [cache["bytes"]])
    tokens, _ = get_kv_cache_capacity(config, found)
    return [found.num_blocks, tokens]


def layer(kind: dict[str, Any], block_size: int, precision: str) -> KVCacheSpec:
    """What vLLM needs to know about a layer's cache."""
    values = kind["head_values"]
    same = {
        "block_size": block_size,
        "num_kv_heads": kind["kv_heads"],
        "dtype": STR_DTYPE_TO_TORCH_DTYPE[precision],
        "kv_quant_mode": get_kv_quant_mode(precision),
    }
    if kind["layout"] == "latent":
        return MLAAttentionSpec(head_size=values, **same)

    if kind["layout"] == "sparse latent":
        packed = _FP8_DS_MLA_BYTES if precision == "fp8_ds_mla" else None
        return MLAAttentionSpec(
            head_size=values, cache_dtype_str=precision, state_content_bytes=packed, **same
        )

    if kind["layout"] == "indexer":
        return MLAAttentionSpec(
            block_size=block_size,
            num_kv_heads=1,
            head_size=values,
            dtype=torch.uint8,
            cache_role=SparseCacheRole.INDEXER,
        )

    spec: AttentionSpec = FullAttentionSpec(head_size=values // 2, **same)
    if kind["window"] is not None:
        spec = SlidingWindowSpec(head_size=values // 2, sliding_window=kind["window"], **same)
    return TritonAttentionBackend.customize_spec(spec)


if __name__ == "__main__":
    main(sys.argv[1])
