"""What vLLM is told: how it serves a deployment, and the line that starts it."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sidecar.commands.planning.memory import Deployment

NEEDS_A_MODEL: Final = ("draft_model", "eagle", "eagle3", "dflash")
"""Methods that draft with a model of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What vLLM is to be told; ``method`` is None for plain decoding."""

    method: str | None
    tokens: int
    samples: bool
    max_num_seqs: int
    context: int


def command_line(deployment: Deployment, serving: Serving) -> str:
    """The line that starts this deployment."""
    target = "TARGET" if deployment.target.is_by_hand else deployment.target.name
    command = ["vllm", "serve", target]
    if deployment.gpus > 1:
        command += ["--tensor-parallel-size", str(deployment.gpus)]

    command += ["--gpu-memory-utilization", f"{deployment.utilization:g}"]
    command += ["--max-num-seqs", str(serving.max_num_seqs)]
    command += ["--max-model-len", str(serving.context)]
    if deployment.cache.precision in {"fp8", "int8"}:
        command += ["--kv-cache-dtype", deployment.cache.precision]

    if serving.method is not None:
        command += ["--speculative-config", json.dumps(_speculative_config(deployment, serving))]

    return shlex.join(command)


def _speculative_config(deployment: Deployment, serving: Serving) -> Mapping[str, Any]:
    config: dict[str, Any] = {"method": serving.method}
    if serving.method in NEEDS_A_MODEL and deployment.draft is not None:
        config["model"] = "DRAFT" if deployment.draft.is_by_hand else deployment.draft.name

    config["num_speculative_tokens"] = serving.tokens
    if deployment.draft is not None and deployment.draft_parallel != deployment.gpus:
        config["draft_tensor_parallel_size"] = deployment.draft_parallel

    if serving.samples:
        config["draft_sample_method"] = "probabilistic"

    if serving.method == "ngram":
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}

    return config
