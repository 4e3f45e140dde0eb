"""Tables for terminals and tickets, and how they show numbers."""

from collections.abc import Container, Sequence

_NOTHING = "-"


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


def ratio(value: float | None) -> str:
    """A ratio with three decimals; a dash if unknown."""
    return _NOTHING if value is None else f"{value:.3f}"


def share(value: float | None) -> str:
    """A share of a whole, in percent."""
    return _NOTHING if value is None else f"{value:.0%}"


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds."""
    return _NOTHING if seconds is None else f"{seconds * 1000:,.1f}"


def number(value: float | None) -> str:
    """A number with one decimal."""
    return _NOTHING if value is None else f"{value:,.1f}"


def count(value: float | None) -> str:
    """A count, rounded to a whole number."""
    return _NOTHING if value is None else f"{value:,.0f}"
