"""``middleware``: the class for vLLM's ``--middleware`` as one file, for a volume that both containers mount."""

import argparse
import keyword
import os
import shlex
import sys
import tempfile
from pathlib import Path

from sidecar.requests.middleware.bundle import standalone_source
from sidecar.settings import Settings

HELP = "write the class for vLLM's --middleware as one file"
_READABLE = 0o644  # vLLM's container may run as another user
_IN_THE_WAY = frozenset({"msgspec", "sidecar", "torch", "vllm"})  # imported by vLLM; not a complete list

_HOW = """written to {file}; load it into vLLM with

  PYTHONPATH={folder} vllm serve … --middleware {module}.ObserveRequests

It sends to the socket at SPECDEC_MIDDLEWARE__SOCKET (default: {socket}), so set the same value
for vLLM and for the sidecar, and SPECDEC_REQUESTS__SOURCE=middleware for the sidecar."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``middleware``."""
    parser.add_argument("--write", type=Path, metavar="FILE", required=True, help="the file to write, NAME.py")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 with the file written, 1 if it cannot be written, 2 for a name that Python cannot import."""
    file: Path = arguments.write
    fault = _fault(file)
    if fault is not None:
        print(f"--write={file}: {fault}; write a name such as specdec_middleware.py", file=sys.stderr)
        return 2
    try:
        _write(file, standalone_source())
    except OSError as error:
        print(f"--write={file}: {error.strerror}", file=sys.stderr)
        return 1
    folder = shlex.quote(str(file.parent.resolve()))
    socket = type(settings.middleware)().socket
    print(_HOW.format(file=file, folder=folder, module=file.stem, socket=socket))
    return 0


def _fault(file: Path) -> str | None:
    """Why Python cannot import the file from PYTHONPATH; None if it can."""
    if file.suffix != ".py" or not file.stem.isascii() or not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        return "not the name of a Python module"
    if file.stem in sys.stdlib_module_names or file.stem in _IN_THE_WAY:
        return "vLLM would import it instead of the module with this name"
    return None


def _write(file: Path, source: str) -> None:
    """Replaces the file atomically: a vLLM that starts at that moment reads the old or the new one, never a part."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    scratch = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.write(source)
            out.flush()
            os.fsync(descriptor)
        scratch.chmod(_READABLE)
        scratch.replace(file)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
