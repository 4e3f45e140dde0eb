"""The faults: each is a coroutine that injects one and returns once everything that it broke is running again."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import permutations

from benchmarks.faults.relay import Relay
from benchmarks.faults.rig import Rig

PROGRAMS = ("vllm", "sidecar", "prometheus", "alertmanager")
Fault = Callable[[Rig], Awaitable[None]]


def killed(*names: str) -> Fault:
    """SIGKILL, a second apart; two seconds later all are started, in the same order."""

    async def fault(rig: Rig) -> None:
        for name in names:
            rig.kill(name)
            await asyncio.sleep(1)
        await asyncio.sleep(2)
        for name in names:
            await rig.start(name)

    return fault


def suspended(name: str, seconds: float = 20) -> Fault:
    """SIGSTOP, then SIGCONT."""

    async def fault(rig: Rig) -> None:
        async with _vllm_lost(rig, lost=name == "vllm"):
            rig.programs[name].send(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            rig.programs[name].send(signal.SIGCONT)

    return fault


@asynccontextmanager
async def _vllm_lost(rig: Rig, *, lost: bool) -> AsyncIterator[None]:
    if lost:
        rig.lose_vllm()
    yield
    if lost:
        await rig.find_vllm()


async def terminated(rig: Rig) -> None:
    """SIGTERM under load; it must end by itself, with code 0."""
    code = await rig.programs["sidecar"].stop()
    if code != 0:
        raise AssertionError(f"exit code {code}")
    await rig.start("sidecar")


def slow(delay: float, rate: float, seconds: float = 10) -> Fault:
    """The link to vLLM becomes slow."""

    async def fault(rig: Rig) -> None:
        rig.vllm_link.delay, rig.vllm_link.rate = delay, rate
        await asyncio.sleep(seconds)
        rig.vllm_link.delay = rig.vllm_link.rate = 0

    return fault


def cut(link: Callable[[Rig], Relay], seconds: float) -> Fault:
    """All connections are reset, and new ones refused for some time."""

    async def fault(rig: Rig) -> None:
        relay = link(rig)
        async with _vllm_lost(rig, lost=relay is rig.vllm_link):
            relay.cut()
            await asyncio.sleep(seconds)
        await relay.listen()

    return fault


def dead(link: Callable[[Rig], Relay], seconds: float = 10) -> Fault:
    """Nothing gets through, without any error."""

    async def fault(rig: Rig) -> None:
        relay = link(rig)
        async with _vllm_lost(rig, lost=relay is rig.vllm_link):
            relay.dead = True
            await asyncio.sleep(seconds)
            relay.dead = False

    return fault


def clock(number: signal.Signals, *names: str) -> Fault:
    """The wall clock of these programs is set."""

    async def fault(rig: Rig) -> None:
        for name in names:
            rig.programs[name].send(number)

    return fault


async def crowded(rig: Rig) -> None:
    """A hundred idle clients, more than there are descriptors, for 10 s; the load continues."""
    port = int(rig.clients.url.rpartition(":")[2])
    idle = []
    for _ in range(100):
        with contextlib.suppress(OSError):
            idle.append((await asyncio.open_connection("127.0.0.1", port))[1])
    await asyncio.sleep(10)
    for writer in idle:
        writer.transport.abort()


async def full(rig: Rig) -> None:
    """Waits until the recording has stopped because the disk is full."""
    async with asyncio.timeout(60):
        while "recording stops" not in rig.programs["sidecar"].log.read_text():
            await asyncio.sleep(0.2)


def _vllm_link(rig: Rig) -> Relay:
    return rig.vllm_link


def _page_link(rig: Rig) -> Relay:
    return rig.page_link


FAULTS: dict[str, Fault] = {
    **{f"{name} killed": killed(name) for name in PROGRAMS},
    **{f"{first}, then {second} killed": killed(first, second) for first, second in permutations(PROGRAMS, 2)},
    "sidecar: SIGTERM under load": terminated,
    "sidecar suspended for 20 s": suspended("sidecar"),
    "vllm suspended for 20 s": suspended("vllm"),
    "link to vLLM: 200 ms each way for 10 s": slow(0.2, 0),
    "link to vLLM: 20 kB/s for 10 s": slow(0, 20_000),
    "link to vLLM: all connections reset": cut(_vllm_link, 0),
    "link to vLLM: cut for 5 s": cut(_vllm_link, 5),
    "link to vLLM: dead for 10 s": dead(_vllm_link),
    "link to Prometheus: cut for 5 s": cut(_page_link, 5),
    "link to Prometheus: dead for 10 s": dead(_page_link),
    "wall clocks set 1 h forward": clock(signal.SIGUSR1, "vllm", "sidecar"),
    "wall clocks set 1 h back": clock(signal.SIGUSR2, "vllm", "sidecar"),
    "sidecar's wall clock set 1 h back": clock(signal.SIGUSR2, "sidecar"),
    "sidecar's wall clock set 1 h forward": clock(signal.SIGUSR1, "sidecar"),
}
