"""Traffic for a vLLM on this machine: mixed temperatures, both endpoints, streamed and not.

It targets loopback addresses only, is bounded in requests and time, and keeps sums but no text.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from sidecar.demo.replies import filler
from sidecar.errors import SettingsError

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_FAILURES = (aiohttp.ClientError, HttpProcessingError, OSError)

Mix = Mapping[float | None, float]  # temperature (None: the request specifies none) -> weight

COLD: Mix = MappingProxyType({0.0: 6, 0.3: 2, 0.7: 1, None: 1})
MIXED: Mix = MappingProxyType({0.0: 3, 0.3: 2, 0.7: 2, 1.0: 2, None: 1})
HOT: Mix = MappingProxyType({0.0: 1, 0.7: 2, 1.0: 4, 1.2: 2, None: 1})


@dataclass(frozen=True, slots=True)
class Phase:
    """A mix of temperatures that lasts ``seconds``."""

    seconds: float
    mix: Mix


def cold_hot_cold(seconds: float) -> tuple[Phase, ...]:
    """From cold through mixed to hot traffic and back, in five phases of equal length."""
    return tuple(Phase(seconds / 5, mix) for mix in (COLD, MIXED, HOT, MIXED, COLD))


@dataclass(frozen=True, slots=True)
class TrafficOptions:
    """What to send and where. Ends with the last phase or after ``max_requests``, whichever comes first.

    Raises:
        SettingsError: the target is not on this machine.
    """

    base_url: str  # a loopback address; no path
    model: str = "demo"
    phases: tuple[Phase, ...] = field(default_factory=lambda: cold_hot_cold(300.0))
    repeat: bool = False  # start over after the last phase, until max_requests or cancelled
    concurrency: int = 8  # requests in flight
    max_requests: int = 10_000  # in all
    request_seconds: float = 60.0  # seconds after which a request has failed
    min_tokens: int = 16  # shortest completion
    max_tokens: int = 160  # longest completion
    streamed: float = 0.7  # share of requests that stream (0-1)
    chat: float = 0.7  # share of chat completions (0-1)
    seed: int = 0
    seeded: bool = False  # each request has a seed, so that a repeated run draws the same tokens

    def __post_init__(self) -> None:
        if urlsplit(self.base_url).hostname not in _LOOPBACK:
            raise SettingsError(["base_url: the traffic generator only targets this machine, so use 127.0.0.1"])


@dataclass(slots=True)
class TrafficSummary:
    """Requests so far; may be read while the traffic runs."""

    sent: int = 0
    completed: int = 0
    failed: int = 0


class Traffic:
    """Sends requests until it is done or cancelled; ``summary`` grows meanwhile. ``clock`` counts seconds."""

    def __init__(self, options: TrafficOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._random = Random(options.seed)
        self._length = sum(phase.seconds for phase in options.phases)
        self._begun = 0.0
        self.summary = TrafficSummary()

    async def run(self) -> TrafficSummary:
        """Sends everything; cancelling breaks off the requests in flight and closes the session."""
        options = self._options
        self._begun = self._clock()
        connector = aiohttp.TCPConnector(limit=options.concurrency)
        timeout = aiohttp.ClientTimeout(total=options.request_seconds)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(min(options.concurrency, options.max_requests)):
                group.create_task(self._client(session))
        return self.summary

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while self.summary.sent < self._options.max_requests:
            phase = self._phase()
            if phase is None:
                return
            self.summary.sent += 1
            path, body = self._request(phase)
            try:
                reply = await _exchange(session, self._options.base_url.rstrip("/") + path, body)
            except _FAILURES:
                self.summary.failed += 1
                await asyncio.sleep(0.1)  # do not hammer a server that is down
                continue
            self.completed(body.get("temperature"), reply)

    def completed(self, temperature: float | None, reply: bytes) -> None:  # noqa: ARG002 - for those who read replies
        """Counts a completed request; ``reply`` is its body, or the last event of a stream."""
        self.summary.completed += 1

    def _phase(self) -> Phase | None:
        """The current phase; None after the last."""
        elapsed = self._clock() - self._begun
        if self._options.repeat:
            elapsed %= self._length
        for phase in self._options.phases:
            if elapsed < phase.seconds:
                return phase
            elapsed -= phase.seconds
        return None

    def _request(self, phase: Phase) -> tuple[str, dict[str, Any]]:
        options, random = self._options, self._random
        temperature = random.choices(list(phase.mix), weights=list(phase.mix.values()))[0]
        # A quarter of the prompts begin alike, so that the prefix cache has something to hit.
        start = 0 if random.random() < 0.25 else random.randrange(12)
        text = f"{filler(start, random.randrange(20, 60))}{random.randrange(10**6)}"
        body: dict[str, Any] = {"model": options.model, "ignore_eos": True}
        body["max_tokens"] = random.randint(options.min_tokens, options.max_tokens)
        if temperature is not None:
            body["temperature"] = temperature
        if random.random() < options.streamed:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if options.seeded:
            body["seed"] = random.randrange(2**31)
        if random.random() < options.chat:
            return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}
        return "/v1/completions", body | {"prompt": text}


async def _exchange(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bytes:
    """Sends one request; returns the body of the response, or the last event of a stream.

    Raises:
        aiohttp.ClientError: the request was refused or the response broke off.
        OSError: the connection failed, or the request timed out.
        HttpProcessingError: a line of the stream is too long.
    """
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        if not body.get("stream"):
            return await response.read()
        last = previous = b""
        async for line in response.content:
            if line.startswith(b"data: "):
                previous, last = last, line
        if last.strip() != b"data: [DONE]" or not previous:
            raise aiohttp.ClientPayloadError("the stream ended without an event or without its end mark")
        return previous.removeprefix(b"data: ")
