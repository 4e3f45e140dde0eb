"""``python -m benchmarks.plugin``: the plug-in's cost, on vLLM's own Scheduler of the lab.

With ``--lab``, on a server of the lab. Else the arguments are those of ``scheduler.py``: with
``--beside FILE``, also beside another version of the plug-in, such as what
``git show v0.1.0:sidecar/requests/plugin.py`` prints. Exits 1 if a bar is missed, and 2 without a
lab.
"""

import subprocess
import sys

from benchmarks.plugin.lab import lab_rows
from benchmarks.table import report
from lab.classes import environment
from lab.installation import LabError, installed


def main(arguments: list[str]) -> int:
    """Runs the benchmark that is asked for; returns its exit code."""
    if arguments == ["--lab"]:
        return report(lab_rows())

    try:
        lab = installed()
        variables = environment(lab, lab.version)
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    python = str(lab.venv / "bin/python")
    command = [python, "-m", "benchmarks.plugin.scheduler", *arguments]
    return subprocess.run(command, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
