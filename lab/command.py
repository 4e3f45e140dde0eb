"""``lab/serve``: the command line and the environment of ``vllm serve``.

There is one for each method of speculative decoding.

On a CPU vLLM runs eagerly with model runner V1, and switches async scheduling off. On a GPU nothing
of this is set, so vLLM's defaults hold: model runner V2, async scheduling, CUDA graphs.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from lab.installation import Installation, LabError, installed, wanted

METHODS: Final = {
    "draft_model": "a small model of the same kind",
    "eagle": "an EAGLE head",
    "eagle3": "an EAGLE-3 head",
    "mtp": "a layer of the target itself, target-mtp",
    "dflash": "a DFlash head",
    "ngram": "what followed the last tokens before",
    "suffix": "a suffix tree of earlier outputs (arctic-inference)",
    "custom": "a proposer of one's own",
    "off": "no speculation",
}
_CUSTOM: Final = Path(__file__).parent / "custom"
_PROPOSER: Final = "lab_proposer.Proposer"
# All others are named by class.
_SCHEDULERS: Final = {"dynamo": "dynamo.vllm.instrumented_scheduler.InstrumentedScheduler"}
# Of the GPU's memory, so that several of these small models have room beside each other.
_GPU_SHARE: Final = "0.2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What to serve, and how."""

    method: str
    tokens: int = 3
    target: str | None = None
    speculative: Mapping[str, Any] = field(default_factory=dict)
    proposer: str = _PROPOSER
    scheduler: str | None = None
    request_metrics: bool = True
    options: Sequence[str] = ()


def main() -> NoReturn:
    """Becomes ``vllm serve``, or prints its command line."""
    serving, printed = _arguments(sys.argv[1:])
    try:
        lab = wanted() if printed else installed()
    except LabError as error:
        sys.exit(f"lab: {error}")

    if serving.method == "suffix" and not (printed or lab.suffix.is_dir()):
        sys.exit("lab: method suffix is not installed: install a C++ compiler and run `make lab`")
    if serving.scheduler == "dynamo" and not (printed or lab.dynamo.is_dir()):
        sys.exit("lab: Dynamo is not installed: it needs vLLM 0.31 or later; run `make lab`")

    command = command_line(lab, serving)
    more = environment(lab, serving, os.environ)
    if printed:
        print(shlex.join(["env", *(f"{name}={value}" for name, value in more.items()), *command]))
        sys.exit()

    program, *_ = command
    # A server in the foreground, with its signals.
    os.execve(program, command, {**os.environ, **more})  # noqa: S606 - no shell is wanted


def _arguments(given: Sequence[str]) -> tuple[Serving, bool]:
    """The serving that a command line asks for, and whether only to print it."""
    methods = "\n".join(f"  {name:12} {what}" for name, what in METHODS.items())
    parser = argparse.ArgumentParser(
        prog="lab/serve",
        usage=(
            "[VERSION=0.32.0] [DEVICE=cpu|cuda] [LAB=FOLDER] lab/serve METHOD [options] [options of"
            " vllm serve]"
        ),
        description=f"methods, and what drafts:\n{methods}",
        epilog=(
            "All other options are vLLM's; those given here win: --port 8001, --dtype float32,"
            " --enable-lora, ..."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    parser.add_argument("method", choices=METHODS, metavar="METHOD", help="one of the above")
    parser.add_argument(
        "--tokens", type=int, default=3, metavar="K", help="speculative tokens (default: 3)"
    )
    parser.add_argument(
        "--target", help="the model to serve: target (default), target-large or target-mtp"
    )
    parser.add_argument(
        "--speculative",
        type=json.loads,
        default={},
        metavar="JSON",
        help="more fields of vLLM's config",
    )
    parser.add_argument(
        "--proposer", default=_PROPOSER, metavar="MODULE.CLASS", help="what method custom loads"
    )
    parser.add_argument(
        "--scheduler",
        metavar="MODULE.CLASS",
        help="vLLM's --scheduler-cls; dynamo: NVIDIA Dynamo's",
    )
    parser.add_argument(
        "--no-request-metrics",
        action="store_true",
        help="no acceptance in responses, as before vLLM 0.29",
    )
    parser.add_argument(
        "--print", action="store_true", help="print the command line instead of running it"
    )

    ours, options = parser.parse_known_args(given)
    serving = Serving(
        method=ours.method,
        tokens=ours.tokens,
        target=ours.target,
        speculative=ours.speculative,
        proposer=ours.proposer,
        scheduler=ours.scheduler,
        request_metrics=not ours.no_request_metrics,
        options=options,
    )
    return serving, ours.print


def command_line(lab: Installation, serving: Serving) -> list[str]:
    """The command that serves it on 127.0.0.1, as model ``lab``.

    Further options come last, so that they win.
    """
    target = serving.target or ("target-mtp" if serving.method == "mtp" else "target")
    command = [
        str(lab.venv / "bin/vllm"),
        "serve",
        str(lab.model(target)),
        "--served-model-name",
        "lab",
    ]

    command += ["--host", "127.0.0.1", "--max-model-len", "2048", "--max-num-seqs", "16"]
    if lab.device == "cpu":
        command += ["--enforce-eager", "--dtype", _cpu_dtype(Path("/proc/cpuinfo"))]
    else:
        command += ["--gpu-memory-utilization", _GPU_SHARE]

    config = _speculative_config(lab, serving)
    if config is not None:
        command += ["--speculative-config", json.dumps(config)]
        if serving.request_metrics and lab.is_at_least("0.29"):
            command += [
                "--per-request-spec-decode-metrics",
                "summary",
                "--enable-force-include-usage",
            ]

    if serving.scheduler is not None:
        command += ["--scheduler-cls", _SCHEDULERS.get(serving.scheduler, serving.scheduler)]

    return [*command, *serving.options]


def environment(lab: Installation, serving: Serving, given: Mapping[str, str]) -> dict[str, str]:
    """The variables that the command needs beside the given ones, which win where they may."""
    more = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if lab.device == "cpu":
        more["VLLM_CPU_KVCACHE_SPACE"] = given.get("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB

    paths = [str(_CUSTOM)]
    if serving.method == "suffix":
        paths.append(str(lab.suffix))
    if serving.scheduler == "dynamo":
        paths.append(str(lab.dynamo))
    if "PYTHONPATH" in given:
        paths.append(given["PYTHONPATH"])
    return more | {"PYTHONPATH": os.pathsep.join(paths)}


def _speculative_config(lab: Installation, serving: Serving) -> dict[str, Any] | None:
    """The value of ``--speculative-config``; None for method off."""
    match serving.method:
        case "off":
            return None
        case "draft_model":
            own: dict[str, Any] = {"model": str(lab.model("draft"))}
        case "eagle" | "eagle3" | "dflash":
            own = {"model": str(lab.model(serving.method))}
        case "ngram":
            own = {"prompt_lookup_max": 2, "prompt_lookup_min": 1}
        case "custom":
            own = {"method": "custom_class", "model": serving.proposer}
        case _:
            own = {}

    return {
        "method": serving.method,
        "num_speculative_tokens": serving.tokens,
        **own,
        **serving.speculative,
    }


def _cpu_dtype(cpuinfo: Path) -> str:
    """bfloat16 where the CPU computes it, else float32.

    Where the CPU does not compute it, bfloat16 would be a hundred times slower than float32.
    """
    if not cpuinfo.exists():
        return "float32"
    computes = any(flag in cpuinfo.read_text() for flag in ("avx512_bf16", "amx_bf16"))
    return "bfloat16" if computes else "float32"
