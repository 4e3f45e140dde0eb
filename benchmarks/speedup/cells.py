"""One load at one temperature or a mix: closed-loop traffic on a server that is watched as by a sidecar."""

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import structlog

from sidecar.commands.sweep.client import Client, Sample
from sidecar.commands.sweep.options import ENDPOINTS, RequestOptions
from sidecar.engine.page_source import PageSource, page_source
from sidecar.engine.snapshot import PageSnapshot
from sidecar.errors import ScrapeError
from sidecar.recording.recording import PluginLine, Scrape
from sidecar.requests.messages import Dropped, Message, Unreadable
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings.groups import Limits
from sidecar.settings.groups import Scrape as ScrapeSettings

_POLL = 0.5  # seconds
_WORDS: Sequence[str] = tuple(
    "the quick brown fox jumps over a lazy dog while rain falls on the old tin roof".split()  # noqa: SIM905 - words
)


@dataclass(frozen=True, slots=True)
class Cell:
    """The traffic: concurrent requests, with the temperatures in turn."""

    at_once: int
    temperatures: tuple[float, ...]

    @property
    def name(self) -> str:
        """Its temperature, or ``mixed``."""
        return "mixed" if len(self.temperatures) > 1 else str(self.temperatures[0])


@dataclass(slots=True)
class Seen:
    """One server in one cell: requests as the clients saw them, and when traffic began and had ended (Unix seconds)."""

    begun: float = 0.0
    ended: float = 0.0
    samples: list[Sample] = field(default_factory=list)


def seconds_per_token(samples: Iterable[Sample]) -> float:
    """As the clients measured it: time from first to last token / tokens after the first, each summed."""
    timed = [(one.tpot, (one.tokens or 1) - 1) for one in samples if one.tpot is not None]
    return sum(tpot * tokens for tpot, tokens in timed) / sum(tokens for _, tokens in timed)


class Server:
    """A vLLM under test, in ``async with``; keeps all of its pages and all of its plug-in's messages."""

    def __init__(self, url: str, socket: Path, seed: int) -> None:
        self.scrapes: list[Scrape] = []
        self.heard: list[PluginLine] = []
        self._url = url
        self._socket = socket
        self._random = Random(seed)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        options = RequestOptions(endpoint=ENDPOINTS["completions"])
        log = structlog.get_logger("benchmark")
        await self._stack.enter_async_context(PluginReceiver(self._socket, self._take, log))
        self._pages = await self._stack.enter_async_context(page_source(ScrapeSettings(vllm_url=self._url), Limits()))
        self._client = await self._stack.enter_async_context(Client(self._url, options))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _take(self, connection: int, message: Message) -> None:
        if isinstance(message, Dropped | Unreadable):
            raise TypeError(f"of connection {connection}: {message}")
        self.heard.append(PluginLine.of(time.time(), connection, message))

    async def connect(self) -> None:
        """Finds the model."""
        await self._client.connect("the")

    async def run(self, cell: Cell, seconds: float) -> Seen:
        """Keeps ``cell.at_once`` requests in flight for ``seconds``, then lets them end."""
        seen = Seen(time.time())
        temperatures, end = itertools.cycle(cell.temperatures), time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < end:
                words = " ".join(self._random.choices(_WORDS, k=self._random.randint(15, 40)))
                asked = self._client.ask(words, next(temperatures), max_tokens=self._random.randint(40, 80))
                if (sample := await asked) is not None:
                    seen.samples.append(sample)

        polling = asyncio.create_task(self._poll())
        await asyncio.gather(*(client() for _ in range(cell.at_once)))
        await asyncio.sleep(1.5)  # for the plug-in's last report
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await self._scrape(self._pages)
        seen.ended = time.time()
        return seen

    async def _poll(self) -> None:
        while True:
            await self._scrape(self._pages)
            await asyncio.sleep(_POLL)

    async def _scrape(self, pages: PageSource) -> None:
        begun, page, problem = time.time(), None, None
        try:
            page = await pages.next()
        except ScrapeError as error:
            problem = error
        self._keep(begun, time.time(), page, problem)

    def _keep(self, begun: float, ended: float, page: PageSnapshot | None, problem: ScrapeError | None) -> None:
        self.scrapes.append(Scrape((begun + ended) / 2, ended - begun, page, problem))
