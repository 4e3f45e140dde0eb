"""Updates the two generated tables of ``docs/metrics.md``.

Usage: metrics_reference.py FILE
       metrics_reference.py --released FILE   writes what a release promises of the metrics
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from sidecar.export.metrics import METRICS
from sidecar.wording.notes import LIMITATIONS


def metrics_reference(page: str) -> str:
    """``page`` with new rows in the tables of metrics and of limitations, and otherwise unchanged.

    Raises:
        ValueError: a table is missing.
    """
    metrics = (
        (f"`{one.name}`", one.kind, ", ".join(one.labels) or "none", one.help) for one in METRICS
    )
    limitations = ((f"`{name}`", text) for name, text in LIMITATIONS.items())
    return filled(filled(page, "| metric |", metrics), "| limitation |", limitations)


def filled(page: str, head: str, rows: Iterable[Iterable[str]]) -> str:
    """``page`` with ``rows`` in the table whose first line begins with ``head``.

    Raises:
        ValueError: there is none.
    """
    # After the header and its rule.
    start = page.index("\n", page.index("\n", page.index(f"\n{head}") + 1) + 1) + 1
    rest = re.sub(r"\A(\|.*\n)*", "", page[start:])
    return page[:start] + "".join(f"| {' | '.join(row)} |\n" for row in rows) + rest


def contract() -> list[str]:
    """The name, type and labels of every metric, a line each, by name."""
    return sorted(f"{one.name} {one.kind} {','.join(one.labels) or 'none'}" for one in METRICS)


def main(arguments: list[str]) -> None:
    """Writes what the arguments name."""
    path = Path(arguments[-1])
    if arguments[0] == "--released":
        head = "# Name, type and labels of every metric of the last release."
        path.write_text("\n".join([head, *contract(), ""]))
    else:
        path.write_text(metrics_reference(path.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
