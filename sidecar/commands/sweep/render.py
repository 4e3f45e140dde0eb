"""A sweep as text; times in milliseconds."""

from collections.abc import Iterator
from typing import Final

from sidecar.commands.estimates import Interval
from sidecar.commands.sweep.metrics import METRICS, Cells, cells, table
from sidecar.commands.sweep.summary import LevelSummary, Summary, TemperatureSummary
from sidecar.commands.tables import aligned, count, ratio

_COMPARED: Final = ("server", *METRICS, "speedup", "verdict")
_TEMPERATURES: Final = ("temperature", "requests", "draft tokens", "acceptance", "P10", "P50", "P90", "from")


def text(summary: Summary) -> Iterator[str]:
    """Tables by level and by temperature, and the verdicts."""
    compared = any(level.baseline is not None for level in summary.levels)
    yield f"model {summary.model or 'not known'}; times in milliseconds"
    yield ""
    rows = [(one.level, list(_rows(one))) for one in summary.levels]
    yield from table(rows, _COMPARED if compared else tuple(METRICS))
    yield ""
    yield from aligned(_TEMPERATURES, [_temperature(one) for one in summary.temperatures])
    yield ""
    for one in summary.temperatures:
        yield f"temperature {one.temperature:g}: {one.verdict}: {one.action}"
        yield from (f"  {note}" for note in one.notes)
    for level in summary.levels:
        yield from _mix(level)
    yield from _caveats(summary)


def _rows(level: LevelSummary) -> Iterator[Cells]:
    """The server's row, those of a mix's temperatures, and the baseline's."""
    speedup = "-"
    if level.speedup is not None:
        error = level.speedup.error
        speedup = f"{level.speedup.value:.2f}x" + ("" if error is None else f"±{error:.2f}")
    yield {**cells(level.speculating), "server": "speculating", "speedup": speedup, "verdict": level.verdict}
    for temperature, inside in level.in_mix.items():
        yield {**cells(inside), "temperature": f"  {temperature:g}"}
    if level.baseline is not None:
        yield {**cells(level.baseline), "server": "baseline"}


def _temperature(one: TemperatureSummary) -> tuple[str, ...]:
    ratios = (one.acceptance, one.p10, one.p50, one.p90)
    numbers = (f"{one.temperature:g}", count(one.requests), count(one.draft_tokens), *map(ratio, ratios))
    return (*numbers, one.acceptance_from)


def _mix(level: LevelSummary) -> Iterator[str]:
    """Whether requests of one temperature suffer from concurrent requests of another."""
    if not level.changes:
        return
    lows = {temperature: None if one is None else one.low for temperature, one in level.changes.items()}
    slower = [f"{temperature:g}" for temperature, low in lows.items() if low is not None and low > 0]
    if slower:
        named = " and ".join(slower)
        yield f"{level.level}: requests at temperature {named} are slower in the mix: route them to separate pods"
    elif None in lows.values():
        yield f"{level.level}: too few requests to compare P99: raise --requests (about 800 of each temperature)"
    else:
        yield f"{level.level}: no temperature is shown to be slower in the mix: separate pods would not help"
    for temperature, change in level.changes.items():
        yield f"  temperature {temperature:g}: TPOT P99 {_change(change)} against the same temperature alone"


def _change(change: Interval | None) -> str:
    if change is None:
        return "-"
    return f"{change.value:+.1%} ({'not precise' if change.error is None else f'±{change.error:.1%}'})"


def _caveats(summary: Summary) -> Iterator[str]:
    for level in summary.levels:
        if level.other_requests:
            yield f"{level.level}: vLLM served other clients too, so its counters and times are not this sweep's alone"
    for server, fault in summary.faults.items():
        yield f"{server}: requests failed; the last error: {fault}"
    if not summary.complete:
        yield "The sweep is incomplete: not every level was measured to its end."
