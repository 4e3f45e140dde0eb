"""The table of speeds that ``sweep`` and ``compare`` print: a row for each server at each level."""

from collections.abc import Mapping, Sequence

from sidecar.commands.sweep.results import Speculation, Speed
from sidecar.commands.sweep.workload import Level
from sidecar.commands.tables import aligned, milliseconds, number, ratio

Cells = Mapping[str, str]
"""A row's cells by column."""


def speed_cells(speed: Speed, speculation: Speculation | None) -> Cells:
    """One server at one level; times in milliseconds."""
    return {
        "requests": str(speed.requests),
        "failed": str(speed.failed),
        "acceptance": ratio(speculation.acceptance if speculation else None),
        "length": ratio(speculation.length if speculation else None),
        "TTFT P50": milliseconds(speed.ttft.p50),
        "TTFT P95": milliseconds(speed.ttft.p95),
        "TTFT P99": milliseconds(speed.ttft.p99),
        "TPOT P50": milliseconds(speed.tpot.p50),
        "TPOT P95": milliseconds(speed.tpot.p95),
        "TPOT P99": milliseconds(speed.tpot.p99),
        "tokens/s": number(speed.tokens_per_second),
    }


def speed_table(levels: Sequence[tuple[Level, Sequence[Cells]]], columns: Sequence[str]) -> list[str]:
    """All levels with their rows; a column name that begins like the one before it is shortened to its end."""
    rows = []
    for level, cells in levels:
        first = (str(level.workload), str(level.load))
        for row in cells:
            rows.append((*first, *(row.get(column, "") for column in columns)))
            first = ("", "")
    before = ("", *columns)
    shown = [name.split()[-1] if name[:4] == before[place][:4] else name for place, name in enumerate(columns)]
    return aligned(("temperature", "load", *shown), rows)
