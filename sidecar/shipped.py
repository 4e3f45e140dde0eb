"""The files of ``alerts/`` and ``docs/`` that the sidecar itself reads or serves."""

from pathlib import Path


def shipped(name: str, folder: str = "alerts") -> Path:
    """A file or folder of ``folder``, in the installed package or, failing that, the repository."""
    package = Path(__file__).parent
    packaged = package / folder / name
    return packaged if packaged.exists() else package.parent / folder / name
