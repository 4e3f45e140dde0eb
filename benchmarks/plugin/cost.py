"""What the plug-in adds to a step, a finished request and a worker's start.

Its cost is given as a multiple of what the bare methods of the same scheduler take in the same run,
per request and step or per step: the same code takes twice as long on one machine, or in one hour,
as in another.
"""

import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from math import inf
from pathlib import Path
from random import Random
from statistics import mean, median, quantiles
from types import SimpleNamespace
from typing import Any

from benchmarks.plugin.engine import ById, Nameless, running
from benchmarks.table import Row
from sidecar.requests import plugin

STEP = 0.05  # seconds between two steps, by the plug-in's clock: a report every 20 steps
REQUESTS = 256  # that finish
OUTPUT = 1000  # tokens of a long output
OFTEN = 40  # different tokens in it
ROUNDS = 25
BARE = "x bare"

RECEIVER = """
import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1]); listener.listen(64); print(flush=True)
import selectors
selector = selectors.DefaultSelector(); selector.register(listener, 1)
while True:
    for key, _ in selector.select():
        if key.fileobj is listener:
            selector.register(listener.accept()[0], 1)
        elif not key.fileobj.recv(65536):
            selector.unregister(key.fileobj)
"""
IMPORT = """
import functools, inspect, json, logging, os, socket, sys, time
import collections.abc, contextlib, itertools, math, typing
sys.path.insert(0, sys.argv[1])
sys.modules["vllm.v1.worker.worker_base"] = sys
start = time.perf_counter()
import plugin
plugin.register()
print(1000 * (time.perf_counter() - start))
"""


def cost_rows(beside: Path | None = None) -> Iterator[Row]:
    """The rows of the table; the P99 rows need a quiet machine.

    With ``beside``, the file of another version of the plug-in, a row for each load says what a
    request and step costs by this one, as a multiple of what it costs by that one.
    """
    with _receiving() as path:
        for base, since in ((ById, "by request, from 0.14"), (Nameless, "before 0.14")):
            for requests in (16, 64, 256, 1024):
                yield from _steps(base, since, requests, path)
        yield _finished(path)
        yield _cut_off(path)

        if beside is not None:
            yield from _beside(_loaded(beside), path)
    yield _import()


