"""A sweep's result as JSON: printed without single requests, but saved with them."""

from pathlib import Path
from typing import Any, Final

import msgspec

from sidecar.commands.sweep.results import FORMAT, SweepResult
from sidecar.errors import InputError

_MOST_BYTES: Final = 256 * 1024 * 1024


def as_json(result: SweepResult) -> dict[str, Any]:
    """Plain JSON values, without the samples of single requests."""
    found: dict[str, Any] = msgspec.to_builtins(result)
    for level in found["levels"]:
        del level["samples"], level["baseline_samples"]
    return found


def save(result: SweepResult, path: Path) -> None:
    """Writes all of it, for ``compare``.

    Raises:
        OSError: it cannot be written.
    """
    path.write_bytes(msgspec.json.encode(result) + b"\n")


def load(path: Path) -> SweepResult:
    """What ``save`` wrote.

    Raises:
        InputError: it cannot be read, or is not a saved sweep of this version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{path}: over {_MOST_BYTES // 1024 // 1024} MiB")
        found = msgspec.json.decode(data, type=SweepResult)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not a file that `sweep --save` wrote ({error})") from error
    if found.format != FORMAT:
        raise InputError(f"{path}: format {found.format}; this version reads format {FORMAT}")
    if not any(level.samples for level in found.levels):
        raise InputError(f"{path}: no single requests in it; write it with `sweep --save`, not with --json")
    return found
