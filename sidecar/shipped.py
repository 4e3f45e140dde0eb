"""The files of ``alerts/`` that are shipped with the package."""

from pathlib import Path


def shipped(name: str) -> Path:
    """A file or folder of ``alerts/``: inside the installed package, else in the repository around it."""
    package = Path(__file__).parent
    packaged = package / "alerts" / name
    return packaged if packaged.exists() else package.parent / "alerts" / name
