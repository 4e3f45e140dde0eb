"""A sweep's result: what ``--json`` prints, ``--save`` writes and ``compare`` reads; seconds, ratios from 0 to 1."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from sidecar.analysis.verdict import Verdict
from sidecar.commands.estimates import Interval
from sidecar.commands.sweep.sample import Sample
from sidecar.commands.sweep.workload import Level
from sidecar.errors import InputError

FORMAT: Final = 2
_MOST_BYTES: Final = 256 * 1024 * 1024  # of a saved sweep
_SAMPLES: Final = {"samples", "baseline_samples"}


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds, or None if nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One level on one server; ``tpot`` is the time for each output token after the first."""

    requests: int
    failed: int
    ttft: Quantiles
    tpot: Quantiles
    tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Acceptance, and whether it is from the ``replies`` themselves or from vLLM's ``counters``.

    ``acceptance`` is accepted / drafted tokens, P10 to P90 those of single requests, ``length`` the tokens per
    verification step, ``position_rates[p]`` the share of steps that accept at draft position p.
    """

    source: Literal["replies", "counters", "none"] = "none"
    requests: int
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    acceptance: float | None = None
    length: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    position_rates: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelResult:
    """One level, with the baseline's speed if there is a baseline.

    ``speedup`` is the baseline's TPOT at the median divided by this one's, with its 95 % bounds: above 1 speculation is
    faster. ``other_requests``: vLLM's counters also have the work for other clients. ``baseline_drafts``: the baseline
    speculates too, so the two are not compared.
    """

    level: Level
    complete: bool
    speculation: Speculation
    other_requests: bool
    speed: Speed
    baseline: Speed | None = None
    baseline_drafts: bool = False
    speedup: Interval | None = None
    verdict: Verdict
    samples: tuple[Sample, ...] = ()
    baseline_samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TemperatureResult:
    """One temperature alone, over all its loads; ``notes``: what to change, and up to which load it was faster."""

    temperature: float
    speculation: Speculation
    verdict: Verdict
    action: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedTemperature:
    """One temperature of a mix: alone at the same load, and in the mix; ``change`` is in / alone - 1 at TPOT's P99."""

    temperature: float
    ttft_alone: Quantiles
    ttft_in_mix: Quantiles
    tpot_alone: Quantiles
    tpot_in_mix: Quantiles
    change: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MixResult:
    """A mix at one load against each of its temperatures alone at that load.

    ``tpot_p99_unmixed`` is what the mix's P99 would be if mixing changed nothing: that of all requests alone, weighted.
    """

    level: Level
    tpot_p99: float | None
    tpot_p99_unmixed: float | None
    temperatures: tuple[MixedTemperature, ...]
    conclusion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """``complete`` is False if the sweep was stopped, ran out of time, or a level got no answer at all.

    ``model`` is None if the sweep ended before the server named one. If requests failed, ``faults`` has the last fault
    of each server, by the argument that names it. ``capacity`` is in requests per second, None if not measured.
    A level's samples are in the order of the rounds.
    """

    format: int = FORMAT
    model: str | None
    max_tokens: int
    rounds: int
    complete: bool
    capacity: float | None
    faults: dict[str, str]
    temperatures: tuple[TemperatureResult, ...]
    mixes: tuple[MixResult, ...]
    levels: tuple[LevelResult, ...]


_RESULT: Final = TypeAdapter(SweepResult)


def as_json(result: SweepResult) -> dict[str, Any]:
    """Plain JSON values, without the samples of single requests."""
    found: dict[str, Any] = _RESULT.dump_python(result, mode="json", exclude={"levels": {"__all__": _SAMPLES}})
    return found


def encode(result: SweepResult) -> bytes:
    """All of it, for ``compare``."""
    return _RESULT.dump_json(result) + b"\n"


def load(path: Path) -> SweepResult:
    """What ``encode`` made.

    Raises:
        InputError: it cannot be read, or is not a saved sweep of this version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise InputError(f"{path}: over {_MOST_BYTES // 1024 // 1024} MiB")
        found = _RESULT.validate_json(data)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"])) or "the file"
        raise InputError(
            f"{path}: not a file that `sweep --save` of this version wrote ({where}: {fault['msg']})"
        ) from None
    if found.format != FORMAT:
        raise InputError(f"{path}: format {found.format}; this version reads format {FORMAT}")
    if not any(level.samples for level in found.levels):
        raise InputError(f"{path}: no single requests in it; write it with `sweep --save`, not with --json")
    return found
