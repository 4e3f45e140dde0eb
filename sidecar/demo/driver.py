"""Drives the simulated engine in real time and delivers its tokens to the waiting requests."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from sidecar.demo.engine import Engine
from sidecar.demo.generation import FinishReason, Generation, Prompt, Sampling
from sidecar.demo.metrics_page import MetricsPage


class BrokenOff(Exception):
    """The engine restarted under a request."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one choice, and its finish reason if it has finished."""

    index: int
    tokens: int
    reason: FinishReason | None


class Mailbox:
    """Tokens for one request; a slow reader gets several steps merged, as in vLLM, which bounds memory."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[int, FinishReason | None]] = {}
        self._ready = asyncio.Event()
        self._broken_off = False

    def put(self, index: int, tokens: int, reason: FinishReason | None) -> None:
        """New tokens of one choice; ``reason`` comes with the last."""
        self._pending[index] = (self._pending.get(index, (0, None))[0] + tokens, reason)
        self._ready.set()

    def break_off(self) -> None:
        """No more tokens will come."""
        self._broken_off = True
        self._ready.set()

    async def take(self) -> list[Delta]:
        """Waits for new tokens and takes them all; raises ``BrokenOff`` after a restart."""
        await self._ready.wait()
        if self._broken_off:
            raise BrokenOff
        self._ready.clear()
        pending, self._pending = self._pending, {}
        return [Delta(index, tokens, reason) for index, (tokens, reason) in pending.items()]


class EngineDriver:
    """Runs an engine as a task from ``start`` to ``stop`` and records its steps on ``page``."""

    def __init__(self, engine: Engine, page: MetricsPage, *, speed: float) -> None:
        self._engine = engine
        self._page = page
        self._speed = speed
        self._clock = time.monotonic
        self._work = asyncio.Event()
        self._mailboxes: dict[Generation, Mailbox] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts stepping; needs a running loop."""
        self._task = asyncio.create_task(self._run(), name="simulated engine")

    async def stop(self) -> None:
        """Stops stepping and breaks off every request in flight."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    def submit(self, prompts: Sequence[Prompt], sampling: Sampling, n: int) -> tuple[Mailbox, list[Generation]]:
        """Queues ``n`` choices for every prompt; choice i of prompt p has the index p * n + i."""
        now = self._clock()
        mailbox = Mailbox()
        generations: list[Generation] = []
        for number, prompt in enumerate(prompts):
            generations.extend(
                self._engine.submit(prompt, sampling, index=number * n + choice, now=now) for choice in range(n)
            )
        self._mailboxes |= dict.fromkeys(generations, mailbox)
        self._work.set()
        return mailbox, generations

    def close(self, generations: Sequence[Generation]) -> None:
        """Ends the request; aborts what has not finished."""
        for generation in generations:
            del self._mailboxes[generation]
            if self._task is not None and self._engine.abort(generation):  # a stopped engine counts nothing
                self._page.record_load(self._engine.load)

    async def _run(self) -> None:
        try:
            await self._step_for_ever()
        finally:
            for mailbox in self._mailboxes.values():
                mailbox.break_off()

    async def _step_for_ever(self) -> None:
        deadline = self._clock()
        while True:
            duration = self._engine.schedule(self._clock())
            if duration is None:
                self._work.clear()
                await self._work.wait()
                deadline = self._clock()
                continue
            # Each deadline follows from the last, so that the timer's lateness does not add up; a lag of more than
            # a step is not caught up.
            now = self._clock()
            step = duration / self._speed
            deadline = max(deadline, now - step) + step
            await asyncio.sleep(max(0.0, deadline - now))
            report = self._engine.complete(self._clock())
            self._page.record_step(report, self._engine.load)
            for generation, tokens in report.outputs:
                self._mailboxes[generation].put(generation.index, tokens, generation.finished)
