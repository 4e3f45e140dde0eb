"""One load at one temperature or a mix.

The traffic is closed-loop, on a server that is watched as by a sidecar.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import structlog

from sidecar.engine.names import Counter
from sidecar.engine.page_source import PageSource, page_source
from sidecar.errors import ScrapeError
from sidecar.requests.messages import Dropped, Message, Unreadable
from sidecar.requests.receiver import PluginReceiver
from sidecar.settings.groups import Limits
from sidecar.settings.groups import Scrape as ScrapeSettings
from specdec_tools.measuring.client import Client, Sample
from specdec_tools.measuring.workload import RequestOptions
from specdec_tools.recording.recording import PluginLine, Scrape

_POLL = 0.5  # seconds
_WORDS: Sequence[str] = tuple(
    "the quick brown fox jumps over a lazy dog while rain falls on the old tin roof".split()  # noqa: SIM905 - words
)


@dataclass(frozen=True, slots=True)
class Cell:
    """The traffic: concurrent requests, with the temperatures in turn.

    Each client sends the same prompt of ``prompt_tokens`` again and again, which is then in the
    prefix cache; None: another short one each time.
    """

    at_once: int
    temperatures: tuple[float, ...]
    prompt_tokens: int | None = None

    @property
    def name(self) -> str:
        """Its temperature, or ``mixed``, or its requests and prompts."""
        if self.prompt_tokens is not None:
            return f"{self.at_once} at once, prompts of {self.prompt_tokens}"
        return "mixed" if len(self.temperatures) > 1 else str(self.temperatures[0])


@dataclass(slots=True)
class CellTraffic:
    """One server in one cell.

    The requests as the clients saw them, and when traffic began and had ended (Unix seconds).
    """

    begun: float = 0.0
    ended: float = 0.0
    samples: list[Sample] = field(default_factory=list)


def seconds_per_token(samples: Iterable[Sample]) -> float:
    """As the clients measured it.

    Time from first to last token / tokens after the first, each summed.
    """
    timed = [
        (sample.tpot, (sample.tokens or 1) - 1) for sample in samples if sample.tpot is not None
    ]
    return sum(tpot * tokens for tpot, tokens in timed) / sum(tokens for _, tokens in timed)


@dataclass(slots=True)
class ObservedServer:
    """A vLLM under test; keeps all of its pages and all of its plug-in's messages."""

    client: Client
    pages: PageSource
    random: Random = field(default_factory=lambda: Random(1))
    scrapes: list[Scrape] = field(default_factory=list)
    messages: list[PluginLine] = field(default_factory=list)
    tokens_per_word: float = 1.0

    async def calibrate(self) -> None:
        """Learns how many tokens a word has."""
        before = await self._prompt_tokens()
        await self.client.ask(" ".join([*_WORDS] * 4), 0.0, max_tokens=1)
        self.tokens_per_word = (await self._prompt_tokens() - before) / (4 * len(_WORDS))

    async def _prompt_tokens(self) -> float:
        page = await self.pages.next()
        return sum(engine.counters[Counter.PROMPT_TOKENS] for engine in page.engines)

    def _prompt(self, cell: Cell, client: int) -> str:
        if cell.prompt_tokens is None:
            return " ".join(self.random.choices(_WORDS, k=self.random.randint(15, 40)))
        words = max(round(cell.prompt_tokens / self.tokens_per_word), 1)
        return " ".join(Random(client).choices(_WORDS, k=words))

    def receive(self, connection: int, message: Message) -> None:
        """See ``PluginSink``."""
        if isinstance(message, Dropped | Unreadable):
            raise TypeError(f"of connection {connection}: {message}")
        self.messages.append(PluginLine.of(time.time(), connection, message))

    async def run(self, cell: Cell, seconds: float) -> CellTraffic:
        """Keeps ``cell.at_once`` requests in flight for ``seconds``, then lets them end."""
        traffic = CellTraffic(time.time())
        temperatures, end = itertools.cycle(cell.temperatures), time.monotonic() + seconds

        async def send(client: int) -> None:
            while time.monotonic() < end:
                words = self._prompt(cell, client)
                tokens = self.random.randint(40, 80)
                if (
                    sample := await self.client.ask(words, next(temperatures), max_tokens=tokens)
                ) is not None:
                    traffic.samples.append(sample)

        polling = asyncio.create_task(self._poll())
        await asyncio.gather(*map(send, range(cell.at_once)))
        await asyncio.sleep(1.5)  # for the plug-in's last report
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
        await self._scrape()
        traffic.ended = time.time()
        return traffic

    async def _poll(self) -> None:
        while True:
            await self._scrape()
            await asyncio.sleep(_POLL)

    async def _scrape(self) -> None:
        begun, page, problem = time.time(), None, None
        try:
            page = await self.pages.next()
        except ScrapeError as error:
            problem = error
        ended = time.time()
        self.scrapes.append(Scrape((begun + ended) / 2, ended - begun, page, problem))


@asynccontextmanager
async def observed(url: str, socket: Path) -> AsyncIterator[ObservedServer]:
    """The vLLM at ``url``, whose plug-in will send to ``socket``; it need not be up yet."""
    pages = page_source(ScrapeSettings(vllm_url=url), Limits())
    options = RequestOptions(endpoint="completions")
    async with pages as source, Client(url, options, is_own=False) as client:
        server = ObservedServer(client, source)
        async with PluginReceiver(socket, server.receive, structlog.get_logger("benchmark")):
            yield server
