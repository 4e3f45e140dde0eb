"""``plugin``: writes the plug-in for vLLM to a folder, as a Python package installed there."""

import argparse
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from sidecar import __version__, requests
from sidecar.errors import InputError
from sidecar.settings import Settings

HELP = "write the plug-in for vLLM into a directory, which goes onto vLLM's PYTHONPATH"

MODULE: Final = "specdec_plugin"
_DOCTOR: Final = "specdec_doctor"
_SOURCES: Final = Path(requests.__file__).parent
_SUMMARY: Final = "Tells specdec-sidecar what each request drafts and accepts in vLLM's scheduler"
_PROJECT: Final = "specdec-plugin"
_METADATA: Final = f"""\
Metadata-Version: 2.1
Name: {_PROJECT}
Version: {__version__}
Summary: {_SUMMARY}
License: Apache-2.0
Requires-Python: >=3.9
"""
_ENTRY_POINTS: Final = f"""\
[vllm.general_plugins]
specdec = {MODULE}:register
"""
_PYPROJECT: Final = f"""\
# For `pip install` of this folder into an image that sets PYTHONPATH itself.
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{_PROJECT}"
version = "{__version__}"
description = "{_SUMMARY}"
requires-python = ">=3.9"

[project.entry-points."vllm.general_plugins"]
specdec = "{MODULE}:register"

[tool.setuptools]
py-modules = ["{MODULE}", "{_DOCTOR}"]
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``plugin``."""
    folder = "created if missing; readable by any user, since vLLM may run as another one"
    parser.add_argument("folder", type=Path, metavar="DIR", help=folder)


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Writes the plug-in and prints what to set in vLLM's container; returns 0.

    Raises:
        InputError: the folder cannot be written or belongs to another project.
    """
    folder = arguments.folder.absolute()
    for file in write_plugin(folder):
        print(f"wrote {file}")

    print(f"""
Set these variables in vLLM's container, then restart vLLM:
  PYTHONPATH={folder}
      if the image sets PYTHONPATH itself, build an image with this instead: pip install {folder}
  SPECDEC_PLUGIN__SOCKET={settings.plugin.socket}
      the same path as in the sidecar, on a volume that both containers mount
  VLLM_PLUGINS
      only if it is set already: add specdec to it

To check the setup, run in vLLM's container: python -m {_DOCTOR}""")
    return 0


def write_plugin(folder: Path) -> tuple[Path, ...]:
    """Writes the plug-in into the folder, readable by any user, and returns the files.

    A process that imports it finds all of it or none. If the folder has another project's
    ``pyproject.toml``, nothing is written.

    Raises:
        InputError: the folder cannot be written or belongs to another project.
    """
    package = folder / f"{MODULE}-{__version__}.dist-info"
    project = folder / "pyproject.toml"
    files = {
        folder / f"{MODULE}.py": (_SOURCES / "plugin.py").read_text(encoding="utf-8"),
        folder / f"{_DOCTOR}.py": (_SOURCES / "doctor.py").read_text(encoding="utf-8"),
        project: _PYPROJECT,
        package / "METADATA": _METADATA,
        package / "entry_points.txt": _ENTRY_POINTS,
    }
    try:
        if project.exists() and f'name = "{_PROJECT}"' not in project.read_text(
            encoding="utf-8", errors="replace"
        ):
            raise InputError(
                f"{project} belongs to another project; use a separate directory for the plug-in"
            )

        _make(folder)
        _make(package)
        for path, text in files.items():
            _write(path, text)

        for other in folder.glob(f"{MODULE}-*.dist-info"):
            if other != package:  # another version's: vLLM would find the plug-in twice
                shutil.rmtree(other)
    except OSError as error:
        raise InputError(f"cannot write {error.filename or folder}: {error.strerror}") from error

    return tuple(files)


def _make(folder: Path) -> None:
    # Only the owner may write there, since vLLM runs what is in it.
    folder.mkdir(0o755, parents=True, exist_ok=True)
    # In another user's folder, such as a volume, writing may still be allowed.
    with suppress(PermissionError):
        folder.chmod(folder.stat().st_mode | 0o555)


def _write(path: Path, text: str) -> None:
    """Replaces the file atomically; any user can read it, whatever the umask."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
