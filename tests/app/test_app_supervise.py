"""Background parts that fail, and that end."""

import asyncio

from sidecar.supervise import Supervisor


class Log:
    def __init__(self):
        self.faults = []

    def exception(self, event, **fields):
        self.faults.append(fields["part"])


async def test_a_part_that_fails_is_started_again_and_counted():
    log = Log()
    runs = 0
    done = asyncio.Event()

    async def fails_twice():
        nonlocal runs
        runs += 1
        if runs <= 2:
            raise RuntimeError
        done.set()

    async with Supervisor(log, pause=0.0) as supervisor:
        supervisor.start("part", fails_twice)
        assert supervisor.failures == {"part": 0}
        async with asyncio.timeout(120):
            await done.wait()
        assert supervisor.failures == {"part": 2}
    assert log.faults == ["part"]


async def test_each_fault_of_a_part_is_logged_once():
    log = Log()
    runs = 0

    async def fails_in_two_ways():
        nonlocal runs
        runs += 1
        if runs <= 4:
            raise RuntimeError(runs)
        if runs <= 6:
            raise ValueError(runs)

    async with Supervisor(log, pause=0.0) as supervisor:
        supervisor.start("part", fails_in_two_ways)
        async with asyncio.timeout(120):
            while runs < 7:
                await asyncio.sleep(0)
        assert supervisor.failures == {"part": 6}
    assert log.faults == ["part", "part"]


async def test_parts_end_with_the_block():
    cancelled = []

    async def runs_on(name):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async with Supervisor(Log()) as supervisor:
        supervisor.start("a", lambda: runs_on("a"))
        supervisor.start("b", lambda: runs_on("b"))
        await asyncio.sleep(0)
    assert sorted(cancelled) == ["a", "b"]
