"""The plug-in on vLLM's own scheduler classes: runs tests/scheduler in the lab's Python."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from lab.installation import installed

ROOT = Path(__file__).parents[2]
# What pytest consists of, which the lab lacks. The rest of .venv stays out of vLLM's way.
PYTEST = ("pytest", "_pytest", "pluggy", "iniconfig")
OPTIONS = (
    "-c", "/dev/null", "--rootdir", ".", "--confcutdir", "tests/scheduler",
    "-p", "no:cacheprovider", "-W", "ignore", "--import-mode=importlib", "-q", "--tb=short",
)  # fmt: skip


@pytest.fixture
def tools(tmp_path):
    for name in PYTEST:
        spec = importlib.util.find_spec(name)
        (tmp_path / name).symlink_to(Path(spec.origin).parent)
    return tmp_path


def test_on_vllms_own_schedulers_all_is_counted_to_the_token_and_costs_a_bounded_part(tools):
    lab = installed()
    environment = os.environ | {
        "LAB_MODEL": str(lab.model("target")),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tools}",
    }
    command = [lab.venv / "bin/python", "-m", "pytest", *OPTIONS, "tests/scheduler"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
