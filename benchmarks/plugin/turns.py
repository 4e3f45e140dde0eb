"""Measures for ``benchmarks.plugin.schedulers``, in the Python of a lab; prints JSON."""

import gc
import json
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from benchmarks.plugin.receiver import receiving
from tests.scheduler.conftest import load
from tests.scheduler.connector import Connector
from tests.scheduler.engine import Engine, make_scheduler, sampling

TURNS = 10
STEPS = {1: 150, 8: 100, 64: 50, 256: 30, 1024: 20}  # a turn
SECONDS = 0.05  # of a step by the plug-in's clock, so that a report is due every 20
ENDED = 1024
TAIL = 700  # output tokens
NAMES = ("bare", "own", "other")
sent = [0]  # packets

Engines = dict[str, Any]
Numbers = dict[str, Any]


class _Counting(socket.socket):
    """Counts what is sent."""

    def send(self, *args: Any) -> int:
        sent[0] += 1
        return super().send(*args)


def main(own: str, other: str, place: str, path: str, sizes: str) -> None:
    """Measures all and prints it; ``place`` is ``sidecar`` where somebody listens at the path."""
    socket.socket = _Counting  # type: ignore[misc]
    plugins = {"own": load(Path(own)), "other": load(Path(other))}
    with _sidecar(place, path), _clock(plugins) as clock:
        make = _maker(plugins, path, clock)
        steps = {
            f"{keys} {size}": _steps(make, keys, size)
            for keys in ("few", "many")
            for size in map(int, sizes.split(","))
        }
        found = {"steps": steps, "round": _rounds(make), "alone": _alone(make), "ends": _ends(make)}
    print(json.dumps(found))


@contextmanager
def _sidecar(place: str, path: str) -> Iterator[None]:
    if place != "sidecar":
        yield
        return
    with receiving(path):
        yield


