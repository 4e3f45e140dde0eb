"""``python -m benchmarks.core``: prints the table; exits with 1 if a bar is missed."""

import sys

from benchmarks.core.inprocess import cycle_rows, parse_rows, render_rows
from benchmarks.core.process import cpu_rows, memory_rows
from benchmarks.core.received import received_rows
from benchmarks.table import report

sys.exit(report([*parse_rows(), *cycle_rows(), *render_rows(), *cpu_rows(), *received_rows(), *memory_rows()]))
