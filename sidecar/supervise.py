"""Background tasks that cannot die silently."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from typing import Self

from sidecar.log import StateLog


class Supervisor:
    """Owns background tasks: restarts those that fail, and counts the failures.

    When its context exits, it cancels them all. Each distinct failure of a task is logged once,
    with the traceback.
    """

    def __init__(self, log: StateLog, pause: float = 1.0) -> None:
        """``pause`` is the seconds between a failure and the restart."""
        self._log = log
        self._pause = pause
        self._tasks: list[asyncio.Task[None]] = []
        self.failures: dict[str, int] = {}  # by task: every exception that leaves it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Runs ``run`` in the background until it returns, however often it fails."""
        self.failures.setdefault(name, 0)
        self._tasks.append(asyncio.create_task(self._keep_running(name, run), name=name))

    async def _keep_running(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await run()
            except Exception as error:  # noqa: BLE001 - whatever fails, every task goes on
                self.failures[name] += 1
                self._log.fault(
                    name,
                    "task failed; restarting",
                    reason=_reason(error),
                    task=name,
                    exc_info=error,
                )
                await asyncio.sleep(self._pause)


def _reason(error: Exception) -> str:
    """What failed and where, without the message, which may differ each time."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {last.filename}:{last.lineno}"
