"""A sweep's result: what ``--json`` prints, ``--save`` writes and ``compare`` reads; seconds, ratios from 0 to 1."""

from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from sidecar.analysis.verdict import Verdict
from sidecar.commands.sweep.options import Level, Load, Workload
from sidecar.commands.sweep.sample import Sample
from sidecar.errors import InputError

FORMAT: Final = 1
_MOST_BYTES: Final = 256 * 1024 * 1024  # of a saved sweep

Source = Literal["exact", "counters", "none"]


def mixed(mix: dict[str, float]) -> Workload:
    """The workload of a mix as it is saved: weights by temperature."""
    return Workload(tuple((float(temperature), weight) for temperature, weight in mix.items()))


class Quantiles(msgspec.Struct, frozen=True):
    """Seconds, or None if nothing was measured."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One level on one server; ``tpot`` is the time for each output token after the first."""

    requests: int
    failed: int
    ttft: Quantiles
    tpot: Quantiles
    duration: Quantiles
    tokens_per_second: float
    requests_per_second: float


class Speculation(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance, and its origin: ``attribution``.

    ``acceptance`` is accepted / drafted tokens, P10 to P90 those of single requests, ``acceptance_length`` the tokens
    per verification step, ``position_rates[p]`` the share of steps that accept at draft position p.
    """

    attribution: Source
    requests: int
    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted_tokens: float = 0.0
    acceptance: float | None = None
    acceptance_length: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    position_rates: tuple[float, ...] = ()


class LevelSummary(Speculation, frozen=True, kw_only=True):
    """One level, with the baseline's speed if there is a baseline.

    ``temperature`` is None for a mix, ``at_once`` for an open loop. ``speedup`` is the baseline's TPOT at the median
    divided by this one's, ``speedup_error`` half its 95 % interval, ``speedup_p99`` the same quotient at P99,
    ``throughput_ratio`` this one's tokens per second divided by the baseline's: above 1 speculation is faster.
    ``counted_draft_tokens`` is vLLM's own count over the level; ``other_requests``: it includes other clients.
    ``baseline_drafts``: the baseline speculates too, so the two are not compared.
    """

    temperature: float | None
    mix: dict[str, float] | None
    at_once: int | None
    rate: float | None
    share: float | None
    complete: bool
    counted_draft_tokens: float | None
    other_requests: bool
    speed: Speed
    baseline_drafts: bool
    baseline: Speed | None
    speedup: float | None
    speedup_error: float | None
    speedup_p99: float | None
    throughput_ratio: float | None
    verdict: Verdict
    samples: tuple[Sample, ...] = ()
    baseline_samples: tuple[Sample, ...] = ()

    @property
    def level(self) -> Level:
        """What was measured."""
        workload = Workload(((self.temperature or 0.0, 1.0),)) if self.mix is None else mixed(self.mix)
        return Level(workload, Load(at_once=self.at_once, rate=self.rate, share=self.share))


class TemperatureSummary(Speculation, frozen=True, kw_only=True):
    """One temperature alone, over all its loads.

    ``pays_up_to`` is the heaviest load measured (requests at once) up to which speculation is always faster than the
    baseline; ``stops_at`` is the lightest at which it is not. None without a baseline or such a load. The other two are
    the same for rates, in requests per second.
    """

    temperature: float
    verdict: Verdict
    action: str
    advice: str | None
    pays_up_to: int | None
    stops_at: int | None
    pays_up_to_rate: float | None
    stops_at_rate: float | None


class MixedTemperature(msgspec.Struct, frozen=True, kw_only=True):
    """One temperature of a mix: alone at the same load, and in the mix; ``change`` is in / alone - 1 at TPOT's P99.

    ``change_low`` and ``change_high`` are its 95 % bounds; None if there are too few requests.
    """

    temperature: float
    ttft_alone: Quantiles
    ttft_in_mix: Quantiles
    tpot_alone: Quantiles
    tpot_in_mix: Quantiles
    change: float | None
    change_low: float | None
    change_high: float | None


class MixCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A mix at one load against each of its temperatures alone at that load.

    ``tpot_p99_unmixed`` is what the mix's P99 would be if mixing changed nothing: that of all requests alone, weighted.
    """

    mix: dict[str, float]
    load: str
    tpot_p99: float | None
    tpot_p99_unmixed: float | None
    temperatures: tuple[MixedTemperature, ...]
    conclusion: str

    @property
    def workload(self) -> Workload:
        """The mix."""
        return mixed(self.mix)


class SweepResult(msgspec.Struct, frozen=True, kw_only=True):
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
    temperatures: tuple[TemperatureSummary, ...]
    mixes: tuple[MixCheck, ...]
    levels: tuple[LevelSummary, ...]


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
