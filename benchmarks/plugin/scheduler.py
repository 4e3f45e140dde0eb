"""What the plug-in adds to the steps of vLLM's own Scheduler, by the thread's CPU time.

``python -m benchmarks.plugin`` runs it in the lab's Python. It needs no model or server. Schedulers
without the plug-in, with it and, with ``--beside``, with another version of it take their steps in
turns in one process. It prints a Markdown table, and exits with 1 if a bar is missed.
"""

import argparse
import gc
import importlib.util
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from vllm.v1.core.sched.scheduler import Scheduler

from tests.scheduler.engine import Engine, make_scheduler, sampling

_OURS: Final = Path(__file__).parents[2] / "sidecar/requests/plugin.py"
_METHODS: Final = (
    "__init__", "update_from_output", "_free_request", "make_spec_decoding_stats",
    "set_pause_state", "schedule",
)  # fmt: skip
_TURNS: Final = {1: 2000, 8: 1000, 64: 400, 256: 200, 1024: 80}  # steps by requests running
_TEMPERATURES: Final = [number / 100 for number in range(200)]
_PROMPTS: Final = (4, 9, 17, 33, 65)
_NUMBERS: Final[dict[int, Iterator[int]]] = defaultdict(count)  # of each engine's requests
_REPORTED: Final = 20  # turns from one report to the next, if they take less than its period
_REPORT: Final = 150e-6  # seconds
_IDLE: Final = 5e-6
_ALONE: Final = 170e-6
_RECEIVER: Final = """
import socket, sys, threading
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(64)
def read(connection):
    while connection.recv(131_073):
        pass
print(flush=True)
while True:
    threading.Thread(target=read, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass
class Variant:
    """A scheduler class, and how many packets the plug-in in it has sent."""

    name: str
    make: Callable[..., Engine]
    sent: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(packets=0))


@dataclass
class Samples:
    """CPU seconds of steps: all, and of those in which a packet was sent, by turn."""

    steps: list[float] = field(default_factory=list)
    reporting: dict[int, float] = field(default_factory=dict)

    @property
    def usual(self) -> float:
        """The 10th percentile."""
        return statistics.quantiles(self.steps, n=10)[0]


@contextmanager
def receiver() -> Iterator[Path]:
    """A process that reads packets and does nothing with them."""
    with tempfile.TemporaryDirectory(prefix="specdec") as folder:
        path = Path(folder) / "plugin.sock"
        command = [sys.executable, "-c", _RECEIVER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield path
            process.kill()


def variant(name: str, file: Path | None, path: Path) -> Variant:
    """vLLM's Scheduler with the plug-in of this file, or without one."""
    cls = type("Scheduler", (Scheduler,), {})
    for method in _METHODS:
        if hasattr(Scheduler, method):
            setattr(cls, method, vars(Scheduler)[method])

    def make(running: int) -> Engine:
        return Engine(make_scheduler(running=running, cls=cls), seed=3)

    made = Variant(name, make)
    if file is not None:
        plugin = _loaded(name, file)
        counting = SimpleNamespace(**{**vars(socket), "socket": _counting(made.sent)})
        vars(plugin)["socket"] = counting
        plugin.install(cls, "0.32.0", str(path))
    return made


