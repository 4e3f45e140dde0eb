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
from pathlib import Path
from statistics import mean, median, quantiles
from types import SimpleNamespace
from typing import Any

from benchmarks.plugin.engine import ById, Nameless, running
from benchmarks.table import Row
from sidecar.requests import plugin

STEP = 0.02  # seconds between two steps, by the plug-in's clock: one report every 50 steps
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


def cost_rows() -> Iterator[Row]:
    """The rows of the table; the P99 rows need a quiet machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s"
        receiver = subprocess.Popen([sys.executable, "-c", RECEIVER, path], stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        try:
            for base, since in ((ById, "by request, from 0.14"), (Nameless, "before 0.14")):
                for requests in (16, 64, 256):
                    yield from _steps(base, since, requests, path)
            yield _finished(path)
        finally:
            receiver.kill()
            receiver.wait()
    yield _import()


def _wrapped(base: type[Any], path: str) -> Any:
    cls = type(
        "Scheduler",
        (base,),
        {name: vars(base).get(name, getattr(base, name)) for name in plugin.KNOWN},
    )
    plugin.install(cls, "0", path)
    return cls()


def _steps(base: type[Any], since: str, requests: int, path: str) -> Iterator[Row]:
    clock = SimpleNamespace(at=0.0, time=time.time, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.at
    plugin.time = clock  # type: ignore[assignment, attr-defined]
    bare, wrapped = base(), _wrapped(base, path)
    bare_steps, wrapped_steps = running(bare, requests), running(wrapped, requests)
    mine, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(_measure(bare, bare_steps, clock))
        mine.append(_measure(wrapped, wrapped_steps, clock))
    plugin.time = time  # type: ignore[attr-defined]
    # The best round, because whatever else the machine does is not the plug-in's cost.
    bare_step = min(map(median, theirs))
    each = min(map(median, mine)) - bare_step
    what = f"a request and step: {each / requests:.2f} µs"
    yield Row(f"{since}, {requests} requests", what, each / bare_step, at_most=7, unit=BARE)
    if requests == 256:
        worst = min(quantiles(steps, n=100)[98] for steps in mine) - bare_step
        what = f"a step at P99, its reports included: {worst:.0f} µs"
        yield Row(f"{since}, {requests} requests", what, worst / bare_step, at_most=10, unit=BARE)
    share = (min(map(mean, mine)) - min(map(mean, theirs))) / 1e6 / STEP
    yield Row(
        f"{since}, {requests} requests",
        "of a step of 20 ms, reports included",
        100 * share,
        at_most=1,
        unit="%",
    )
    wrapped._specdec.socket.close()  # noqa: SLF001 - its own attribute


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
    best, bare_steps = [], []
    for _ in range(ROUNDS):
        bare, wrapped = ById(), _wrapped(ById, path)
        for scheduler in (bare, wrapped):
            steps = running(scheduler, 256)
        start = time.perf_counter()
        for arguments in steps:
            bare.update_from_output(*arguments)
        bare_steps.append(1e6 * (time.perf_counter() - start) / len(steps) / 256)
        both = []
        for scheduler in (bare, wrapped):
            start = time.perf_counter()
            for request in list(scheduler.requests.values()):
                scheduler._free_request(request)  # noqa: SLF001 - vLLM's name
            both.append(time.perf_counter() - start)
        best.append(1e6 * (both[1] - both[0]) / 256)
        wrapped._specdec.socket.close()  # noqa: SLF001 - its own attribute
    what = f"its record and totals: {min(best):.0f} µs"
    return Row("a finished request", what, min(best) / min(bare_steps), at_most=200, unit=BARE)


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
