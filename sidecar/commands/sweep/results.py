"""The result of a sweep, which ``--save`` writes and ``compare`` reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import PositiveInt, TypeAdapter, ValidationError

from sidecar.commands.arguments import read_input
from sidecar.commands.sweep.measured import Measured
from sidecar.commands.sweep.workload import Level
from sidecar.errors import InputError

_MOST_BYTES: Final = 256 * 1024 * 1024  # a saved sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """One level on the measured server, and on its baseline if there is one."""

    level: Level
    speculating: Measured
    baseline: Measured | None = None

    @property
    def complete(self) -> bool:
        """Whether all requests ended and, on each server, at least one was answered."""
        return all(one.complete and bool(one.samples) for one in (self.speculating, self.baseline) if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """``complete`` is False if the sweep was stopped, ran out of time, or a level got no answer at all.

    ``model`` is None if the sweep ended before the server named one. ``faults`` has the last fault of each server that
    failed requests, by its address.
    """

    format: Literal[3] = 3
    model: str | None
    max_tokens: int
    rounds: PositiveInt
    complete: bool
    faults: dict[str, str]
    levels: tuple[LevelResult, ...]


_RESULT: Final = TypeAdapter(SweepResult)


def encode(result: SweepResult) -> bytes:
    """The content of a saved sweep's file."""
    return _RESULT.dump_json(result) + b"\n"


def load(path: Path) -> SweepResult:
    """Reads a saved sweep.

    Raises:
        InputError: it cannot be read, is not a saved sweep of this version, or no request was answered.
    """
    try:
        found = _RESULT.validate_json(read_input(path, _MOST_BYTES))
    except ValidationError:
        raise InputError(f"{path}: not a file that `sweep --save` of this version wrote") from None
    if not any(level.speculating.samples for level in found.levels):
        raise InputError(f"{path}: no request was answered in it")
    return found
