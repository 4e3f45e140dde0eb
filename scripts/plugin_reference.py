"""Updates the generated table of ``docs/plugin.md``: those in which the plug-in counts requests.

Usage: python -m scripts.plugin_reference FILE
"""

import sys
from pathlib import Path

from scripts.metrics_reference import filled
from sidecar.requests.tables import Table


def plugin_reference(page: str) -> str:
    """``page`` with new rows in the table of tables, and otherwise unchanged.

    Raises:
        ValueError: the table is missing.
    """
    rows = ((f"`{table}`", table.declared.about) for table in Table)
    return filled(page, "| table |", rows)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(plugin_reference(path.read_text(encoding="utf-8")), encoding="utf-8")
