"""A sweep's result as text and as JSON, and the bar that shows how far it is."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, TextIO

from sidecar.commands.sweep.options import Level
from sidecar.commands.sweep.summary import LevelSummary, Speculation, TemperatureSummary
from sidecar.commands.sweep.sweep import SweepResult
from sidecar.commands.tables import aligned, count, milliseconds, ratio

_WIDTH: Final = 30
_LEVELS: Final = (
    *("temperature", "at once", "requests", "failed", "acceptance"),
    *("TTFT P50", "P95", "P99", "TPOT P50", "P95", "P99"),
    "tokens/s",
)
_BASELINE: Final = ("base TPOT P50", "P99", "base tokens/s", "speedup")
_TEMPERATURES: Final = ("temperature", "requests", "draft tokens", "acceptance", "P10", "P50", "P90", "from")


class Progress:
    """A bar on a terminal; nothing anywhere else."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._shown = stream.isatty()

    def __call__(self, level: Level, ended: int) -> None:
        """Shows that ``ended`` requests have ended."""
        if not self._shown:
            return
        full = _WIDTH * ended // self._total
        bar = "#" * full + "-" * (_WIDTH - full)
        where = f"temperature {level.temperature:g}, {level.at_once} at once"
        self._stream.write(f"\r\x1b[K[{bar}] {ended}/{self._total}  {where}")
        self._stream.flush()

    def clear(self) -> None:
        """Takes the bar away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def text(result: SweepResult) -> Iterator[str]:
    """Two tables, by level and by temperature, and the verdicts; times in milliseconds."""
    compared = any(level.baseline is not None for level in result.levels)
    yield f"model {result.model or 'not known'}; times in milliseconds"
    yield ""
    header = (*_LEVELS, *_BASELINE) if compared else _LEVELS
    yield from aligned(header, [_level(level, compared=compared) for level in result.levels])
    yield ""
    yield from aligned(_TEMPERATURES, [_temperature(one) for one in result.temperatures])
    yield ""
    for one in result.temperatures:
        known = compared and (one.stops_at is not None or one.pays_up_to is not None)
        outranked = " (by its acceptance; what was measured counts for more)" if known else ""
        yield f"temperature {one.temperature:g}: {one.verdict}: {one.action}{outranked}"
        if one.advice is not None:
            yield f"  {one.advice}"
        if compared:
            yield f"  {_paying(one)}"
    for level in result.levels:
        if level.others:
            where = f"temperature {level.level.temperature:g}, {level.level.at_once} at once"
            yield f"{where}: vLLM served other requests as well, so its counters and times are not this sweep's alone"
    if any(level.baseline_drafts for level in result.levels):
        yield "--baseline-url: it speculates as well, so its times say nothing of speculation; name a vLLM without"
    for server, fault in result.faults.items():
        yield f"{server}: requests failed; the last fault: {fault}"
    if not result.complete:
        yield "This is a part of the sweep: not every level was measured to its end."


def _level(level: LevelSummary, *, compared: bool) -> tuple[str, ...]:
    speed = level.speed
    cells = (
        f"{level.level.temperature:g}",
        str(level.level.at_once),
        str(speed.requests),
        str(speed.failed),
        ratio(level.speculation.work.acceptance),
        *(milliseconds(value) for value in (speed.ttft.p50, speed.ttft.p95, speed.ttft.p99)),
        *(milliseconds(value) for value in (speed.tpot.p50, speed.tpot.p95, speed.tpot.p99)),
        f"{speed.tokens_per_second:,.1f}",
    )
    if not compared:
        return cells
    base = level.baseline
    return (
        *cells,
        milliseconds(base.tpot.p50 if base else None),
        milliseconds(base.tpot.p99 if base else None),
        "-" if base is None else f"{base.tokens_per_second:,.1f}",
        "-" if level.speedup is None else f"{level.speedup:.2f}x",
    )


def _temperature(one: TemperatureSummary) -> tuple[str, ...]:
    work = one.speculation.work
    return (
        f"{one.temperature:g}",
        count(work.requests),
        count(work.draft_tokens),
        ratio(work.acceptance),
        ratio(work.p10),
        ratio(work.p50),
        ratio(work.p90),
        one.speculation.source,
    )


def _paying(one: TemperatureSummary) -> str:
    """What was measured, which counts for more than a threshold."""
    if one.stops_at is not None:
        if one.pays_up_to is None:
            return f"measured: does not pay, not even at {one.stops_at} at once"
        return f"measured: pays up to {one.pays_up_to} at once and stops paying at {one.stops_at} at once"
    if one.pays_up_to is not None:
        return f"measured: pays at every load up to {one.pays_up_to} at once"
    return "measured: nothing to compare"


def as_json(result: SweepResult) -> dict[str, Any]:
    """The result as plain JSON values: times in seconds, ratios 0 to 1, null where not known."""
    return {
        "model": result.model,
        "complete": result.complete,
        "faults": dict(result.faults),
        "temperatures": [
            {
                "temperature": one.temperature,
                "verdict": one.verdict,
                "action": one.action,
                "advice": one.advice,
                **_speculation(one.speculation),
                "pays_up_to": one.pays_up_to,
                "stops_at": one.stops_at,
            }
            for one in result.temperatures
        ],
        "levels": [
            {
                "temperature": level.level.temperature,
                "at_once": level.level.at_once,
                "complete": level.complete,
                **_speculation(level.speculation),
                "counted_draft_tokens": level.counted,
                "other_requests": level.others,
                "speed": asdict(level.speed),
                "baseline_drafts": level.baseline_drafts,
                "baseline": None if level.baseline is None else asdict(level.baseline),
                "speedup": level.speedup,
                "speedup_p99": level.speedup_p99,
                "throughput_ratio": level.throughput_ratio,
            }
            for level in result.levels
        ],
    }


def _speculation(found: Speculation) -> dict[str, Any]:
    work = found.work
    return {
        "attribution": found.source,
        "requests": work.requests,
        "drafts": round(work.drafts),
        "draft_tokens": round(work.draft_tokens),
        "accepted_tokens": round(work.accepted_tokens),
        "acceptance": work.acceptance,
        "p10": work.p10,
        "p50": work.p50,
        "p90": work.p90,
        "position_rates": list(work.position_rates),
    }
