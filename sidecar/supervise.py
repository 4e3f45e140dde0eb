"""Background tasks that can't die in silence."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self

_MOST_FAULTS = 16  # of one task


class FaultLog(Protocol):
    """What of a structlog logger is needed here."""

    def exception(self, event: str, **fields: Any) -> Any:
        """Log an error with its traceback."""


class Supervisor:
    """Owns background tasks: runs one again when it fails, counts that, and ends all when its block is left.

    Each fault of a task is logged once with its traceback, the first 16 of them.
    """

    def __init__(self, log: FaultLog, pause: float = 1.0) -> None:
        """``pause`` is the seconds between a failure and the next start."""
        self._log = log
        self._pause = pause
        self._tasks: list[asyncio.Task[None]] = []
        self.failures: dict[str, int] = {}  # by task; an error on purpose is never among them

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Runs ``run`` in the background until it returns, however often it fails."""
        self.failures.setdefault(name, 0)
        self._tasks.append(asyncio.create_task(self._keep(name, run), name=name))

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        logged: set[str] = set()
        while True:
            try:
                return await run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
                self.failures[name] += 1
                fault = _fault(error)
                if fault not in logged and len(logged) < _MOST_FAULTS:
                    logged.add(fault)
                    self._log.exception("a part of the sidecar failed and is started again", part=name)
                await asyncio.sleep(self._pause)


def _fault(error: Exception) -> str:
    """What failed and where, without the message, which may be another each time."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {last.filename}:{last.lineno}"
