"""``python -m benchmarks.plugin``: the plug-in's cost; with ``--lab``, on a real vLLM.

Exits 1 if a bar is missed.
"""

import sys

from benchmarks.plugin.cost import cost_rows
from benchmarks.plugin.lab import lab_rows
from benchmarks.table import report

sys.exit(report(lab_rows() if "--lab" in sys.argv else cost_rows()))
