"""Numbers and tables as text, in a form that is easy to read."""

import re
from collections.abc import Callable, Container, Sequence
from datetime import UTC, datetime
from typing import Final

from sidecar.analysis.evidence import CONFIDENCE, Acceptance

UNBROKEN: Final = re.compile(r"(?<=\bT) (?=\d)|(?<=\d) (?=(?:ms|µs|s|min|h)\b|±)|(?<=±) (?=\d)")
"""The space in temperatures such as T 0, in numbers with the unit of a time, and about their ±."""

_TODAY: Final = 20 * 3600.0  # seconds


def percent(value: float | None) -> str:
    """A share from 0 to 1 in percent."""
    return "no data" if value is None else f"{value:.0%}"


def rate_within(rate: float, error: float | None) -> str:
    """A rate from 0 to 1 in percent, with its 95 % interval if its standard error is known."""
    return percent(rate) if error is None else f"{rate:.0%} ± {100 * CONFIDENCE * error:.0f}"


def by_position(acceptance: Acceptance, part: str) -> str:
    """The acceptance rate at each draft position, out of ``part``, as a sentence.

    Empty if unknown.
    """
    rates = ", ".join(map(percent, acceptance.position_rates))
    return f"Acceptance rate by position, {part}: {rates}. " if rates else ""


def latency(seconds: float) -> str:
    """Seconds, or milliseconds below one second."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.2g} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


def utc(seconds: float) -> str:
    """The time of day of Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def date(seconds: float) -> str:
    """The day and the time of day of Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %b %H:%M UTC")


def moment(seconds: float, now: float) -> str:
    """The minute of Unix seconds, with the day if that is not today's or last night's."""
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at:%H:%M} UTC" if now - seconds < _TODAY else f"{at:%d %b %H:%M} UTC"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def memory_size(size: float) -> str:
    """Bytes in GiB, or in MiB below a tenth of one."""
    if size >= 0.1 * 2**30:
        return f"{size / 2**30:.1f} GiB"
    return f"{max(size / 2**20, 1):.0f} MiB"


def counted(count: float, what: str) -> str:
    """A number and a noun."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"


def aligned(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Container[int] = (0,)
) -> list[str]:
    """One line per row, two spaces between columns.

    Columns numbered in ``left`` are left-aligned, others right.
    """
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same as a Markdown table."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    lines = []
    for row in (header, ruler, *rows):
        cells = [cell.replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _shown_as(template: str, factor: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else template.format(value * factor)


ratio: Final = _shown_as("{:.3f}")
share: Final = _shown_as("{:.0%}")
milliseconds: Final = _shown_as("{:,.1f}", 1000)  # from seconds
number: Final = _shown_as("{:,.1f}")
count: Final = _shown_as("{:,.0f}")
"""Each shows a number as text: a dash if it is unknown, that is, None."""
