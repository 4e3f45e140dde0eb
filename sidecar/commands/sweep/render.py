"""A sweep's result as text; times in milliseconds."""

from collections.abc import Iterator, Sequence
from typing import Final

from sidecar.commands.sweep.results import LevelSummary, MixCheck, Quantiles, Speed, SweepResult, TemperatureSummary
from sidecar.commands.tables import aligned, count, milliseconds, ratio

_LEVELS: Final = (
    *("temperature", "load", "server", "requests", "failed", "acceptance"),
    *("TTFT P50", "P95", "P99", "TPOT P50", "P95", "P99"),
    *("tokens/s", "speedup", "verdict"),
)
_TEMPERATURES: Final = ("temperature", "requests", "draft tokens", "acceptance", "P10", "P50", "P90", "from")
_MIX: Final = ("temperature", "TTFT P99 alone", "in the mix", "TPOT P99 alone", "in the mix", "change")


def text(result: SweepResult) -> Iterator[str]:
    """Tables by level, by temperature and by mix, and the verdicts."""
    compared = any(level.baseline is not None for level in result.levels)
    yield f"model {result.model or 'not known'}; times in milliseconds"
    if result.capacity is not None:
        yield f"capacity: {result.capacity:.3g} requests/s"
    yield ""
    rows = [_LEVELS, *(row for level in result.levels for row in _level(level))]
    header, *rows = rows if compared else [(*row[:2], *row[3:-2]) for row in rows]
    yield from aligned(header, rows)
    yield ""
    yield from aligned(_TEMPERATURES, [_temperature(one) for one in result.temperatures])
    yield ""
    yield from verdicts(result)
    for check in result.mixes:
        yield from _mix(check)
    yield from _caveats(result)


def _level(level: LevelSummary) -> Iterator[tuple[str, ...]]:
    speedup = "-"
    if level.speedup is not None:
        speedup = f"{level.speedup:.2f}x" + (f"±{level.speedup_error:.2f}" if level.speedup_error is not None else "")
    yield (
        str(level.level.workload),
        str(level.level.load),
        "speculating",
        *_speed(level.speed, ratio(level.acceptance)),
        speedup,
        level.verdict,
    )
    if level.baseline is not None:
        yield ("", "", "baseline", *_speed(level.baseline, "-"), "", "")


def _speed(speed: Speed, acceptance: str) -> tuple[str, ...]:
    return (
        str(speed.requests),
        str(speed.failed),
        acceptance,
        *_times(speed.ttft),
        *_times(speed.tpot),
        f"{speed.tokens_per_second:,.1f}",
    )


def _times(times: Quantiles) -> tuple[str, str, str]:
    return milliseconds(times.p50), milliseconds(times.p95), milliseconds(times.p99)


def _temperature(one: TemperatureSummary) -> tuple[str, ...]:
    return (
        f"{one.temperature:g}",
        count(one.requests),
        count(one.draft_tokens),
        ratio(one.acceptance),
        ratio(one.p10),
        ratio(one.p50),
        ratio(one.p90),
        one.attribution,
    )


def verdicts(result: SweepResult) -> Iterator[str]:
    """What to do at each temperature, and why."""
    for one in result.temperatures:
        yield from _verdict(one, [level for level in result.levels if level.temperature == one.temperature])


def _verdict(one: TemperatureSummary, levels: Sequence[LevelSummary]) -> Iterator[str]:
    yield f"temperature {one.temperature:g}: {one.verdict}: {one.action}"
    if one.advice is not None:
        yield f"  {one.advice}"
    for pays, stops, unit in (
        (one.pays_up_to, one.stops_at, " at once"),
        (one.pays_up_to_rate, one.stops_at_rate, "/s"),
    ):
        if pays is not None or stops is not None:
            yield f"  measured: {_paying(pays, stops, unit)}"
    speedups = [(level.speedup, level.speedup_error) for level in levels if level.speedup is not None]
    if any(error is None or abs(speedup - 1) <= error for speedup, error in speedups):
        yield "  not every speedup is beyond its error: raise --requests or --rounds"
    elif not speedups and any(level.baseline is not None for level in levels):
        yield "  measured: nothing to compare"


def _paying(pays: float | None, stops: float | None, unit: str) -> str:
    if stops is None:
        return f"faster at every load up to {pays:.3g}{unit}"
    if pays is None:
        return f"not faster, even at {stops:.3g}{unit}"
    return f"faster up to {pays:.3g}{unit}, no longer at {stops:.3g}{unit}"


def _mix(check: MixCheck) -> Iterator[str]:
    yield ""
    yield (
        f"{check.workload.name} at {check.load}: TPOT P99 {milliseconds(check.tpot_p99)}; "
        f"the same requests apart: {milliseconds(check.tpot_p99_unmixed)}"
    )
    rows = [
        (
            f"{one.temperature:g}",
            milliseconds(one.ttft_alone.p99),
            milliseconds(one.ttft_in_mix.p99),
            milliseconds(one.tpot_alone.p99),
            milliseconds(one.tpot_in_mix.p99),
            _change(one.change, one.change_low, one.change_high),
        )
        for one in check.temperatures
    ]
    yield from aligned(_MIX, rows)
    yield f"  {check.conclusion}"


def _change(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:+.1%}" + (" (not precise)" if low is None or high is None else f" ({low:+.1%} to {high:+.1%})")


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
