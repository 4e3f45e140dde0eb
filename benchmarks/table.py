"""A benchmark's result as a Markdown table with bars to clear."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One result: what it is, what was measured, the value that is judged, and its bar."""

    what: str
    measured: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = ""

    @property
    def cleared(self) -> bool:
        """Whether the value is on the right side of its bar."""
        low = self.at_least is None or self.value >= self.at_least
        return low and (self.at_most is None or self.value <= self.at_most)

    @property
    def bar(self) -> str:
        """The bar as shown."""
        limit = f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"
        return f"{limit} {self.unit}".rstrip()


def report(rows: Iterable[Row]) -> int:
    """Prints the table; returns 0 if every bar is cleared, else 1."""
    rows = list(rows)
    print("| what | measured | value | limit | |\n|---|---|---|---|---|")
    for row in rows:
        value = f"{row.value:.3g} {row.unit}".rstrip()
        print(
            f"| {row.what} | {row.measured} | {value} | {row.bar} |"
            f" {'ok' if row.cleared else '**missed**'} |"
        )
    return 0 if all(row.cleared for row in rows) else 1