def _loaded(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"specdec_plugin_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def _counting(sent: SimpleNamespace) -> type[socket.socket]:
    class Counting(socket.socket):
        def send(self, *arguments: Any) -> int:
            sent.packets += 1
            return super().send(*arguments)

    return Counting


def _fill(engine: Engine, running: int, *, many: bool) -> None:
    """Adds requests until so many are there: of five kinds, or each of another kind."""
    while len(engine.scheduler.requests) < running:
        number = next(_NUMBERS[id(engine)])
        parameters = {"temperature": _TEMPERATURES[number % (200 if many else 5)]}
        parameters |= [{}, {"top_p": 0.9}, {"presence_penalty": 0.1}][number % 3] if many else {}
        engine.add(
            f"{id(engine)}-{number}",
            prompt=_PROMPTS[number % 5] if many else 16,
            parameters=sampling(max_tokens=100 + number % 200, **parameters),
        )


def in_turns(variants: list[Variant], running: int, *, many: bool) -> dict[str, Samples]:
    """Steps of each variant, one after the other in changing order."""
    engines = [one.make(running) for one in variants]
    samples = {one.name: Samples() for one in variants}
    gc.collect()
    gc.freeze()

    turns = _TURNS[running]
    for turn in range(turns):
        for place in range(len(variants)):
            which = (turn + place) % len(variants)
            one = variants[which]
            engine = engines[which]
            _fill(engine, running, many=many)
            if one.name == "ours" and turn % _REPORTED == 0:
                engine.scheduler._specdec.report.due = 0.0  # noqa: SLF001 - more than one a second
            before = one.sent.packets
            engine.step(drafted=3)
            if turn < turns // 20:  # the first steps compute prompts
                continue
            if one.sent.packets > before:
                samples[one.name].reporting[len(samples[one.name].steps)] = engine.thread_seconds
            samples[one.name].steps.append(engine.thread_seconds)

    gc.unfreeze()
    return samples


def idle(one: Variant) -> float:
    """CPU seconds of a round with nothing to do: the 10th percentile."""
    engine = one.make(8)
    engine.add("only", max_tokens=4)
    engine.run()
    seconds: list[float] = []
    for _ in range(2000):
        engine.compute(engine.scheduler.schedule(), {}, None, None, None)
        seconds.append(engine.thread_seconds)
    return statistics.quantiles(seconds, n=10)[0]


def ends(one: Variant, tokens: Callable[[int], int]) -> float:
    """CPU seconds of a step in which 1,024 requests are cut off, whose outputs are these tokens."""
    found: list[float] = []
    for _ in range(3):
        engine = one.make(1024)
        for number in range(1024):
            engine.add(f"{number}", max_tokens=400, prompt=4)
        engine.step(drafted=0)
        for request in engine.scheduler.requests.values():
            # As if it had come so far: what it computed and where that lies does not matter here.
            request._output_token_ids[:] = map(tokens, range(399))  # noqa: SLF001
        engine.step(drafted=0, lengths=1, tokens=iter(lambda: tokens(399), None))
        assert not engine.scheduler.requests
        found.append(engine.thread_seconds)
    return min(found)


def alone(one: Variant) -> float:
    """CPU seconds of all steps of a request of ten tokens that is the only one."""
    engine = one.make(8)
    found = []
    for number in range(200):
        engine.add(f"{number}", max_tokens=10)
        seconds = 0.0
        while engine.has_work():
            engine.step(drafted=3, lengths=2)
            seconds += engine.thread_seconds
        found.append(seconds)
    return statistics.quantiles(found, n=10)[0]


def main() -> int:
    """Prints the table; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plugin.scheduler")
    parser.add_argument("--beside", type=Path, help="another version of plugin.py")
    parser.add_argument("--running", type=int, nargs="+", default=list(_TURNS), metavar="N")
    arguments = parser.parse_args()
    missed = 0

    def row(what: str, measured: str, bar: str, *, holds: bool) -> None:
        nonlocal missed
        missed += not holds
        print(f"| {what} | {measured} | {bar}{'' if holds else ' **missed**'} |", flush=True)

    with receiver() as path:
        bare = variant("bare", None, path)
        ours = variant("ours", _OURS, path)
        unheard = variant("unheard", _OURS, path.with_name("nobody.sock"))
        variants = [bare, ours]
        if arguments.beside is not None:
            variants.append(variant("before", arguments.beside, path))

        print("| what | added CPU time | bar |\n|---|---|---|", flush=True)
        for running in arguments.running:
            for many in (False, True):
                _steps(row, variants, running, many=many)
        _others(row, *variants, unheard=unheard)

    return 1 if missed else 0


def _steps(row: Any, variants: list[Variant], running: int, *, many: bool) -> None:
    samples = in_turns(variants, running, many=many)
    floor = samples["bare"].usual
    added = samples["ours"].usual - floor
    what = f"a step of {running}, {'a key each' if many else 'five keys'}"
    measured = f"{1e6 * added:.0f} µs, {1e6 * added / running:.2f} a request"
    holds = True
    bar = "-"
    if "before" in samples:
        before = samples["before"].usual - floor
        most = 0.6 if many and running in (64, 256) else 1.0 if many else 1.05
        measured += f"; before {1e6 * before:.0f}: {added / before:.2f} times"
        bar = f"at most {most} times"
        holds = added <= most * before
    row(what, measured, bar, holds=holds)

    if samples["ours"].reporting:
        # Beyond the bare step of the same turn, in which the same requests end.
        reporting = statistics.median(
            seconds - samples["bare"].steps[turn]
            for turn, seconds in samples["ours"].reporting.items()
        )
        worst = max(samples["ours"].reporting.values())
        most = max(0.3 * statistics.median(samples["bare"].steps), _REPORT)
        measured = (
            f"{1e6 * reporting:.0f} µs in {len(samples['ours'].reporting)} steps;"
            f" worst step {1e6 * worst:.0f}, of bare ones {1e6 * max(samples['bare'].steps):.0f}"
        )
        row(f"{what}, with a packet", measured, f"{1e6 * most:.0f} µs", holds=reporting <= most)


def _others(
    row: Any, bare: Variant, ours: Variant, before: Variant | None = None, *, unheard: Variant
) -> None:
    added = idle(ours) - idle(bare)
    row("a round with nothing to do", f"{1e6 * added:.1f} µs", "5 µs", holds=added <= _IDLE)

    kinds: dict[str, Callable[[int], int]] = {
        "text": lambda place: 1000 + place * 7919 % 30_011,
        "every second token the same": lambda place: 11 if place % 2 else 1000 + place * 7919 % 997,
        "one token": lambda _: 11,
        "nearly a loop": lambda place: 2000 if place == 63 else 1000,
        "a loop": lambda place: place % 40,
    }
    floor = ends(bare, kinds["text"])
    text = ends(before or ours, kinds["text"]) - floor
    for kind, tokens in kinds.items():
        added = ends(ours, tokens) - floor
        measured = f"{1e3 * added:.1f} ms, {added / text:.2f} times text"
        bar = f"at most 1.5 times text{' before' if before else ''}"
        row(f"1,024 requests cut off in a step: {kind}", measured, bar, holds=added <= 1.5 * text)

    floor = alone(bare)
    heard = alone(ours) - floor
    row("a request of ten tokens alone", f"{1e6 * heard:.0f} µs", "170 µs", holds=heard <= _ALONE)
    without = alone(unheard) - floor
    row(
        "the same without a sidecar",
        f"{1e6 * without:.0f} µs",
        "no more than with one",
        holds=without <= heard,
    )


if __name__ == "__main__":
    sys.exit(main())
