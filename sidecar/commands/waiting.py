"""How a command waits: for a signal, a time or its own work."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def stop_on_signals() -> asyncio.Event:
    """An event that SIGTERM, SIGINT and SIGHUP set from now on; needs a running loop.

    By default SIGHUP ends a process immediately. If it is already ignored (``nohup``, or ``run``,
    which then reloads settings), it stays ignored.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def stopped(stop: asyncio.Event, seconds: float | None) -> None:
    """Returns once ``stop`` is set or after ``seconds``, whichever comes first."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


async def unless_stopped(work: Coroutine[Any, Any, _Result], stop: asyncio.Event) -> _Result | None:
    """The result of ``work``; if ``stop`` is set first, cancels ``work`` and returns None."""
    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        stopping.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
