"""The files that operators write: reads their YAML, and shows whether they have changed."""

from pathlib import Path
from typing import Any, Final

_MAX_BYTES: Final = 1024 * 1024
_NO_SETTINGS: Final = "expected at most 1 MiB, with one setting per line, as key: value"
Stamp = tuple[int, int, int] | None


def stamp(path: Path) -> Stamp:
    """A value that changes with the file; None: no file.

    It also changes if a mounted Secret or ConfigMap swaps the link to the file.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file of at most 1 MiB; an empty file holds an empty one.

    Raises:
        ValueError: the file holds none, or cannot be read; the message says why.
    """
    # YAML takes 1.4 MiB, and many sidecars are configured by their environment alone.
    from sidecar.settings.strict_yaml import parsed  # noqa: PLC0415 - see above

    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise ValueError(_NO_SETTINGS)

    values = parsed(content)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(_NO_SETTINGS)  # noqa: TRY004 - of the file, not of an argument
    return {str(key): value for key, value in values.items()}
