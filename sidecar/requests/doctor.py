"""``python -m specdec_doctor``: checks whether vLLM's container has what the plug-in needs.

``specdec-sidecar plugin`` writes it beside the plug-in as ``specdec_doctor.py``. It runs without
the sidecar, on the standard library only. vLLM never loads it.
"""

import ast
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path, PurePath

DEFAULT_SOCKET = "/run/specdec/plugin.sock"  # the plug-in's
SERVING = ("serve", "run-batch")  # the subcommands of ``vllm`` that run an engine
PACKAGES = ("vllm.entrypoints.", "dynamo.vllm.")  # packages whose modules run an engine
# The first of Python's own options in a word that takes a value, such as ``-m`` in ``-um``. The
# value may follow in the same word.
VALUED_OPTION = re.compile(r"-[a-zA-Z]*?([mcXW])(.*)", re.DOTALL)


def main(misfit: Callable[[dict[str, str]], str], path: str) -> int:
    """Prints one line per check; returns 1 if a check failed, otherwise 0.

    ``misfit`` is the plug-in's own check of the methods that it wraps; ``path`` is its socket.
    vLLM's source is read, not imported.
    """
    points = [point for package in metadata.distributions() for point in package.entry_points]
    has_entry_point = any(
        (point.group, point.name) == ("vllm.general_plugins", "specdec") for point in points
    )
    unfound = "" if has_entry_point else "its folder is not on PYTHONPATH, or lacks its .dist-info"

    allowed = os.environ.get("VLLM_PLUGINS")
    forbidden = ""
    if allowed is not None and "specdec" not in allowed.split(","):
        forbidden = f"its value is {allowed!r}: add specdec, or unset it"

    checks = {
        "vLLM finds the plug-in": unfound,
        "VLLM_PLUGINS allows it": forbidden,
        "it knows vLLM's Scheduler": _unknown(misfit),
        f"a sidecar listens at {path}": _refused(path),
    }
    for check, problem in checks.items():
        print(f"FAIL {check}: no; {problem}" if problem else f"ok   {check}")

    for difference in differences(path, Path("/proc")):
        print(f"note {difference}")

    return 1 if any(checks.values()) else 0


def differences(path: str, processes: Path) -> list[str]:
    """How the environments of running vLLM processes differ from that of this process.

    Compared are the variables with which they started. Processes of other users are left out. If no
    vLLM was found, the only entry says so.
    """
    folder = str(Path(__file__).parent)
    is_on_path = folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = []
    running = dict(_running(processes))
    for number, variables in sorted(running.items()):
        other = variables.get("SPECDEC_PLUGIN__SOCKET", DEFAULT_SOCKET)
        if other != path:
            found.append(f"vLLM's process {number} uses the socket {other}, not {path}")
        if is_on_path and folder not in variables.get("PYTHONPATH", "").split(os.pathsep):
            found.append(f"vLLM's process {number} started without {folder} on PYTHONPATH")

    if not running:
        found.append(
            "found no running vLLM of this user (`vllm serve`, `vllm.entrypoints.*`, "
            "`dynamo.vllm`): its socket and PYTHONPATH were not compared"
        )
    return found


def _running(processes: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The process id and the variables of each vLLM of this user; ``processes`` is /proc."""
    for process in processes.glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if is_vllm(command.rstrip("\0").split("\0")):
                yield int(process.name), _variables((process / "environ").read_bytes())


def is_vllm(command: list[str]) -> bool:
    """Whether a process was started as a vLLM, by its command line.

    A command that merely mentions vLLM, such as an editor with a file of that name, is not one. Nor
    are the processes that vLLM itself starts: they inherit its variables, which the titles that
    vLLM gives them, such as ``VLLM::EngineCore``, overwrite in /proc.
    """
    program, *arguments = command
    if PurePath(program).name.startswith("python"):
        program, *arguments = _run_by_python(arguments)

    if PurePath(program).name == "vllm" or program == "vllm.entrypoints.cli.main":
        return bool(arguments) and arguments[0] in SERVING
    return program == "dynamo.vllm" or program.startswith(PACKAGES)


def _run_by_python(arguments: list[str]) -> list[str]:
    """The script or module that Python runs, and its arguments; an empty name if it runs neither.

    A script that belongs to one of ``PACKAGES`` is named as its module.
    """
    left = iter(arguments)
    for argument in left:
        if not argument.startswith("-"):
            return [_module(argument), *left]

        valued = VALUED_OPTION.fullmatch(argument)
        if valued is None:
            continue
        option, value = valued.groups()
        if option == "c":
            break
        if not value:
            value = next(left, "")
        if option == "m":
            return [value, *left]
    return [""]


def _module(script: str) -> str:
    """The module of vLLM or Dynamo that this file is; for any other file, the path unchanged."""
    path = PurePath(script)
    if path.suffix != ".py":
        return script

    dotted = "." + ".".join(path.with_suffix("").parts)
    for package in PACKAGES:
        _, found, rest = dotted.rpartition(f".{package}")
        if found:
            return package + rest
    return script


def _variables(environ: bytes) -> dict[str, str]:
    """A process's environment, from its file in /proc."""
    pairs = (entry.partition("=") for entry in environ.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}


def _unknown(misfit: Callable[[dict[str, str]], str]) -> str:
    """Why the plug-in cannot wrap the scheduler; empty if it can."""
    vllm = util.find_spec("vllm")
    if vllm is None or vllm.origin is None:
        return "this Python has no vLLM; use the one that runs vLLM"
    source = Path(vllm.origin).with_name("v1") / "core/sched/scheduler.py"
    if not source.is_file():
        return "this vLLM is older than 0.16, so it has no scheduler that the plug-in observes"
    unknown = misfit(_methods(source))
    return f"it needs the Scheduler of vLLM 0.16 or later; found {unknown}" if unknown else ""


def _refused(path: str) -> str:
    """Why a connection to the socket is impossible; empty if it is possible."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as link:
        try:
            link.connect(path)
        except OSError as error:
            reason = error.strerror or str(error)
            return (
                f"{reason}; start the sidecar, "
                "and set SPECDEC_PLUGIN__SOCKET to the same path for both"
            )

    return ""


def _methods(source: Path) -> dict[str, str]:
    """The parameters of each function in a file, by the function's name."""
    nodes = [
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    return {node.name: " ".join(_parameters(node.args)) for node in nodes}


def _parameters(arguments: ast.arguments) -> list[str]:
    """The names of parameters; with * if one cannot be given both by position and by name.

    As in the plug-in's own check.
    """
    others = (arguments.vararg, *arguments.kwonlyargs, arguments.kwarg)
    rest = [argument for argument in others if argument]
    return (
        [argument.arg + "*" for argument in arguments.posonlyargs]
        + [argument.arg for argument in arguments.args]
        + [argument.arg + "*" for argument in rest]
    )


if __name__ == "__main__":
    # The command ``plugin`` writes it beside this file.
    from specdec_plugin import SOCKET, misfit  # type: ignore[import-not-found]

    sys.exit(main(misfit, SOCKET))
