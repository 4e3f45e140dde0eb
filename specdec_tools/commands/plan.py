"""``plan``: does a draft fit beside its target, and how much KV cache does it cost?

Contacts no server. A GB is 10^9 bytes, a GiB 2^30, as in vLLM's log.
"""

import argparse
import json
import re
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any, Final

from sidecar.commands.arguments import number_up_to, whole
from sidecar.errors import InputError
from sidecar.settings import Settings
from sidecar.sizes.caches import CachedLayers
from sidecar.sizes.precision import BYTES, UNQUANTIZED
from specdec_tools.planning.config import method_of, read_model
from specdec_tools.planning.gpus import GPUS, Gpu, of_size
from specdec_tools.planning.memory import CacheOptions, Deployment
from specdec_tools.planning.plan import Plan, make_plan
from specdec_tools.planning.serving import KV_CACHE_DTYPES, NEEDS_A_MODEL, Serving
from specdec_tools.planning.shape import ModelShape
from specdec_tools.planning.text import plan_text

HELP = "calculate whether a draft fits in memory next to its target, and how much KV cache it costs"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([bm]?)", re.ASCII | re.IGNORECASE)
_SHAPE: Final = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,7})", re.ASCII | re.IGNORECASE)
_MOST_BILLIONS: Final = 100_000.0
_MOST_GPUS: Final = 4096
_MOST_TOKENS: Final = 10**9
_DEFAULT_CONTEXT: Final = 8192
_WITHOUT_A_MODEL: Final = ("mtp", "ngram", "suffix")
_OF_A_DRAFT: Final = (
    "draft",
    "method",
    "draft_precision",
    "draft_kv",
    "draft_gpus",
    "sampled_drafts",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``plan``."""
    _add_models(parser)
    _add_gpus(parser)
    _add_cache(parser)
    parser.add_argument("--json", action="store_true", help="print JSON rather than text")


def _add_models(parser: argparse.ArgumentParser) -> None:
    model = "its folder or config.json, or its parameters, such as 70b or 500m"
    parser.add_argument("--target", metavar="MODEL", required=True, help=model)
    parser.add_argument("--draft", metavar="MODEL", help=f"the draft model or head: {model}")

    methods = (*NEEDS_A_MODEL, *_WITHOUT_A_MODEL)
    method = f"{', '.join(methods)} (default: what the draft's config.json says, or draft_model)"
    parser.add_argument("--method", choices=methods, metavar="METHOD", help=method)
    for name in ("target", "draft"):
        precision = f"{', '.join(BYTES)} (default: that of its files, or {UNQUANTIZED})"
        parser.add_argument(
            f"--{name}-precision", choices=tuple(BYTES), metavar="P", help=precision
        )

    tokens = "draft tokens per step, K (default: 3)"
    parser.add_argument("--tokens", type=whole(1000), default=3, metavar="K", help=tokens)

    samples = "the draft samples its tokens, so its logits are kept in memory"
    parser.add_argument("--sampled-drafts", action="store_true", help=samples)

    vocabulary = "of a target given by its parameters, for --sampled-drafts"
    parser.add_argument("--vocabulary", type=whole(10**7), metavar="N", help=vocabulary)


def _add_gpus(parser: argparse.ArgumentParser) -> None:
    gpu = parser.add_mutually_exclusive_group(required=True)
    gpu.add_argument(
        "--gpu",
        type=str.lower,
        choices=tuple(GPUS),
        metavar="NAME",
        help=f"one of {', '.join(GPUS)}",
    )

    memory = number_up_to(1e5, "gigabytes, such as 80")
    gpu.add_argument(
        "--gpu-memory",
        type=memory,
        metavar="GB",
        help="memory that PyTorch finds on each GPU, `torch.cuda.mem_get_info()[1]`, in 10^9 bytes"
        " (1 GB is 0.931 GiB); nvidia-smi shows more",
    )

    gpus = "GPUs that share the target: vLLM's --tensor-parallel-size (default: 1)"
    parser.add_argument("--gpus", type=whole(_MOST_GPUS), default=1, metavar="N", help=gpus)

    draft_parallel = "1 or --gpus: vLLM's draft_tensor_parallel_size (default: --gpus)"
    parser.add_argument("--draft-gpus", type=whole(_MOST_GPUS), metavar="N", help=draft_parallel)

    share = number_up_to(1.0, "a share above 0 and at most 1")
    used = "vLLM's --gpu-memory-utilization (default: 0.92, as in vLLM 0.32)"
    parser.add_argument("--utilization", type=share, default=0.92, metavar="SHARE", help=used)

    overhead = "on each GPU, for activations and CUDA graphs (default: 0)"
    parser.add_argument("--overhead", type=memory, default=0.0, metavar="GB", help=overhead)

    available = (
        "what vLLM without a draft logs as `Available KV cache memory` at its start, instead of"
        " the calculation"
    )
    gibibytes = number_up_to(1e5, "gibibytes, such as 21.5")
    parser.add_argument("--available-kv-cache", type=gibibytes, metavar="GIB", help=available)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kv-precision",
        choices=tuple(KV_CACHE_DTYPES),
        default=UNQUANTIZED,
        metavar="P",
        help=f"of the KV cache: {', '.join(KV_CACHE_DTYPES)} (default: {UNQUANTIZED})",
    )

    shape = "layers x KV heads x head size, such as 80x8x128, if it is given by its parameters"
    parser.add_argument("--kv", type=_cached, metavar="SHAPE", help=f"the target's {shape}")
    parser.add_argument("--draft-kv", type=_cached, metavar="SHAPE", help=f"the draft's {shape}")

    context = (
        "vLLM's --max-model-len, and the length of the requests to count (default: the target's"
        " longest, or 8192)"
    )
    parser.add_argument("--context", type=whole(_MOST_TOKENS), metavar="TOKENS", help=context)

    seqs = "requests that run at once (default: 256)"
    parser.add_argument("--max-num-seqs", type=whole(10**6), default=256, metavar="N", help=seqs)

    block = "tokens in a block of the KV cache (default: 16, vLLM's on GPUs)"
    parser.add_argument("--block-size", type=whole(10**6), default=16, metavar="N", help=block)

    batched = "vLLM's --max-num-batched-tokens, for sliding windows (default: 8192)"
    parser.add_argument(
        "--batched-tokens", type=whole(_MOST_TOKENS), default=8192, metavar="N", help=batched
    )


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Prints a plan; returns 0, or 1 if vLLM would not start.

    Raises:
        InputError: a model's configuration cannot be used, or the arguments do not fit together.
    """
    plan = _plan(arguments)
    if arguments.json:
        print(json.dumps(_document(plan), indent=2, allow_nan=False))
    else:
        print("\n".join(plan_text(plan)))
    return 1 if plan.command is None else 0


def _plan(arguments: argparse.Namespace) -> Plan:
    method = _method(arguments)
    target = _target(arguments)
    draft = _draft(arguments, method, target)

    draft_parallel = arguments.draft_gpus or arguments.gpus
    if draft_parallel not in {1, arguments.gpus}:
        raise InputError("--draft-gpus: vLLM splits a draft over all GPUs of its target, or none")
    if method == "draft_model" and draft_parallel != arguments.gpus:
        raise InputError("--draft-gpus: vLLM splits a draft model over all GPUs of its target")

    logits = 0
    samples = arguments.sampled_drafts and draft is not None
    if samples:
        if target.vocabulary is None:
            raise InputError("--sampled-drafts: set --vocabulary, or name the target's config.json")
        logits = arguments.max_num_seqs * arguments.tokens * target.vocabulary

    context = arguments.context or target.longest_context or _DEFAULT_CONTEXT
    deployment = Deployment(
        target=target,
        draft=draft,
        gpus=arguments.gpus,
        gpu=_gpu(arguments),
        utilization=arguments.utilization,
        draft_parallel=draft_parallel,
        cache=CacheOptions(
            precision=arguments.kv_precision,
            block_size=arguments.block_size,
            in_flight=arguments.batched_tokens,
            draft_tokens=0 if method is None else arguments.tokens,
        ),
        overhead_gb=arguments.overhead,
        available_gib=arguments.available_kv_cache,
        draft_logits=logits,
    )
    serving = Serving(
        method=method,
        tokens=arguments.tokens,
        samples=samples,
        max_num_seqs=arguments.max_num_seqs,
        context=context,
        draft_arguments=_draft_arguments(arguments),
    )
    return make_plan(deployment, serving)


def _gpu(arguments: argparse.Namespace) -> Gpu:
    if arguments.gpu is not None:
        return GPUS[arguments.gpu]
    return of_size(arguments.gpu_memory)


def _draft_arguments(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Those that were given and that only a draft has."""
    given = (name for name in _OF_A_DRAFT if getattr(arguments, name))
    return tuple("--" + name.replace("_", "-") for name in given)


def _method(arguments: argparse.Namespace) -> str | None:
    """The method that is asked for, or that follows from the draft; None for plain decoding."""
    method: str | None = arguments.method
    if method in NEEDS_A_MODEL and arguments.draft is None:
        raise InputError(f"--method={method}: needs --draft")
    if method in _WITHOUT_A_MODEL and arguments.draft is not None:
        raise InputError(f"--method={method}: has no --draft")
    if method is not None or arguments.draft is None:
        return method
    if _is_size(arguments.draft):
        return "draft_model"
    return method_of(_files(arguments.draft, "--draft"))


def _target(arguments: argparse.Namespace) -> ModelShape:
    target = _model(arguments.target, arguments.target_precision, arguments.kv, None, "--target")
    if arguments.vocabulary is not None:
        target = replace(target, vocabulary=arguments.vocabulary)
    return target


def _draft(
    arguments: argparse.Namespace, method: str | None, target: ModelShape
) -> ModelShape | None:
    """What drafts and takes memory; None for plain decoding and for drafts without a model."""
    if method == "mtp":
        if target.mtp is None:
            raise InputError("--method=mtp: the target's config.json names no MTP layers")
        return target.mtp
    if arguments.draft is None:
        return None
    draft = (arguments.draft, arguments.draft_precision, arguments.draft_kv)
    return _model(*draft, method, "--draft")


def _model(
    given: str,
    precision: str | None,
    layers: CachedLayers | None,
    method: str | None,
    argument: str,
) -> ModelShape:
    """A model by its number of parameters, or by its files."""
    if _is_size(given):
        cached = () if layers is None else (layers,)
        parameters = _parameters(given, argument)
        return ModelShape(
            name="",
            parameters=parameters,
            active_parameters=parameters,
            precision=precision or UNQUANTIZED,
            layers=cached,
        )

    model = read_model(_files(given, argument), precision, method)
    return model if layers is None else replace(model, layers=(layers,))


def _files(given: str, argument: str) -> Path:
    """The folder or the file that is given.

    Raises:
        InputError: it does not exist.
    """
    path = Path(given)
    if not path.exists():
        raise InputError(
            f"{argument}={given}: no such folder or file. plan downloads nothing: fetch the model's"
            " config.json (`hf download MODEL config.json --local-dir DIR`) and name DIR, or give"
            " its size, such as 32b"
        )
    return path


def _is_size(given: str) -> bool:
    return _SIZE.fullmatch(given.strip()) is not None


def _parameters(given: str, argument: str) -> float:
    """Parses ``70``, ``70b`` or ``500m`` into a number of parameters."""
    match = _SIZE.fullmatch(given.strip())
    billions = 0.0
    if match is not None:
        number, unit = match.groups()
        billions = float(number) / 1000 if unit in {"m", "M"} else float(number)
    if not 0 < billions <= _MOST_BILLIONS:
        raise InputError(f"{argument}: not a number of parameters such as 70b or 500m")
    return billions * 1e9


def _cached(text: str) -> CachedLayers:
    """Parses ``80x8x128``; keys and values both count."""
    match = _SHAPE.fullmatch(text.strip())
    layers, heads, size = map(int, match.groups()) if match else (0, 0, 0)
    if not prod((layers, heads, size)):
        raise argparse.ArgumentTypeError("expected layers x KV heads x head size, such as 80x8x128")
    return CachedLayers(layers, heads, 2 * size)


def _document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON, with what is calculated from a deployment's fields."""
    deployment = plan.deployment
    calculated = (
        "memory_gb",
        "pytorch_gb",
        "draft_gb",
        "weights_gb",
        "left_gb",
        "logits_gb",
        "kv_gb",
    )

    models = {
        name: None if model is None else asdict(model) | {"weights_gb": model.weights_gb}
        for name, model in (("target", deployment.target), ("draft", deployment.draft))
    }
    about = {name: getattr(deployment, name) for name in calculated} | {"fits": plan.room.fits}

    rules = [asdict(rule) | {"remedy": None if rule.met else rule.remedy} for rule in plan.rules]
    return asdict(plan) | {"deployment": asdict(deployment) | models | about, "rules": rules}
