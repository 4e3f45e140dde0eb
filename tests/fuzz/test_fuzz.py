"""The corpus, and a fixed number of new inputs for each target: the same ones in every run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import CORPUS, TARGETS

ROOT = Path(__file__).parents[2]
RUNS = {"exposition": 1500, "packets": 5000, "settings": 100}


def test_every_target_has_a_corpus_and_a_budget():
    assert set(TARGETS) == set(RUNS) == {path.name for path in CORPUS.iterdir()}
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) < 300_000


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_no_input_of_the_corpus_breaks_a_promise(path):
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_no_new_input_breaks_a_promise(name, tmp_path):
    pytest.importorskip("atheris", reason="atheris has no wheel for this platform")
    # the last for new inputs
    command = [sys.executable, "-m", "tests.fuzz", name, f"-runs={RUNS[name]}", "-seed=1", tmp_path]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert f"stat::number_of_executed_units: {RUNS[name]}" in run.stderr
