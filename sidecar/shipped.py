"""The files of ``alerts/`` that the sidecar itself reads."""

from pathlib import Path


def shipped(name: str) -> Path:
    """A file or folder of ``alerts/``: in the installed package, else in the repository around."""
    package = Path(__file__).parent
    packaged = package / "alerts" / name
    return packaged if packaged.exists() else package.parent / "alerts" / name
