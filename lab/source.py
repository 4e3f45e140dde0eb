"""vLLM's sources as the package index has them, without building anything."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

# pip asks the archive's build backend for its metadata: in place of setuptools, one that runs
# nothing of vLLM's.
_NO_BACKEND: Final = """
import os, pathlib
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory, "vllm.dist-info")
    folder.mkdir()
    version = os.environ["VLLM_VERSION"]
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\n")
    return folder.name
"""


def archive_of(version: str, folder: Path) -> Path | None:
    """Downloads a release's source archive, 10 to 100 MB, to the folder; None if it has none."""
    backend = folder / "setuptools"
    backend.mkdir()
    (backend / "__init__.py").touch()
    (backend / "build_meta.py").write_text(_NO_BACKEND)

    options = ("--no-deps", "--no-binary=:all:", "--no-build-isolation", "--no-cache-dir")
    command = [sys.executable, "-m", "pip", "download", "-q", *options, "-d", str(folder)]
    subprocess.run(
        [*command, f"vllm=={version}"],
        check=False,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(folder), "VLLM_VERSION": version},
    )
    return next(folder.glob("vllm-*.tar.gz"), None)
