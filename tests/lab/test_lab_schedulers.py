"""The plug-in on vLLM's own scheduler classes of several releases, without a server.

The tests are those of tests/scheduler, which need vLLM: they run in the lab's Python.
"""

import os
import subprocess
from pathlib import Path

import pytest

from lab.classes import RELEASES, environment
from lab.installation import DEFAULT_VERSION, ROOT, installed

pytestmark = [pytest.mark.lab, pytest.mark.limit(3600)]
SCHEDULER = Path(__file__).parents[1] / "scheduler"
# ``make test-schedulers`` asks for all; they take minutes each.
OTHERS = RELEASES if os.environ.get("RELEASES") == "all" else ()


@pytest.mark.parametrize("version", [*OTHERS, DEFAULT_VERSION])
def test_the_plugin_holds_on_the_schedulers_of(version):
    lab = installed()
    # Of pytest's options, those of this repository are for its own environment.
    options = ["-c", "/dev/null", "--rootdir", ROOT, "--confcutdir", SCHEDULER]
    options += ["-p", "no:cacheprovider", "-q", "--import-mode=importlib", "-W", "ignore", "-rs"]
    command = [lab.venv / "bin/python", "-m", "pytest", *options, SCHEDULER]
    done = subprocess.run(
        command,
        env=environment(lab, version),
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    print(done.stdout)  # noqa: T201 - with -s, what was skipped
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
