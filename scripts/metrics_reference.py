"""Updates the two generated tables of ``docs/metrics.md``.

Usage: metrics_reference.py FILE
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
    return _filled(_filled(page, "| metric |", metrics), "| limitation |", limitations)


def _filled(page: str, head: str, rows: Iterable[Iterable[str]]) -> str:
    """``page`` with ``rows`` in the table whose first line begins with ``head``."""
    # After the header and its rule.
    start = page.index("\n", page.index("\n", page.index(f"\n{head}") + 1) + 1) + 1
    rest = re.sub(r"\A(\|.*\n)*", "", page[start:])
    return page[:start] + "".join(f"| {' | '.join(row)} |\n" for row in rows) + rest


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(metrics_reference(path.read_text()))