@contextmanager
def _receiving() -> Iterator[str]:
    """The socket of a receiver in another process, which throws all packets away."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        receiver = subprocess.Popen([sys.executable, "-c", RECEIVER, path], stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        try:
            yield path
        finally:
            receiver.kill()
            receiver.wait()


def _loaded(path: Path) -> Any:
    spec = spec_from_file_location("other_plugin", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _wrapped(base: type[Any], path: str, version: Any = plugin) -> Any:
    cls = type(
        "Scheduler",
        (base,),
        {name: vars(base).get(name, getattr(base, name)) for name in version.KNOWN},
    )
    version.install(cls, "0", path)
    return cls()


@contextmanager
def _stepping_clock(*versions: Any) -> Iterator[Any]:
    """The plug-in's clock, which only ``_measure`` moves."""
    clock = SimpleNamespace(at=0.0, time=time.time, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.at
    for version in versions:
        version.time = clock
    try:
        yield clock
    finally:
        for version in versions:
            version.time = time


def _steps(base: type[Any], since: str, requests: int, path: str) -> Iterator[Row]:
    bare = base()
    wrapped = _wrapped(base, path)
    bare_steps = running(bare, requests)
    wrapped_steps = running(wrapped, requests)

    mine, theirs = [], []
    with _stepping_clock(plugin) as clock:
        for _ in range(ROUNDS):
            theirs.append(_measure(bare, bare_steps, clock))
            mine.append(_measure(wrapped, wrapped_steps, clock))
    wrapped._specdec.socket.close()  # noqa: SLF001 - its own attribute

    # The best round, because whatever else the machine does is not the plug-in's cost.
    bare_step = min(map(median, theirs))
    step = min(map(median, mine)) - bare_step
    worst = min(quantiles(steps, n=100)[98] for steps in mine) - bare_step
    average = min(map(mean, mine)) - min(map(mean, theirs))

    name = f"{since}, {requests} requests"
    each = f"a request and step: {step / requests:.2f} µs"
    yield Row(name, each, step / bare_step, at_most=7, unit=BARE)
    yield _share(name, f"a step without a report: {step:.0f} µs", step, at_most=1)
    yield _share(name, f"a step at P99, its reports included: {worst:.0f} µs", worst, at_most=2)
    yield _share(name, f"a step on average, reports included: {average:.0f} µs", average, at_most=1)


def _share(name: str, what: str, microseconds: float, at_most: float) -> Row:
    """Of the step that so many requests take on a GPU."""
    of = f"% of {1000 * STEP:.0f} ms"
    return Row(name, what, 100 * microseconds / 1e6 / STEP, at_most=at_most, unit=of)


def _beside(other: Any, path: str) -> Iterator[Row]:
    """This version and another one, in turns."""
    for base, since in ((ById, "by request, from 0.14"), (Nameless, "before 0.14")):
        for requests in (16, 64, 256, 1024):
            bare, own, others = _in_turns(base, requests, other, path)
            what = f"a request and step: {own - bare:.2f} µs, the other version {others - bare:.2f}"
            ratio = (own - bare) / (others - bare)
            yield Row(f"{since}, {requests} requests", what, ratio, at_most=1.4, unit="x")

    own, others = _finished_in_turns(other, path)
    what = f"its record and totals: {own:.1f} µs, the other version {others:.1f}"
    yield Row("a finished request", what, own / others, at_most=1, unit="x")


def _in_turns(base: type[Any], requests: int, other: Any, path: str) -> tuple[float, float, float]:
    """Microseconds a request and step: bare, by this version, and by the other one."""
    schedulers = [base(), _wrapped(base, path), _wrapped(base, path, other)]
    steps = [running(scheduler, requests) for scheduler in schedulers]

    best = [inf] * len(schedulers)
    with _stepping_clock(plugin, other):  # it stands still, so nothing is reported
        for _ in range(4 * ROUNDS):
            for place, scheduler in enumerate(schedulers):
                start = time.thread_time()
                for arguments in steps[place]:
                    scheduler.update_from_output(*arguments)
                taken = 1e6 * (time.thread_time() - start)
                best[place] = min(best[place], taken / len(steps[place]) / requests)
    for scheduler in schedulers[1:]:
        scheduler._specdec.socket.close()  # noqa: SLF001 - its own attribute
    bare, own, others = best
    return bare, own, others


def _measure(scheduler: Any, steps: list[tuple[Any, Any]], clock: Any) -> list[float]:
    """The durations of 400 steps, in microseconds."""
    taken = []
    for number in range(400):
        clock.at += STEP
        arguments = steps[number % len(steps)]
        start = time.perf_counter()
        scheduler.update_from_output(*arguments)
        taken.append(1e6 * (time.perf_counter() - start))
    return taken


def _finished(path: str) -> Row:
    bare_steps = []
    finished = []
    for _ in range(ROUNDS):
        bare = ById()
        steps = running(bare, REQUESTS)
        start = time.perf_counter()
        for arguments in steps:
            bare.update_from_output(*arguments)
        bare_steps.append(1e6 * (time.perf_counter() - start) / len(steps) / REQUESTS)

        wrapped = _wrapped(ById, path)
        running(wrapped, REQUESTS)
        finished.append(_frees(wrapped) - _frees(bare))
        wrapped._specdec.socket.close()  # noqa: SLF001 - its own attribute

    what = f"its record and totals: {min(finished):.0f} µs"
    return Row("a finished request", what, min(finished) / min(bare_steps), at_most=200, unit=BARE)


def _cut_off(path: str) -> Row:
    """A request whose last tokens are looked at for a loop, beside one that stopped by itself."""
    random = Random(4)
    # The last token occurs now and then within the longest period, as it does in text.
    output = [random.randrange(OFTEN) for _ in range(OUTPUT)]
    stopped: list[float] = []
    cut_off: list[float] = []
    for _ in range(ROUNDS):
        for ends, taken in (("STOPPED", stopped), ("LENGTH_CAPPED", cut_off)):
            wrapped = _wrapped(ById, path)
            running(wrapped, REQUESTS, output)
            for request in wrapped.running:
                request.status.name = f"FINISHED_{ends}"
            taken.append(_frees(wrapped))
            wrapped._specdec.socket.close()  # noqa: SLF001 - its own attribute

    what = f"{OUTPUT:,} output tokens, cut off: {min(cut_off):.1f} µs, stopped: {min(stopped):.1f}"
    ratio = min(cut_off) / min(stopped)
    return Row("a finished request", what, ratio, at_most=3, unit="x stopped")


def _finished_in_turns(other: Any, path: str) -> tuple[float, float]:
    """Microseconds a finished request: by this version, and by the other one."""
    own: list[float] = []
    others: list[float] = []
    for _ in range(ROUNDS):
        for version, taken in ((plugin, own), (other, others)):
            wrapped = _wrapped(ById, path, version)
            running(wrapped, REQUESTS)
            taken.append(_frees(wrapped))
            wrapped._specdec.socket.close()  # noqa: SLF001 - its own attribute
    return min(own), min(others)


def _frees(scheduler: Any) -> float:
    """Microseconds that the end of a request takes, by the thread's own time."""
    start = time.thread_time()
    for request in list(scheduler.requests.values()):
        scheduler._free_request(request)  # noqa: SLF001 - vLLM's name
    return 1e6 * (time.thread_time() - start) / REQUESTS


def _import() -> Row:
    """As in a worker: bytecode exists.

    vLLM has already imported what the plug-in needs of the standard library.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy(plugin.__file__, folder))
        py_compile.compile(str(copy), doraise=True)
        command = [sys.executable, "-c", IMPORT, folder]
        runs = [
            float(subprocess.run(command, capture_output=True, check=True).stdout)
            for _ in range(ROUNDS)
        ]
    return Row(
        "a worker's start", f"the best of {ROUNDS} processes", min(runs), at_most=5, unit="ms"
    )
