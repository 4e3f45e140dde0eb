"""One load at one temperature, or mixed: closed-loop traffic on one server, with its pages polled meanwhile."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import aiohttp
import msgspec

from sidecar.engine.exposition import PageReader
from sidecar.engine.lines import PageLimits
from sidecar.engine.names import wanted
from sidecar.engine.snapshot import SnapshotReader
from sidecar.errors import ScrapeError
from sidecar.recording.recording import Scrape
from sidecar.requests.observe.endpoint import COMPLETIONS
from sidecar.requests.observe.exchange_observer import ExchangeObserver
from sidecar.requests.record import RequestRecord

_POLL = 0.5  # seconds


@dataclass(frozen=True, slots=True)
class Cell:
    """The traffic: requests at once, and temperatures in turn."""

    at_once: int
    temperatures: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.at_once} at once, T {'mixed' if len(self.temperatures) > 1 else self.temperatures[0]}"


@dataclass(slots=True)
class Seen:
    """What one server showed in one cell: polls and requests, each in the order of time."""

    scrapes: list[Scrape] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)


def seconds_per_token(records: Iterable[RequestRecord]) -> float:
    """The clients' own: from the first event to the last, over the tokens after the first, summed."""
    streams = [one for one in records if one.first_token is not None and (one.completion_tokens or 0) > 1]
    seconds = sum(one.end - (one.first_token or 0.0) for one in streams)
    return seconds / sum((one.completion_tokens or 1) - 1 for one in streams)


class Server:
    """A vLLM under test; one cell at a time."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self._random = Random(seed)
        self._numbers = itertools.count()
        self._pages, self._snapshots = PageReader(wanted(), PageLimits()), SnapshotReader()

    async def run(self, cell: Cell, seconds: float, seen: Seen) -> None:
        """Keeps ``cell.at_once`` requests in flight for ``seconds``, then lets them end."""
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            temperatures = itertools.cycle(cell.temperatures)
            end = time.monotonic() + seconds
            poller = asyncio.create_task(self._poll(session, seen.scrapes))

            async def client() -> None:
                while time.monotonic() < end:
                    seen.records.append(await self._ask(session, next(temperatures)))

            await asyncio.gather(*(client() for _ in range(cell.at_once)))
            poller.cancel()
            await asyncio.gather(poller, return_exceptions=True)
            await self._scrape(session, seen.scrapes)

    async def _poll(self, session: aiohttp.ClientSession, scrapes: list[Scrape]) -> None:
        while True:
            await self._scrape(session, scrapes)
            await asyncio.sleep(_POLL)

    async def _scrape(self, session: aiohttp.ClientSession, scrapes: list[Scrape]) -> None:
        begun = time.time()
        async with session.get(f"{self.url}/metrics") as response:
            body = await response.read()
        try:
            scrapes.append(Scrape((begun + time.time()) / 2, self._snapshots.read(self._pages.read(body))))
        except ScrapeError:
            return

    async def _ask(self, session: aiohttp.ClientSession, temperature: float) -> RequestRecord:
        observer = ExchangeObserver(str(next(self._numbers)), COMPLETIONS)
        body = msgspec.json.encode(
            {
                "model": "lab",
                "prompt": " ".join(self._random.choices(_WORDS, k=self._random.randint(15, 40))),
                "temperature": temperature,
                "max_tokens": self._random.randint(40, 80),
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        observer.request_end(body)
        headers = {"Content-Type": "application/json"}
        async with session.post(self.url + COMPLETIONS, data=body, headers=headers) as response:
            observer.reply_head(response.status, response.raw_headers)
            async for piece in response.content.iter_any():
                observer.reply_piece(piece)
        observer.reply_end()
        return observer.finish()


_WORDS: Sequence[str] = tuple(
    "the quick brown fox jumps over a lazy dog while rain falls on the old tin roof".split()  # noqa: SIM905 - words
)
