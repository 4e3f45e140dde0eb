"""What lab/pages.py writes: a page of this vLLM's own, and what it was made from."""

import json
import os
import subprocess

import pytest

from lab.installation import ROOT, installed
from tests.engine.test_names import assert_true

pytestmark = pytest.mark.lab


def test_a_page_has_what_its_truth_says(tmp_path):
    lab = installed()
    command = [lab.venv / "bin/python", "-m", "lab.pages", lab.model("target"), tmp_path]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=True)
    ((name, known),) = json.loads((tmp_path / "TRUTH.json").read_text()).items()
    assert known["engines"]["0"]["spec"]["accepted_tokens"] > 0
    assert_true((tmp_path / name).read_bytes(), known)
