"""Where the plug-in starts: which of vLLM's processes it observes, and the server's id.

In real processes, since an id and a gauge are of one.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.requests import plugin

ID = re.compile(r"[0-9a-f]{16}")
# What vLLM is to the plug-in, with a scheduler that has what it wraps.
SCHEDULER = """
class Scheduler:
    def make_spec_decoding_stats(
        self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens,
        request_id,
    ): pass
    def update_from_output(self, scheduler_output, model_runner_output): pass
    def _free_request(self, request, delay_free_blocks=False): pass
"""
# Prints what a process has, after it has loaded the plug-in as often as vLLM does.
SHOW = """
import json, os, sys
import specdec_plugin

def show(where="main", registers=2):
    for _ in range(registers):
        specdec_plugin.register()
    scheduler = sys.modules.get("vllm.v1.core.sched.scheduler")
    wrapped = scheduler is not None and "_specdec" in vars(scheduler.Scheduler)
    client = sys.modules.get("prometheus_client")
    page = "" if client is None else client.generate_latest(client.REGISTRY).decode()
    gauges = [line for line in page.splitlines() if line.startswith("specdec_server_info{")]
    told = {
        "id": specdec_plugin.server_id(), "variable": os.environ.get("SPECDEC_SERVER_ID"),
        "gauges": gauges, "wrapped": wrapped, "imported": scheduler is not None,
        "prometheus": client is not None,
    }
    print(json.dumps([where, told]), flush=True)

def child(method, name, modules=(), where=None):
    import multiprocessing
    context = multiprocessing.get_context(method)
    process = context.Process(target=enter, args=(modules, where or name), name=name)
    process.start()
    process.join()
    assert process.exitcode == 0

def enter(modules, where):
    import importlib, types
    for module in modules:
        if module in ("prometheus_client",):
            importlib.import_module(module)
        else:
            sys.modules[module] = types.ModuleType(module)
    show(where)
