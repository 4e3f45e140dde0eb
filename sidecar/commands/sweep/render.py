"""A sweep's result as text; times in milliseconds."""

from collections.abc import Iterator
from typing import Final

from sidecar.commands.estimates import Interval
from sidecar.commands.sweep.results import LevelResult, MixResult, SweepResult, TemperatureResult
from sidecar.commands.sweep.speed_table import Cells, speed_cells, speed_table
from sidecar.commands.tables import aligned, count, milliseconds, ratio

_COLUMNS: Final = (
    *("requests", "failed", "acceptance"),
    *("TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "TPOT P95", "TPOT P99", "tokens/s"),
)
_COMPARED: Final = ("server", *_COLUMNS, "speedup", "verdict")
_TEMPERATURES: Final = ("temperature", "requests", "draft tokens", "acceptance", "P10", "P50", "P90", "from")
_MIX: Final = ("temperature", "TTFT P99 alone", "in the mix", "TPOT P99 alone", "in the mix", "change")


def text(result: SweepResult) -> Iterator[str]:
    """Tables by level, by temperature and by mix, and the verdicts."""
    compared = any(level.baseline is not None for level in result.levels)
    yield f"model {result.model or 'not known'}; times in milliseconds"
    if result.capacity is not None:
        yield f"capacity: {result.capacity:.3g} requests/s"
    yield ""
    columns = _COMPARED if compared else _COLUMNS
    yield from speed_table([(level.level, _rows(level)) for level in result.levels], columns)
    yield ""
    yield from aligned(_TEMPERATURES, [_temperature(one) for one in result.temperatures])
    yield ""
    for one in result.temperatures:
        yield f"temperature {one.temperature:g}: {one.verdict}: {one.action}"
        yield from (f"  {note}" for note in one.notes)
    for mix in result.mixes:
        yield from _mix(mix)
    yield from _caveats(result)


def _rows(level: LevelResult) -> list[Cells]:
    speedup = "-"
    if level.speedup is not None:
        error = level.speedup.error
        speedup = f"{level.speedup.value:.2f}x" + ("" if error is None else f"±{error:.2f}")
    judged = {"server": "speculating", "speedup": speedup, "verdict": level.verdict}
    rows: list[Cells] = [{**speed_cells(level.speed, level.speculation), **judged}]
    if level.baseline is not None:
        rows.append({**speed_cells(level.baseline, None), "server": "baseline"})
    return rows


def _temperature(one: TemperatureResult) -> tuple[str, ...]:
    found = one.speculation
    ratios = (found.acceptance, found.p10, found.p50, found.p90)
    return (
        *(f"{one.temperature:g}", count(found.requests), count(found.draft_tokens)),
        *(*map(ratio, ratios), found.source),
    )


def _mix(mix: MixResult) -> Iterator[str]:
    yield ""
    yield (
        f"{mix.level.workload.name} at {mix.level.load}: TPOT P99 {milliseconds(mix.tpot_p99)}; "
        f"the same requests apart: {milliseconds(mix.tpot_p99_unmixed)}"
    )
    rows = [
        (
            f"{one.temperature:g}",
            *(milliseconds(times.p99) for times in (one.ttft_alone, one.ttft_in_mix, one.tpot_alone, one.tpot_in_mix)),
            _change(one.change),
        )
        for one in mix.temperatures
    ]
    yield from aligned(_MIX, rows)
    yield f"  {mix.conclusion}"


def _change(change: Interval | None) -> str:
    if change is None:
        return "-"
    if change.low is None or change.high is None:
        return f"{change.value:+.1%} (not precise)"
    return f"{change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"


def _caveats(result: SweepResult) -> Iterator[str]:
    for level in result.levels:
        if level.other_requests:
            yield f"{level.level}: vLLM served other clients too, so its counters and times are not this sweep's alone"
    if any(level.baseline_drafts for level in result.levels):
        yield "--baseline-url: it speculates too, so nothing is compared; give a vLLM without speculation"
    for server, fault in result.faults.items():
        yield f"{server}: requests failed; the last error: {fault}"
    if not result.complete:
        yield "The sweep is incomplete: not every level was measured to its end."
