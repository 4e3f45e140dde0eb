"""The scripts that the documentation names, in a clone in which nothing has been set up yet."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
ELSEWHERE = {"setup", "kubectl-helm", "plugin-signatures"}  # the latter two download what they are about
NEEDING = [path for path in sorted(SCRIPTS.iterdir()) if path.name not in ELSEWHERE and ".venv/" in path.read_text()]

# Stands in for the one that installs: the environment is there only once it has been called for development.
SETUP = """#!/bin/sh
[ "$1" = dev ] || exit 9
mkdir -p .venv/bin
printf '#!/bin/sh\\necho python "$@"\\n' > .venv/bin/python
cp .venv/bin/python .venv/bin/uv
chmod +x .venv/bin/*
"""


def test_the_scripts_are_found():
    assert {"dashboards", "manifests", "docs"} <= {path.name for path in NEEDING}


@pytest.mark.parametrize("script", NEEDING, ids=lambda path: path.name)
def test_script_sets_up_what_it_needs(script, tmp_path):
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    (tmp_path / "scripts" / "setup").write_text(SETUP)
    (tmp_path / "docs").mkdir()
    command = [tmp_path / "scripts" / script.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