@contextmanager
def _clock(plugins: dict[str, Any]) -> Iterator[Any]:
    """The plug-ins' clock, which only the engine's steps move."""
    clock = SimpleNamespace(at=1000.0, time=time.time, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.at
    for plugin in plugins.values():
        plugin.time = clock
    yield clock


def _maker(plugins: dict[str, Any], path: str, clock: Any) -> Callable[..., Engines]:
    """Makes engines: a bare one, and one of each version of the plug-in."""
    methods = {name: own for name, own in vars(Scheduler).items() if type(own) is FunctionType}
    classes = {name: type("Scheduler", (Scheduler,), methods) for name in NAMES}
    for name, plugin in plugins.items():
        plugin.install(classes[name], "0", path)

    def make(**options: Any) -> Engines:
        gc.collect()
        engines = {}
        for name, cls in classes.items():
            scheduler = make_scheduler(cls=cls, **options)
            engines[name] = Engine(scheduler, clock=clock, seconds=SECONDS, observes=False)
        return engines

    return make


def _order(number: int) -> list[str]:
    """Each is first, second and last as often."""
    first = number % len(NAMES)
    return [*NAMES[first:], *NAMES[:first]]


def _tenth(values: list[float]) -> float:
    """The 10th percentile, in microseconds."""
    return 1e6 * sorted(values)[len(values) // 10]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _fill(engine: Any, size: int, keys: str) -> None:
    """As many requests as are to run; each has a combination of keys of its own, or one of five."""
    while len(engine.scheduler.requests) < size:
        number = engine.added = getattr(engine, "added", 0) + 1
        few = keys == "few"
        filters = {} if few else ({}, {"top_p": 0.9}, {"presence_penalty": 0.1})[number % 3]
        parameters = sampling(
            temperature=number % (5 if few else 200) / 100,
            max_tokens=100 + number % 200,
            **filters,
        )
        prompt = 16 if few else (4, 9, 17, 33, 65)[number % 5]
        engine.add(f"r{number}", prompt=prompt, parameters=parameters)


def _steps(make: Callable[..., Engines], keys: str, size: int) -> dict[str, Numbers]:
    """Of each turn the 10th percentile of steps without, and with a report; medians of turns."""
    engines = make(running=size)
    calm: dict[str, list[float]] = {name: [] for name in NAMES}
    reports: dict[str, list[float]] = {name: [] for name in NAMES}
    longest = dict.fromkeys(NAMES, 0.0)
    for turn in range(TURNS + 1):
        steps: dict[str, list[float]] = {name: [] for name in NAMES}
        for number in range(STEPS[size]):
            for name in _order(number):
                engine = engines[name]
                _fill(engine, size, keys)
                sent[0] = 0
                engine.step()
                (reports if sent[0] else steps)[name].append(engine.thread_seconds)
                if turn:
                    longest[name] = max(longest[name], 1e6 * engine.thread_seconds)
        if not turn:  # the first is of prefills
            reports = {name: [] for name in NAMES}
            continue
        for name in NAMES:
            calm[name].append(_tenth(steps[name]))

    _abort(engines)
    return {
        name: {
            "step": _median(calm[name]),
            "report": _tenth(reports[name]) if reports[name] else None,
            "longest": longest[name],
        }
        for name in NAMES
    }


def _abort(engines: Engines) -> None:
    for engine in engines.values():
        engine.abort()
        engine.run()


def _rounds(make: Callable[..., Engines]) -> Numbers:
    """An engine that goes round while the KV cache of a finished request is sent."""
    engines = make()
    for engine in engines.values():
        Connector(engine, delays=True)
        engine.add("r", max_tokens=1)
        engine.run(3)

    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(3000):
        for name in _order(number):
            engine = engines[name]
            output = engine.scheduler.schedule()
            engine.compute(output, {}, None, None, None)
            taken[name].append(engine.thread_seconds)
    return {name: _tenth(values) for name, values in taken.items()}


def _alone(make: Callable[..., Engines]) -> Numbers:
    """Requests of ten tokens, one at a time, with the round that tells the workers."""
    engines = make()
    taken: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(300):
        for name in _order(number):
            engine = engines[name]
            engine.add(f"r{number}", max_tokens=10)
            seconds = 0.0
            while engine.has_work():
                engine.step(drafted=1, lengths=2)
                seconds += engine.thread_seconds
            taken[name].append(seconds)
    return {name: _tenth(values) for name, values in taken.items()}


def _contents() -> dict[str, Callable[[], list[int]]]:
    """Outputs that clients may choose; those that are not text are made to look like loops."""
    rng = random.Random(5)

    def text() -> list[int]:
        return [rng.randrange(1000, 50_000) for _ in range(TAIL)]

    def runs(length: int) -> list[int]:
        backwards: list[int] = []
        while len(backwards) < TAIL:
            backwards += [11] * length + [rng.randrange(1000, 50_000)]
        return backwards[:TAIL][::-1]

    return {
        "text": text,
        "a list": lambda: [
            11 if place % 2 else rng.randrange(1000, 50_000) for place in range(TAIL)
        ],
        "runs of 60": lambda: runs(60),
        "another at 63": lambda: ([11] * 63 + [12] + [11] * TAIL)[:TAIL][::-1],
        "multiples of 256": lambda: [256 * rng.randrange(500) for _ in range(TAIL)],
        "two tokens": lambda: [rng.choice([11, 12]) for _ in range(TAIL)],
    }


def _ends(make: Callable[..., Engines]) -> dict[str, Numbers]:
    """All requests end at once; the best of three, as each is long enough to be measured."""
    found: dict[str, Numbers] = {}
    for content, output in _contents().items():
        for way in ("length", "an abort"):
            names = NAMES if content == "text" else NAMES[:2]
            taken: dict[str, list[float]] = {name: [] for name in names}
            for turn in range(3):
                engines = make(running=ENDED)
                for name in [one for one in _order(turn) if one in names]:
                    taken[name].append(_end(engines[name], output, way))
            found[f"{way}: {content}"] = {name: 1e6 * min(values) for name, values in taken.items()}
    return found


def _end(engine: Any, output: Callable[[], list[int]], way: str) -> float:
    """Seconds that the ends take."""
    for number in range(ENDED):
        engine.add(f"r{number}", prompt=4, max_tokens=TAIL + 1, temperature=0.5)
    while not all(one.num_output_tokens for one in engine.scheduler.requests.values()):
        engine.step(lengths=1, drafted=0)
    for request in engine.scheduler.requests.values():
        request._output_token_ids[:] = output()  # noqa: SLF001 - vLLM's own list

    if way == "an abort":
        started = time.thread_time()
        engine.scheduler.finish_requests(
            list(engine.scheduler.requests), RequestStatus.FINISHED_ABORTED
        )
        taken = time.thread_time() - started
        engine.run()
        return taken
    engine.step(lengths=1, drafted=0)
    taken = float(engine.thread_seconds)
    engine.run()
    return taken


if __name__ == "__main__":
    main(*sys.argv[1:])
