"""The classes of other releases of vLLM, over a lab's libraries: ``lab/classes [VERSION ...]``.

A release's Python files are enough to run its schedulers: without a server, a model or compiled
code. They lie in the lab's folder ``classes``.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from lab.installation import ROOT, Installation, LabError, installed
from lab.source import archive_of

RELEASES: Final = ("0.16.0", "0.20.2", "0.27.1", "0.33.0")
# What these import and the lab's own vLLM does not, and what runs the tests.
_LIBRARIES: Final = ("gguf", "diskcache", "orjson", "iniconfig", "pluggy", "pytest")


def main() -> int:
    """``lab/classes``: installs what is missing."""
    try:
        lab = installed()
        for version in sys.argv[1:] or RELEASES:
            folders = path_of(lab, version)
            print(f"lab: vLLM {version} runs with PYTHONPATH={os.pathsep.join(map(str, folders))}")
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    return 0


def path_of(lab: Installation, version: str) -> list[Path]:
    """The folders that the lab's Python needs on its path to import this release.

    Installs them if they are missing. Those of the lab's own release have no vLLM.

    Raises:
        LabError: something cannot be downloaded.
    """
    libraries = lab.folder / "classes" / "libraries"
    if not libraries.is_dir():
        _install_libraries(lab, libraries)
    if version == lab.version:
        return [libraries]

    classes = lab.folder / "classes" / version
    if not classes.is_dir():
        _install(version, classes)
    return [classes, libraries]


def environment(lab: Installation, version: str) -> dict[str, str]:
    """The variables with which the lab's Python has this release, the repository and the models."""
    path = [*map(str, path_of(lab, version)), str(ROOT)]
    models = str(lab.folder / "models")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "LAB_MODELS": models}


def _install(version: str, classes: Path) -> None:
    classes.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=classes.parent) as name:
        folder = Path(name)
        archive = archive_of(version, folder)
        if archive is None:
            raise LabError(f"the package index has no source archive of vLLM {version}")

        made = folder / "made"
        with tarfile.open(archive) as members:
            for member in members:
                path = member.name.partition("/")[2]
                file = members.extractfile(member)
                is_source = path.startswith("vllm/") and path.endswith((".py", ".json"))
                if is_source and ".." not in path and file is not None:
                    (made / path).parent.mkdir(parents=True, exist_ok=True)
                    (made / path).write_bytes(file.read())

        # vLLM looks its version up, in which the platform is.
        info = made / f"vllm-{version}+cpu.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n"
        (info / "METADATA").write_text(metadata)
        made.rename(classes)


def _install_libraries(lab: Installation, libraries: Path) -> None:
    libraries.parent.mkdir(exist_ok=True)
    made = libraries.with_name("libraries.new")
    shutil.rmtree(made, ignore_errors=True)
    pip = [str(lab.venv / "bin/python"), "-m", "pip", "install", "-q", "--no-deps"]
    try:
        subprocess.run([*pip, "--target", str(made), *_LIBRARIES], check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise LabError(f"cannot install {' '.join(_LIBRARIES)}: {error.stderr[-500:]}") from error
    made.rename(libraries)
