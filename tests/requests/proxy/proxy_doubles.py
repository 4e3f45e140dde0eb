"""A clock, a log and an observer that tests can inspect, and how tests wait."""

import asyncio
import time
from collections.abc import Callable

from sidecar.requests.proxy.outcomes import ExchangeOutcome


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for a condition; the bound is only there so that a failing test ends."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.001)


class Log:
    def __init__(self):
        self.events = []

    def info(self, event, **values):
        self.events.append((event, values))

    def warning(self, event, **values):
        self.events.append((event, values))


class Clock:
    """Stands still until it is advanced."""

    def __init__(self):
        self.now = 1000.0
        self.calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return self.now

    async def advance(self, seconds: float) -> None:
        """Move on, and wait until the proxy has checked its deadlines (every check calls twice)."""
        self.now += seconds
        calls = self.calls
        await until(lambda: self.calls > calls + 4)


class Recorder:
    """An observer that keeps everything."""

    ask_bytes = 0

    def __init__(self, method, target, headers):
        self.calls = [("request_head", method, target, tuple(headers))]
        self.request = bytearray()
        self.response = bytearray()
        self.status = None
        self.outcomes = []

    def request_piece(self, piece):
        self.calls.append(("request_piece",))
        self.request += piece

    def request_end(self):
        self.calls.append(("request_end",))

    def reply_head(self, status, headers):
        self.calls.append(("reply_head", status))
        self.status = status

    def reply_piece(self, piece):
        self.calls.append(("reply_piece",))
        self.response += piece

    def finished(self, outcome):
        self.calls.append(("finished",))
        self.outcomes.append(outcome)

    @property
    def outcome(self) -> ExchangeOutcome:
        assert len(self.outcomes) == 1
        return self.outcomes[0]
