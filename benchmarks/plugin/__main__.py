"""``python -m benchmarks.plugin``: the plug-in's cost.

With ``--lab``, on a real vLLM; with ``--beside FILE``, also beside another version of the plug-in,
such as what ``git show v0.1.0:sidecar/requests/plugin.py`` prints. Exits 1 if a bar is missed.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.plugin.cost import cost_rows
from benchmarks.plugin.lab import lab_rows
from benchmarks.table import report

parser = argparse.ArgumentParser(prog="python -m benchmarks.plugin")
parser.add_argument("--lab", action="store_true", help="measure on a real vLLM")
parser.add_argument("--beside", type=Path, help="another version of plugin.py")
arguments = parser.parse_args()

sys.exit(report(lab_rows() if arguments.lab else cost_rows(arguments.beside)))
