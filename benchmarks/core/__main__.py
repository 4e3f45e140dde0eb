"""``python -m benchmarks.core``: prints the table; exits with 1 if a bar is missed."""

import sys

from benchmarks.core.flood import flood_rows
from benchmarks.core.inprocess import cycle_rows, parse_rows, render_rows
from benchmarks.core.process import cpu_rows, memory_rows
from benchmarks.core.received import received_rows
from benchmarks.table import report

ROWS = (parse_rows, cycle_rows, render_rows, cpu_rows, received_rows, flood_rows, memory_rows)

sys.exit(report(row for rows in ROWS for row in rows()))
