"""In which of vLLM's processes the plug-in is, in vLLM's own order of starting them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduler.conftest import PLUGIN, ROOT

# What process 0 of `vllm serve` does before any other process is there: it builds its parser, which
# loads general plug-ins. The engine core is then forked or spawned, and loads them "again".
START = """
import os, sys
import tests.scheduler.engine
os.environ["VLLM_PLUGINS"] = "specdec"
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.plugins import load_general_plugins
import vllm.v1.worker.worker_base
sys.modules.pop("vllm.v1.engine.core", None)
load_general_plugins()
import vllm.v1.engine.core
"""
CORE = """
def core():
    from vllm.plugins import load_general_plugins
    import vllm.v1.engine.core
    load_general_plugins()
    from tests.scheduler.engine import Engine, make_scheduler
    engine = Engine(make_scheduler())
    engine.add("r", max_tokens=10)
    engine.run()
"""


@pytest.fixture
def run(tmp_path, path):
    """Runs a program in which vLLM finds the plug-in, as ``specdec-sidecar plugin`` writes it."""
    info = tmp_path / "specdec_plugin-0.dist-info"
    info.mkdir()
    (tmp_path / "specdec_plugin.py").write_text(Path(PLUGIN).read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specdec-plugin\nVersion: 0\n")
    entry = "[vllm.general_plugins]\nspecdec = specdec_plugin:register\n"
    (info / "entry_points.txt").write_text(entry)

    def start(program, **environment):
        variables = {
            **os.environ, "SPECDEC_PLUGIN__SOCKET": str(path), **environment,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]),
        }  # fmt: skip
        file = tmp_path / "program.py"
        file.write_text(program)
        done = subprocess.run(
            [sys.executable, file], env=variables, check=False, capture_output=True, text=True,
            cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return start


def test_a_forked_engine_core_has_it(run, sidecar):
    """It inherits what process 0 has loaded, and loads nothing itself."""
    program = START + CORE + "child = os.fork()\nif not child:\n    core()\n    os._exit(0)\n"
    program += "assert os.waitpid(child, 0)[1] == 0\n"
    run(program, VLLM_WORKER_MULTIPROC_METHOD="fork")
    sidecar.until(lambda: sidecar.engines and len(sidecar.engine().finished), 1)
    assert sidecar.connections == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_engine_core_in_process_0_has_it(method, run, sidecar):
    run(
        START + CORE + "core()\n",
        VLLM_WORKER_MULTIPROC_METHOD=method,
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
    )
    sidecar.until(lambda: sidecar.engines and len(sidecar.engine().finished), 1)


def test_a_spawned_engine_core_has_it_and_process_0_imports_no_scheduler(run, sidecar):
    """An import that ``vllm --help`` would wait for."""
    main = (
        "if __name__ == '__main__':\n    import multiprocessing\n"
        + "\n".join("    " + line for line in START.strip().splitlines()[:-1])
        + "\n    print('vllm.v1.core.sched.scheduler' in sys.modules)\n"
        "    process = multiprocessing.get_context('spawn').Process(target=core)\n"
        "    process.start()\n    process.join()\n    assert not process.exitcode\n"
    )
    main = main.replace("    import tests.scheduler.engine\n", "")
    core = CORE.replace(
        "def core():\n",
        "def core():\n    import tests.scheduler.engine, os\n"
        "    os.environ['VLLM_PLUGINS'] = 'specdec'\n",
    )
    told = run(core + main, VLLM_WORKER_MULTIPROC_METHOD="spawn")
    sidecar.until(lambda: sidecar.engines and len(sidecar.engine().finished), 1)
    assert told.split()[-1] == "False"
