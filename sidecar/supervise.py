"""Background tasks that can't die in silence."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Protocol, Self


class FaultLog(Protocol):
    """What of a structlog logger is needed here."""

    def exception(self, event: str, **fields: Any) -> Any:
        """Log an error with its traceback."""


class Supervisor:
    """Owns background tasks: runs one again when it fails, counts that, and ends all when its block is left."""

    def __init__(self, log: FaultLog, pause: float = 1.0) -> None:
        """``pause`` is the seconds between a failure and the next start."""
        self._log = log
        self._pause = pause
        self._tasks: list[asyncio.Task[None]] = []
        self.failures: dict[str, int] = {}  # by task; an error on purpose is never among them

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Runs ``run`` in the background until it returns, however often it fails."""
        self.failures.setdefault(name, 0)
        self._tasks.append(asyncio.create_task(self._keep(name, run), name=name))

    async def _keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await run()
            except Exception:  # noqa: BLE001 - whatever it is, the other parts go on
                self.failures[name] += 1
                if self.failures[name] == 1:
                    self._log.exception("a part of the sidecar failed and is started again", part=name)
                await asyncio.sleep(self._pause)
