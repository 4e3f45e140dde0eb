"""``python -m benchmarks.plugin``: what the plug-in costs; with ``--lab``, on a real vLLM. 1 if a bar is missed."""

import sys

from benchmarks.plugin.cost import cost_rows
from benchmarks.plugin.lab import lab_rows
from benchmarks.table import report

sys.exit(report(lab_rows() if "--lab" in sys.argv else cost_rows()))
