"""``plan``: does a draft fit beside its target, and what does it cost the KV cache? Contacts no server."""

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sidecar.commands.plan.advice import Plan, plan
from sidecar.commands.plan.hardware import BYTES, GPU_GB
from sidecar.commands.plan.memory import Deployment, KvShape, Model
from sidecar.commands.tables import aligned
from sidecar.settings import Settings

HELP = "calculate whether a draft fits beside its target, and what it costs the KV cache"
_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([bm]?)", re.ASCII | re.IGNORECASE)
_SHAPE = re.compile(r"(\d{1,4})x(\d{1,4})x(\d{1,5})", re.ASCII | re.IGNORECASE)
_MOST_BILLIONS = 100_000.0
_MOST_GPUS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``plan`` takes."""
    parser.add_argument("--target", type=billions, required=True, metavar="SIZE", help="parameters, such as 70b")
    _add_precision(parser, "--target-precision")
    parser.add_argument("--draft", type=billions, required=True, metavar="SIZE", help="parameters, such as 8b or 500m")
    _add_precision(parser, "--draft-precision")
    gpu = parser.add_mutually_exclusive_group(required=True)
    gpu.add_argument("--gpu", choices=tuple(GPU_GB), metavar="NAME", help=f"one of {', '.join(GPU_GB)}")
    gpu.add_argument("--gpu-memory", type=gigabytes, metavar="GB", help="memory of each GPU, 10^9 bytes")
    parser.add_argument("--gpus", type=gpus, default=1, metavar="N", help="that share both models (default: 1)")
    parser.add_argument(
        "--utilization", type=utilization, default=0.9, help="vLLM's --gpu-memory-utilization (default: 0.9)"
    )
    shape = "layers x KV heads x head size, such as 80x8x128, to count in tokens; or bytes a token"
    parser.add_argument("--kv", type=kv, metavar="SHAPE", help=f"the target's {shape}")
    parser.add_argument("--draft-kv", type=kv, metavar="SHAPE", help=f"the draft's {shape}")
    _add_precision(parser, "--kv-precision")
    parser.add_argument("--json", action="store_true", help="print JSON rather than text")


def _add_precision(parser: argparse.ArgumentParser, name: str) -> None:
    choices = ", ".join(BYTES)
    parser.add_argument(name, choices=tuple(BYTES), default="bf16", metavar="P", help=f"{choices} (default: bf16)")


def run(arguments: argparse.Namespace, _settings: Settings) -> int:
    """Returns 0 with a plan printed, whatever its verdict."""
    found = plan(
        Deployment(
            Model(arguments.target, arguments.target_precision, _kv_bytes(arguments.kv, arguments.kv_precision)),
            Model(arguments.draft, arguments.draft_precision, _kv_bytes(arguments.draft_kv, arguments.kv_precision)),
            arguments.gpus,
            arguments.gpu_memory or GPU_GB[arguments.gpu],
            arguments.utilization,
        )
    )
    print(json.dumps(as_json(found), indent=2, allow_nan=False) if arguments.json else "\n".join(_lines(found)))
    return 0


def billions(text: str) -> float:
    """Billions of parameters from ``70``, ``70b`` or ``500m``."""
    match = _SIZE.fullmatch(text.strip())
    value = float(match[1]) / (1000 if match[2] in {"m", "M"} else 1) if match else 0.0
    if not 0 < value <= _MOST_BILLIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of parameters; write one such as 70b or 500m")
    return value


def gigabytes(text: str) -> float:
    """Gigabytes above 0."""
    return _number(text, 0.0, 100_000.0, "write gigabytes, such as 80")


def utilization(text: str) -> float:
    """A share above 0, at most 1."""
    return _number(text, 0.0, 1.0, "write a share above 0 and at most 1")


def gpus(text: str) -> int:
    """A number of GPUs."""
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_GPUS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs; write 1 to {_MOST_GPUS}")
    return int(text)


def kv(text: str) -> KvShape | float:
    """A shape, or bytes a token."""
    match = _SHAPE.fullmatch(text.strip())
    if match:
        shape = KvShape(int(match[1]), int(match[2]), int(match[3]))
        if min(shape.layers, shape.heads, shape.head_size) > 0:
            return shape
        text = ""
    return _number(text, 0.0, 1e9, "write layers x KV heads x head size, such as 80x8x128, or bytes a token")


def _number(text: str, above: float, most: float, remedy: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not above < value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} can't be used; {remedy}")
    return value


def _kv_bytes(given: KvShape | float | None, precision: str) -> float | None:
    return given.bytes_per_token(precision) if isinstance(given, KvShape) else given


def as_json(found: Plan) -> dict[str, Any]:
    """The plan as plain JSON values."""
    return {
        "deployment": asdict(found.deployment),
        "memory": {name: _rounded(value) for name, value in asdict(found.budget).items()},
        "checks": [asdict(check) | {"value": _rounded(check.value)} for check in found.checks],
        "verdict": found.fit,
        "reasons": found.reasons,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)  # the rest is noise of binary fractions


def _lines(found: Plan) -> Iterator[str]:
    deployment, memory = found.deployment, found.budget
    target, draft = deployment.target, deployment.draft
    draft_tokens = "the draft's own KV included" if draft.kv_bytes else "the draft's own KV not known"
    rows = [
        ("memory", f"{memory.memory_gb:,.1f} GB", f"{deployment.gpus} x {deployment.gpu_gb:g} GB"),
        ("target", f"{memory.target_gb:,.1f} GB", f"{target.billions:g}B {target.precision}"),
        ("draft", f"{memory.draft_gb:,.1f} GB", f"{draft.billions:g}B {draft.precision}"),
        ("weights", f"{memory.weights_gb:,.1f} GB", ""),
        ("left", f"{memory.left_gb:,.1f} GB", "all memory less the weights"),
        ("KV budget", f"{memory.kv_gb:,.1f} GB", f"at a utilization of {deployment.utilization:g}"),
        ("without the draft", f"{memory.kv_gb_without_draft:,.1f} GB", ""),
        ("KV tokens", _tokens(memory.kv_tokens), draft_tokens if memory.kv_tokens is not None else "say --kv"),
        ("without the draft", _tokens(memory.kv_tokens_without_draft), ""),
        ("lost to the draft", _tokens(memory.kv_tokens_lost), ""),
    ]
    yield from (f"{name:<19}{value:>12}  {note}".rstrip() for name, value, note in rows)
    yield ""
    checks = [
        (_NAMES[check.name], _UNITS[check.name].format(check.value), check.rule, "yes" if check.passed else "NO")
        for check in found.checks
    ]
    yield from aligned(("rule", "found", "wanted", "kept"), checks)
    yield ""
    yield f"verdict: {found.fit}"
    yield from (f"  {reason}" for reason in found.reasons)


_NAMES = {
    "kv_budget_gb": "room for a KV cache",
    "size_ratio": "draft to target",
    "draft_share": "draft's share of memory",
    "target_share": "target's share of memory",
}
_UNITS = {"kv_budget_gb": "{:,.1f} GB", "size_ratio": "1:{:.1f}", "draft_share": "{:.1%}", "target_share": "{:.1%}"}


def _tokens(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"
