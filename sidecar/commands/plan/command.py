"""``plan``: does a draft fit beside its target, and how much KV cache does it cost? Contacts no server."""

import argparse
import re

from sidecar.commands.arguments import number, positive, whole
from sidecar.commands.plan.memory import BYTES, GPU_GB, Deployment, Model, budget
from sidecar.commands.plan.render import text
from sidecar.settings import Settings

HELP = "calculate whether a draft model fits in memory next to its target, and how much KV cache it costs"
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([bm]?)", re.ASCII | re.IGNORECASE)
_SHAPE = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,5})", re.ASCII | re.IGNORECASE)
_MOST_BILLIONS = 100_000.0
_MOST_GPUS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``plan``."""
    size = "parameters, such as 70b or 500m"
    parser.add_argument("--target", type=billions, metavar="SIZE", required=True, help=size)
    without = f"{size}; without --draft, plan lists the methods that need no draft model"
    parser.add_argument("--draft", type=billions, metavar="SIZE", help=without)
    for name in ("target", "draft", "kv"):
        precision = f"{', '.join(BYTES)} (default: bf16)"
        parser.add_argument(f"--{name}-precision", choices=tuple(BYTES), default="bf16", metavar="P", help=precision)
    gpu = parser.add_mutually_exclusive_group(required=True)
    gpu.add_argument("--gpu", choices=tuple(GPU_GB), metavar="NAME", help=f"one of {', '.join(GPU_GB)}")
    memory, share = number(1e5, "gigabytes, such as 80"), number(1.0, "a share above 0 and at most 1")
    gpu.add_argument("--gpu-memory", type=memory, metavar="GB", help="memory of each GPU, 10^9 bytes")
    gpus = "GPUs that share both models (default: 1)"
    parser.add_argument("--gpus", type=whole(_MOST_GPUS), default=1, metavar="N", help=gpus)
    used = "vLLM's --gpu-memory-utilization (default: 0.9)"
    parser.add_argument("--utilization", type=share, default=0.9, metavar="SHARE", help=used)
    shape = "layers x KV heads x head size, such as 80x8x128, to count in tokens"
    parser.add_argument("--kv", type=kv, metavar="SHAPE", help=f"the target's {shape}")
    parser.add_argument("--draft-kv", type=kv, metavar="SHAPE", help=f"the draft's {shape}")
    parser.add_argument("--context", type=positive, metavar="TOKENS", help="also count requests of this length")


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Prints a plan; returns 0, or 1 if it is impossible."""
    size = BYTES[arguments.kv_precision]
    target_kv, draft_kv = (None if one is None else one * size for one in (arguments.kv, arguments.draft_kv))
    deployment = Deployment(
        target=Model(arguments.target, arguments.target_precision, target_kv),
        draft=None if arguments.draft is None else Model(arguments.draft, arguments.draft_precision, draft_kv),
        gpus=arguments.gpus,
        gpu_gb=arguments.gpu_memory or GPU_GB[arguments.gpu],
        utilization=arguments.utilization,
    )
    print("\n".join(text(deployment, arguments.context)))
    return 0 if budget(deployment).fits else 1


def billions(text: str) -> float:
    """Parses ``70``, ``70b`` or ``500m`` into billions of parameters."""
    match = _SIZE.fullmatch(text.strip())
    value = float(match[1]) / (1000 if match[2] in {"m", "M"} else 1) if match else 0.0
    if not 0 < value <= _MOST_BILLIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters such as 70b or 500m")
    return value


def kv(text: str) -> int:
    """Cached values per token of context for a shape; keys and values both count."""
    match = _SHAPE.fullmatch(text.strip())
    values = 2 * int(match[1]) * int(match[2]) * int(match[3]) if match else 0
    if not values:
        raise argparse.ArgumentTypeError("expected layers x KV heads x head size, such as 80x8x128")
    return values
