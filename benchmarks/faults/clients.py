"""Clients that keep sending requests, and note how each one ended."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp
import msgspec

_KINDS = {
    aiohttp.ClientConnectorError: "refused",
    TimeoutError: "timed out",
    aiohttp.ClientPayloadError: "cut off",
    aiohttp.ClientError: "closed",
}
TEMPERATURES = (0.0, 0.3, 0.7, 1.0, None)


@dataclass(frozen=True, slots=True)
class Ended:
    """One request: when it began and ended (Unix seconds), its kind of failure ("" if it completed), its tokens."""

    start: float
    end: float
    failure: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Experience:
    """What clients saw: failed requests by kind, the seconds from the first to the last of them, and the slowest."""

    sent: int
    failures: Counter[str]
    span: float
    slowest: float

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.failures.items()))
        text = f"{kinds} in {self.span:.1f} s" if kinds else "0"
        return f"{text} of {self.sent}" + (f"; slowest {self.slowest:.1f} s" if self.slowest >= 2 else "")


class Clients:
    """Sends requests, half of them streamed, one at a time from each of ``number`` clients."""

    def __init__(self, url: str, *, model: str, number: int = 4, max_tokens: int = 40, pause: float = 0.0) -> None:
        """``pause`` is the mean time between two requests of a client, in seconds."""
        self.ended: list[Ended] = []
        self.url = url
        self._model = model
        self._number = number
        self._max_tokens = max_tokens
        self._pause = pause
        self._random = Random(0)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Begins to send."""
        self._stopping = False
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._number)]

    async def stop(self) -> None:
        """Sends no further request, and waits for those in flight."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def since(self, begin: float = 0.0) -> Experience:
        """Of the requests that ended after ``begin``."""
        ended = [one for one in self.ended if one.end >= begin]
        failed = [one for one in ended if one.failure]
        return Experience(
            sent=len(ended),
            failures=Counter(one.failure for one in failed),
            span=failed[-1].end - failed[0].end if failed else 0.0,
            slowest=max((one.end - one.start for one in ended), default=0.0),
        )

    @property
    def tokens(self) -> int:
        """Of all requests that completed."""
        return sum(one.tokens for one in self.ended)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not self._stopping:
                start = time.time()
                failure, tokens = await self._send(session)
                self.ended.append(Ended(start, time.time(), failure, tokens))
                await asyncio.sleep(self._random.expovariate(1 / self._pause) if self._pause else bool(failure) * 0.05)

    async def _send(self, session: aiohttp.ClientSession) -> tuple[str, int]:
        random = self._random
        body: dict[str, Any] = {"model": self._model, "prompt": f"the {random.random()} fox", "ignore_eos": True}
        body["max_tokens"] = random.randint(4, self._max_tokens)
        if (temperature := random.choice(TEMPERATURES)) is not None:
            body["temperature"] = temperature
        if random.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            return next(kind for one, kind in _KINDS.items() if isinstance(error, one)), 0
        if response.status != 200:
            return f"status {response.status}", 0
        if "stream" in body:
            events = content.split(b"\n\n")
            if events[-2:] != [b"data: [DONE]", b""]:
                return "cut off", 0
            content = events[-3].removeprefix(b"data: ")
        # A reply that vLLM would not send is a failure of the harness too, and must not be counted.
        return "", int(msgspec.json.decode(content)["usage"]["completion_tokens"])
