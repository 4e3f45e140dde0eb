"""Tables for terminals and tickets, and how they show numbers."""

from collections.abc import Callable, Container, Sequence
from typing import Final


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: Container[int] = (0,)) -> list[str]:
    """One line per row, two spaces between columns; those numbered in ``left`` are left-aligned, others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same as a Markdown table."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (header, ruler, *rows)]
    return [f"| {' | '.join(row)} |" for row in escaped]


def _shown_as(template: str, factor: float = 1.0) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else template.format(value * factor)


ratio: Final = _shown_as("{:.3f}")
share: Final = _shown_as("{:.0%}")
milliseconds: Final = _shown_as("{:,.1f}", 1000)  # from seconds
number: Final = _shown_as("{:,.1f}")
count: Final = _shown_as("{:,.0f}")
"""Each shows a number as text: a dash if it is unknown, that is, None."""
