"""The path from vLLM's page and the plug-in's messages to our own page, without the network, in simulated time."""

import sys

import structlog

from benchmarks.core.pages import later
from sidecar.analysis.changes import LoggedState
from sidecar.analysis.state import State
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import SPECULATION
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot, SnapshotReader
from sidecar.export.declaration import Shown
from sidecar.log import StateLog
from sidecar.requests.messages import (
    Endings,
    FinishedRequest,
    Hello,
    HelloState,
    Outcome,
    PromptTotals,
    TemperatureTotals,
    Tick,
    Totals,
)
from sidecar.settings import load_settings

_TEMPERATURES = (0, 20, 60, 100)
_REQUESTS_A_POLL = 10


class Product:
    """One poll per second of a page whose numbers grow; each engine's plug-in counts the same as the page."""

    def __init__(self, page: bytes) -> None:
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        self.polls = 0
        self.settings = load_settings(None, {})
        self._state = State(self.settings, 0.0)
        self._sink = LoggedState(self._state, log, StateLog(log))
        self._reader, self._snapshots = PageReader(names.wanted(), self.settings.limits), SnapshotReader()
        self._page = page
        self._engines = self._read(page).engines
        for number, engine in enumerate(self._engines):
            self._state.plugin.heard(number, hello(engine))

    def shown(self) -> Shown:
        """The data that our page is made from."""
        return Shown(self._state.report(float(self.polls)), self.settings)

    def bodies(self, count: int) -> list[bytes]:
        """vLLM's next pages."""
        return [later(self._page, self.polls + step) for step in range(1, count + 1)]

    def poll(self, body: bytes) -> None:
        """Takes in what the plug-ins have sent since the last poll, then vLLM's page."""
        self.polls += 1
        for number, engine in enumerate(self._engines):
            self._state.plugin.heard(number, tick(engine, self.polls))
            for request in range(_REQUESTS_A_POLL):
                self._state.plugin.heard(number, finished(request, self.polls))
        self._sink.scraped(float(self.polls), 0.002, 1.0, self._read(body))

    def _read(self, body: bytes) -> PageSnapshot:
        return self._snapshots.read(self._reader.read(body))


def hello(engine: EngineSnapshot) -> Hello:
    return Hello(
        plugin="1",
        vllm="0.32.0",
        model=engine.key.model_name,
        engine=int(engine.key.engine),
        start=f"life {engine.key.engine}",
        started=0.0,
        state=HelloState.OBSERVING,
    )


def tick(engine: EngineSnapshot, poll: int) -> Tick:
    """The page's numbers at this poll, split equally by temperature; the last one also gets the remainder."""
    whole = [int(engine.counters[one]) * (poll + 1) for one in SPECULATION]
    rows, left = [], list(whole)
    for temperature in _TEMPERATURES:
        last = temperature == _TEMPERATURES[-1]
        part = list(left) if last else [one // len(_TEMPERATURES) for one in whole]
        left = [one - taken for one, taken in zip(left, part, strict=True)]
        positions = (part[0], part[0], part[1] - 2 * part[0] if part[1] > 2 * part[0] else 0)
        ended = Endings(poll, poll, 0, 0)
        rows.append(TemperatureTotals(temperature, ended, part[0], part[1], part[2], positions, (part[2], 0, 0)))
    prompts = tuple(PromptTotals(key, poll, *(one // 2 for one in whole)) for key in (8, 12))
    return Tick(at=float(poll), lost=0, total=Totals(*whole), temperature=tuple(rows), prompt=prompts)


def finished(number: int, poll: int) -> FinishedRequest:
    """A request that took four seconds."""
    end = poll - number / _REQUESTS_A_POLL
    return FinishedRequest(
        temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
        drafts=90,
        draft_tokens=270,
        accepted_tokens=110,
        lengths=(20, 40, 20, 10),
        prompt_tokens=300,
        cached_tokens=None,
        output_tokens=200,
        arrival=end - 4.0,
        first_token=end - 3.8,
        last_token=end,
        outcome=Outcome.STOPPED,
    )
