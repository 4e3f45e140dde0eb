"""``python -m specdec_plugin``: says what the plug-in needs in vLLM's container in order to work, and what is missing.

It stands beside the plug-in as ``specdec_doctor.py``, without the sidecar: standard library only. vLLM never loads it.
"""

import ast
import os
import socket
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path


def main(misfit: Callable[[dict[str, str]], str], path: str) -> int:
    """Prints a line per finding; returns 1 if one of them keeps the plug-in from working, else 0.

    ``misfit`` is the plug-in's own check of the methods that it wraps, ``path`` its socket. vLLM's source is read, not
    imported.
    """
    vllm, allowed = util.find_spec("vllm"), os.environ.get("VLLM_PLUGINS")
    source = vllm.origin if vllm is not None else None
    points = [point for package in metadata.distributions() for point in package.entry_points]
    has_entry_point = any((point.group, point.name) == ("vllm.general_plugins", "specdec") for point in points)
    unknown = misfit(_methods(Path(source).with_name("v1") / "core/sched/scheduler.py")) if source else "no vLLM"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        error = link.connect_ex(path)
    knows = unknown or "yes" if source else "there is no vLLM here"
    findings = {
        "vLLM finds its entry point": has_entry_point,
        f"VLLM_PLUGINS allows it: {allowed or 'not set'}": allowed is None or "specdec" in allowed.split(","),
        f"vLLM's Scheduler is one that it knows: {knows}": not unknown,
        f"a sidecar listens at {path}: {os.strerror(error) if error else 'yes'}": not error,
    }
    for finding, holds in findings.items():
        print("ok  " if holds else "FAIL", finding)
    return 0 if all(findings.values()) else 1


def _methods(source: Path) -> dict[str, str]:
    """The parameters of each function in a file, by the function's name."""
    nodes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.FunctionDef)]
    return {node.name: " ".join(argument.arg for argument in node.args.args) for node in nodes}