"""


@pytest.fixture
def started(folder):
    """Runs a script in a process like vLLM's first; returns what each process has shown."""
    source = folder / "vllm" / "v1" / "core" / "sched"
    source.mkdir(parents=True)
    for package in (source, *source.parents[:3]):
        (package / "__init__.py").touch()
    (folder / "vllm" / "__init__.py").write_text('__version__ = "0.32.0"\n')
    (source / "scheduler.py").write_text(SCHEDULER)
    (folder / "specdec_plugin.py").write_bytes(Path(plugin.__file__).read_bytes())
    (folder / "tools.py").write_text(SHOW)
    script = folder / "script.py"

    def run(text, **environment):
        body = "\n".join(f"    {line}" for line in text.splitlines())
        script.write_text(
            f"import os, sys\nfrom tools import *\nif __name__ == '__main__':\n{body}"
        )
        done = subprocess.run(
            [sys.executable, script],
            env={**os.environ, "PYTHONPATH": str(folder), **environment},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        shown = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(dict(shown)) == len(shown)
        return dict(shown)

    return run


@pytest.mark.parametrize("inherited", [{}, {"SPECDEC_SERVER_ID": "0123456789abcdef"}])
def test_a_first_process_always_makes_a_new_id(started, inherited):
    """Whatever it inherited, since one program may start several servers."""
    ids = [started("show()", **inherited)["main"] for _ in range(2)]

    assert all(ID.fullmatch(one["id"]) and one["variable"] == one["id"] for one in ids)
    assert len({"0123456789abcdef", *(one["id"] for one in ids)}) == 3


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_all_processes_of_a_server_have_its_id(started, method):
    """They are those that multiprocessing starts from the first one, and from these."""
    shown = started(
        f"show()\nchild('{method}', 'EngineCore_0')\nchild('{method}', 'ApiServer_0')\n"
        f"child('{method}', 'VllmWorker-0', ['vllm.v1.worker.worker_base'])"
    )

    assert shown.keys() == {"main", "EngineCore_0", "ApiServer_0", "VllmWorker-0"}
    assert len({one["id"] for one in shown.values()}) == 1
    assert ID.fullmatch(shown["main"]["id"])


def test_a_server_that_a_first_process_starts_as_a_program_has_another_id(started):
    """It is no part of the first one, though it inherits the variable."""
    shown = started(
        "import subprocess\nif len(sys.argv) == 1:\n    show()\n"
        "    subprocess.run([sys.executable, __file__, '2'], check=True)\n"
        "else:\n    show('other')"
    )

    assert shown["main"]["id"] != shown["other"]["id"]
    assert ID.fullmatch(shown["other"]["id"])


def test_a_child_of_a_process_that_has_no_plugin_makes_no_id(started):
    """Nobody handed one down, so the server has none, and its page shows none."""
    shown = started("child('spawn', 'ApiServer_0', ['prometheus_client'])")

    assert shown["ApiServer_0"]["id"] is None
    assert shown["ApiServer_0"]["gauges"] == []
    assert shown["ApiServer_0"]["wrapped"]


@pytest.mark.parametrize("inherited", ["", "x" * 65])
def test_an_id_that_no_hello_could_have_is_none(started, inherited):
    """The sidecar would refuse the hello, and with it the whole plug-in."""
    shown = started("child('spawn', 'EngineCore_0')", SPECDEC_SERVER_ID=inherited)

    assert shown["EngineCore_0"]["id"] is None


def test_one_switch_turns_the_id_and_the_gauge_off(started):
    """In all processes; what is observed is not changed by it."""
    shown = started(
        "import prometheus_client\nshow()\nchild('spawn', 'ApiServer_0', ['prometheus_client'])\n"
        "child('fork', 'EngineCore_0')",
        SPECDEC_SERVER_ID="off",
    )

    assert len(shown) == 3
    for one in shown.values():
        assert (one["id"], one["variable"], one["gauges"]) == (None, "off", [])
        assert one["wrapped"]


def test_the_gauge_with_the_id_is_on_the_page_of_the_processes_that_serve_it(started):
    """Once, however often vLLM loads its plug-ins, and in no engine core or worker."""
    shown = started(
        "import prometheus_client\nshow()\n"
        "for method in ('spawn', 'fork'):\n"
        "    child(method, 'ApiServer_0', ['prometheus_client'], where='api ' + method)\n"
        "for name in ('EngineCore_0', 'VllmWorker-0', 'Process-9'):\n"
        "    child('spawn', name, ['prometheus_client'])"
    )
    server = shown["main"]["id"]

    assert ID.fullmatch(server)
    assert "vllm" not in plugin.GAUGE, "vLLM drops those of such a name"
    for name in ("main", "api spawn", "api fork"):
        assert shown[name]["gauges"] == [f'specdec_server_info{{id="{server}"}} 1.0']
    for name in ("EngineCore_0", "VllmWorker-0", "Process-9"):
        assert (shown[name]["id"], shown[name]["gauges"]) == (server, [])


def test_with_several_api_servers_the_page_has_one_sample(started, folder):
    """Each of them writes it, and the page is made from what all have written."""
    (folder / "metrics").mkdir()
    shown = started(
        "import prometheus_client\nfrom prometheus_client.multiprocess import "
        "MultiProcessCollector\nshow()\n"
        "for number in (0, 1):\n"
        "    child('spawn', f'ApiServer_{number}', ['prometheus_client'])\n"
        "registry = prometheus_client.CollectorRegistry()\nMultiProcessCollector(registry)\n"
        "page = prometheus_client.generate_latest(registry).decode()\n"
        "lines = [one for one in page.splitlines() if one.startswith('specdec')]\n"
        "print(json.dumps(['page', lines]))",
        PROMETHEUS_MULTIPROC_DIR=str(folder / "metrics"),
    )

    assert shown["page"] == [f'specdec_server_info{{id="{shown["main"]["id"]}"}} 1.0']


def test_where_vllm_has_not_imported_prometheus_client_nor_does_the_plugin(started):
    """The id is there all the same."""
    shown = started("show()")["main"]

    assert (shown["prometheus"], shown["gauges"]) == (False, [])
    assert ID.fullmatch(shown["id"])


RAY = """
import types
context = types.SimpleNamespace(get_actor_id=lambda: {actor!r})
ray = types.ModuleType("ray")
ray.is_initialized, ray.get_runtime_context = (lambda: {is_initialized}), (lambda: context)
sys.modules["ray"] = ray
import prometheus_client
"""


@pytest.mark.parametrize("told", [{}, {"SPECDEC_SERVER_ID": "0123456789abcdef"}])
def test_a_ray_actor_makes_no_id_and_no_gauge(started, told):
    """It has no parent in multiprocessing, and is part of a server that another process began."""
    shown = started(RAY.format(actor="a1", is_initialized=True) + "show()", **told)["main"]

    assert (shown["id"], shown["variable"]) == (told.get("SPECDEC_SERVER_ID"),) * 2
    assert shown["gauges"] == []
    assert shown["wrapped"], "it may be an engine core"


@pytest.mark.parametrize(("actor", "is_initialized"), [(None, True), ("a1", False)])
def test_a_first_process_that_uses_ray_is_still_the_first(started, actor, is_initialized):
    """As the driver is, whose workers are actors."""
    script = RAY.format(actor=actor, is_initialized=is_initialized) + "show()"
    shown = started(script, SPECDEC_SERVER_ID="0123456789abcdef")["main"]

    assert ID.fullmatch(shown["id"])
    assert shown["id"] != "0123456789abcdef"
    assert len(shown["gauges"]) == 1


def test_a_forked_engine_core_has_the_scheduler_that_the_first_process_has_wrapped(started):
    """The first one has imported the worker's base, and the fork loads no plug-ins again."""
    shown = started(
        "import types\n"
        "sys.modules['vllm.v1.worker.worker_base'] = types.ModuleType('worker_base')\n"
        "show()\nif os.fork() == 0:\n    show('core', registers=0)\n    os._exit(0)\nos.wait()"
    )

    assert shown["main"]["wrapped"]
    assert shown["core"]["wrapped"]
    assert shown["main"]["id"] == shown["core"]["id"]


def test_a_worker_imports_no_scheduler_and_an_engine_core_does(started):
    """An import of vLLM's scheduler would slow the start of every worker that is spawned."""
    worker, core = "vllm.v1.worker.worker_base", "vllm.v1.engine.core"
    shown = started(
        "os.environ['VLLM_WORKER_MULTIPROC_METHOD'] = 'spawn'\n"
        f"child('spawn', 'VllmWorker-0', ['{worker}'])\n"
        f"child('spawn', 'EngineCore_0', ['{worker}', '{core}'])\n"
        "child('spawn', 'EngineCore_1')"
    )

    assert [one["imported"] for one in shown.values()] == [False, True, True]
    assert [one["wrapped"] for one in shown.values()] == [False, True, True]


def test_a_process_that_inspects_a_model_class_is_left_alone(started):
    """vLLM starts it as a program, so it would make an id of its own."""
    shown = started(
        "import types\nsys.modules['__main__'].__spec__ = types.SimpleNamespace("
        "name='vllm.model_executor.models.registry')\n"
        "specdec_plugin.register()\n"
        "found = [os.environ.get('SPECDEC_SERVER_ID'), 'vllm' in sys.modules]\n"
        "print(json.dumps(['main', found]))"
    )

    assert shown["main"] == [None, False]


@pytest.mark.parametrize(
    "broken",
    [
        "sys.modules['vllm'] = None",
        "import types; sys.modules['vllm'] = types.ModuleType('vllm')",
        "sys.modules['vllm.v1.core.sched.scheduler'] = None",
        (
            "import types; sys.modules['prometheus_client'] = types.ModuleType('x');"
            " sys.modules['vllm'] = None"
        ),
        "import types; sys.modules['ray'] = types.ModuleType('ray')",
    ],
)
def test_register_never_raises_and_says_why_it_observes_nothing(started, broken):
    """An error would keep vLLM from starting."""
    shown = started(
        f"import logging\nlines = []\n{broken}\n"
        "class Keeping(logging.Handler):\n    def emit(self, record):\n"
        "        lines.append(record.getMessage())\n"
        "logging.getLogger().addHandler(Keeping())\nlogging.getLogger().setLevel('INFO')\n"
        "specdec_plugin.register()\nprint(json.dumps(['log', lines]))"
    )

    (line,) = shown["log"]
    assert re.search(r"specdec .*: cannot observe this vLLM: \w+\(", line)


def test_a_log_that_raises_does_not_keep_vllm_from_starting(started):
    """As a handler of vLLM's may."""
    shown = started(
        "import logging\nsys.modules['vllm'] = None\nlogging.raiseExceptions = True\n"
        "class Raising(logging.Handler):\n    def emit(self, record): raise OSError\n"
        "logging.getLogger().addHandler(Raising())\n"
        "specdec_plugin.register()\nprint(json.dumps(['main', 'goes on']))"
    )

    assert shown["main"] == "goes on"


@pytest.mark.parametrize("server", [None, "a1b2"])
def test_the_hello_has_the_id(server, plain, socket_path, installed):
    """By it the sidecar knows whose page it belongs to."""
    installed(server=server)()

    plain.until(lambda: plain.only.hello.get("server", "?"), server)
