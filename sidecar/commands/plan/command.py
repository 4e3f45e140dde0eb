"""``plan``: does a draft fit beside its target, and how much KV cache does it cost? Contacts no server."""

import argparse
import json
import re
from pathlib import Path

from sidecar.commands.arguments import number, positive, whole
from sidecar.commands.plan.advice import plan
from sidecar.commands.plan.memory import BYTES, GPU_GB, Deployment, KvShape, Model
from sidecar.commands.plan.model_files import ModelFiles, read_model
from sidecar.commands.plan.render import as_json, text
from sidecar.errors import InputError
from sidecar.settings import Settings

HELP = "calculate whether a draft fits beside its target, and how much KV cache it costs"
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([bm]?)", re.ASCII | re.IGNORECASE)
_SHAPE = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,5})", re.ASCII | re.IGNORECASE)
_MOST_BILLIONS = 100_000.0
_MOST_GPUS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``plan``."""
    for name in ("target", "draft"):
        without = "; without one, the methods that need none" if name == "draft" else ""
        parser.add_argument(
            f"--{name}", type=billions, metavar="SIZE", help=f"parameters, such as 70b or 500m{without}"
        )
        parser.add_argument(
            f"--{name}-dir",
            type=Path,
            metavar="DIR",
            help="the model's files: size, precision, KV cache, family and tokenizer",
        )
        _add_precision(parser, f"--{name}-precision", "the files' own, else bf16")
    gpu = parser.add_mutually_exclusive_group(required=True)
    gpu.add_argument("--gpu", choices=tuple(GPU_GB), metavar="NAME", help=f"one of {', '.join(GPU_GB)}")
    memory, share = number(1e5, "gigabytes, such as 80"), number(1.0, "a share above 0 and at most 1")
    gpu.add_argument("--gpu-memory", type=memory, metavar="GB", help="memory of each GPU, 10^9 bytes")
    gpus, held = whole(_MOST_GPUS), "vLLM's draft_tensor_parallel_size: 1, or the same as --gpus (default)"
    parser.add_argument("--gpus", type=gpus, default=1, metavar="N", help="GPUs that share the target (default: 1)")
    parser.add_argument("--draft-gpus", type=gpus, metavar="N", help=held)
    used = "vLLM's --gpu-memory-utilization (default: 0.9)"
    parser.add_argument("--utilization", type=share, default=0.9, metavar="SHARE", help=used)
    shape = "layers x KV heads x head size, such as 80x8x128, to count in tokens; or bytes per token"
    parser.add_argument("--kv", type=kv, metavar="SHAPE", help=f"the target's {shape}")
    parser.add_argument("--draft-kv", type=kv, metavar="SHAPE", help=f"the draft's {shape}")
    _add_precision(parser, "--kv-precision", "bf16")
    parser.add_argument("--context", type=positive, metavar="TOKENS", help="also count requests of this length")
    parser.add_argument("--json", action="store_true", help="print JSON rather than text")


def _add_precision(parser: argparse.ArgumentParser, name: str, default: str) -> None:
    choices = ", ".join(BYTES)
    parser.add_argument(name, choices=tuple(BYTES), metavar="P", help=f"{choices} (default: {default})")


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Returns 0 with a plan printed, whatever its verdict.

    Raises:
        InputError: a size is missing, or a model's files cannot be read.
    """
    folders = (arguments.target_dir, arguments.draft_dir)
    target_files, draft_files = (None if folder is None else read_model(folder) for folder in folders)
    target = _model("target", arguments.target, target_files, arguments)
    drafts = arguments.draft is not None or draft_files is not None
    found = plan(
        Deployment(
            target=target,
            draft=_model("draft", arguments.draft, draft_files, arguments) if drafts else None,
            gpus=arguments.gpus,
            gpu_gb=arguments.gpu_memory or GPU_GB[arguments.gpu],
            utilization=arguments.utilization,
            draft_gpus=_draft_gpus(arguments),
        ),
        target_files,
        draft_files,
    )
    if arguments.json:
        print(json.dumps(as_json(found, arguments.context), indent=2, allow_nan=False))
    else:
        print("\n".join(text(found, arguments.context)))
    return 0


def _draft_gpus(arguments: argparse.Namespace) -> int:
    asked: int = arguments.draft_gpus or arguments.gpus
    if asked not in (1, arguments.gpus):
        raise InputError(f"--draft-gpus={asked}: vLLM takes 1 or {arguments.gpus}, as for the target")
    return asked


def _model(name: str, given: float | None, files: ModelFiles | None, arguments: argparse.Namespace) -> Model:
    """The model as the arguments describe it; what they omit comes from its files."""
    precision = getattr(arguments, f"{name}_precision") or (files.precision if files else None) or "bf16"
    size = given or (files.billions if files else None)
    if size is None:
        raise InputError(f"--{name}: no size and no weights found; give its parameters, such as 70b")
    shape = (arguments.kv if name == "target" else arguments.draft_kv) or (files.kv if files else None)
    kv_precision = arguments.kv_precision or "bf16"
    return Model(size, precision, shape.bytes_per_token(kv_precision) if isinstance(shape, KvShape) else shape)


def billions(text: str) -> float:
    """Billions of parameters from ``70``, ``70b`` or ``500m``."""
    match = _SIZE.fullmatch(text.strip())
    value = float(match[1]) / (1000 if match[2] in {"m", "M"} else 1) if match else 0.0
    if not 0 < value <= _MOST_BILLIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of parameters; write one such as 70b or 500m")
    return value


def kv(text: str) -> KvShape | float:
    """A shape, or bytes per token."""
    match = _SHAPE.fullmatch(text.strip())
    if match:
        shape = KvShape(int(match[1]), int(match[2]), int(match[3]))
        if min(shape.layers, shape.heads, shape.head_size) > 0:
            return shape
        text = ""
    return number(1e9, "layers x KV heads x head size, such as 80x8x128, or bytes per token")(text)
