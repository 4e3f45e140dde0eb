"""What vLLM is told: how it serves a deployment, and the line that starts it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from specdec_tools.planning.memory import Deployment
from specdec_tools.planning.shape import ModelShape

NEEDS_A_MODEL: Final = ("draft_model", "eagle", "eagle3", "dflash")
"""Methods that draft with a model of their own."""
KV_CACHE_DTYPES: Final = {
    "bf16": None,
    "fp16": None,
    "fp8": "fp8",
    "int8": "int8_per_token_head",
    "int4": "int4_per_token_head",
    "fp4": "nvfp4",
}
"""vLLM's --kv-cache-dtype by precision (vLLM 0.32, config/cache.py); None for the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What vLLM is to be told; ``method`` is None for plain decoding.

    ``draft_arguments`` are those of ``plan`` that were given and that only a draft has.
    """

    method: str | None
    tokens: int
    samples: bool
    max_num_seqs: int
    context: int
    draft_arguments: tuple[str, ...] = ()


def command_line(deployment: Deployment, serving: Serving) -> str:
    """The line that starts this deployment."""
    command = ["vllm", "serve", _named(deployment.target, "TARGET")]
    if deployment.gpus > 1:
        command += ["--tensor-parallel-size", str(deployment.gpus)]

    command += ["--gpu-memory-utilization", f"{deployment.utilization:g}"]
    command += ["--max-num-seqs", str(serving.max_num_seqs)]
    command += ["--max-model-len", str(serving.context)]
    kv_cache_dtype = KV_CACHE_DTYPES[deployment.cache.precision]
    if kv_cache_dtype is not None:
        command += ["--kv-cache-dtype", kv_cache_dtype]

    if serving.method is not None:
        command += ["--speculative-config", json.dumps(_speculative_config(deployment, serving))]

    return shlex.join(command)


def _named(model: ModelShape, part: str) -> str:
    """Its folder, or a placeholder where no folder has these weights."""
    if model.needs_other_files:
        return f"{part}-{model.precision.upper()}"
    return part if model.is_by_hand else model.name


def _speculative_config(deployment: Deployment, serving: Serving) -> Mapping[str, Any]:
    config: dict[str, Any] = {"method": serving.method}
    if serving.method in NEEDS_A_MODEL and deployment.draft is not None:
        config["model"] = _named(deployment.draft, "DRAFT")

    config["num_speculative_tokens"] = serving.tokens
    if deployment.draft is not None and deployment.draft_parallel != deployment.gpus:
        config["draft_tensor_parallel_size"] = deployment.draft_parallel

    if serving.samples:
        config["draft_sample_method"] = "probabilistic"

    if serving.method == "ngram":
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}

    return config
