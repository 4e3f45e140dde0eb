"""The plug-in on vLLM's own scheduler classes; ``make test-schedulers`` runs these tests.

They need vLLM, and run in a lab's Python: tests/lab/test_lab_schedulers.py starts that.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
# Another version of the file may be tested in its place.
PLUGIN = Path(os.environ.get("PLUGIN") or ROOT / "sidecar/requests/plugin.py")

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


def load(path=PLUGIN):
    """The plug-in as a module of its own, as vLLM loads it from a file."""
    spec = importlib.util.spec_from_file_location("specdec_plugin", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def path():
    """A socket's path, which must be short."""
    with tempfile.TemporaryDirectory(prefix="specdec") as folder:
        yield Path(folder) / "plugin.sock"


@pytest.fixture
def sidecar(path):
    """Listens from the start."""
    from tests.scheduler.known import Sidecar

    made = Sidecar(path)
    yield made
    made.close()


@pytest.fixture
def plugin():
    """The plug-in, and vLLM's classes as they were, afterwards."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    before = {cls: dict(vars(cls)) for cls in (Scheduler, AsyncScheduler)}
    yield load()
    for cls, own in before.items():
        for name in set(vars(cls)) - set(own):
            delattr(cls, name)
        for name, value in own.items():
            if vars(cls)[name] is not value:
                setattr(cls, name, value)


@pytest.fixture
def clock(monkeypatch, plugin):
    """The plug-in's clocks, which only the engine's steps move."""
    now = SimpleNamespace(at=1000.0)
    now.monotonic = lambda: now.at
    now.perf_counter = lambda: now.at
    now.time = lambda: 1.7e9 + now.at
    now.monotonic_ns = lambda: int(1e9 * now.at)
    now.time_ns = lambda: int(1e9 * now.time())
    monkeypatch.setattr(plugin, "time", now)
    return now


@pytest.fixture
def installed(plugin, path):
    """vLLM's Scheduler with the plug-in, which tells ``sidecar`` if that is there."""
    from tests.scheduler.engine import VERSION, Scheduler

    def install(version=VERSION):
        plugin.install(Scheduler, version, str(path))
        return plugin

    return install


@pytest.fixture(params=["sync", "async"])
def engine(request, installed, clock):
    """Makes engines with the plug-in, of both schedulers."""
    from tests.scheduler.engine import Engine, make_scheduler

    installed()

    def make(**options):
        is_async = request.param == "async"
        seconds = options.pop("seconds", 0.02)
        scheduler = make_scheduler(asynchronous=is_async, **options)
        return Engine(scheduler, clock=clock, seconds=seconds, k=options.get("k", 3))

    return make


def pytest_report_header():
    try:
        import vllm
    except ImportError:
        return None
    return f"vLLM {vllm.__version__} from {Path(vllm.__file__).parent}"
