"""Waiting for a state.

A wait that ends without it shows what was expected and what came instead.
"""

import asyncio
import time
from inspect import isawaitable

SECONDS = 10.0
START_SECONDS = 30.0  # for what a process must start for


async def until(read, expected=True, *, seconds=SECONDS, pause=0.005, detail=lambda: ""):
    """Waits until ``read()`` equals ``expected``, or is truthy if that is True; returns it.

    ``read`` may be a coroutine.

    After ``seconds`` it fails, with what it read last and ``detail()``. ``pause`` is between two
    calls of ``read``.
    """
    deadline = time.monotonic() + seconds
    while True:
        got = read()
        if isawaitable(got):
            got = await got
        if got == expected or (expected is True and got):
            return got
        assert time.monotonic() < deadline, (
            f"after {seconds:g} s: expected {expected!r}, got {got!r} {detail()}"
        )
        await asyncio.sleep(pause)
