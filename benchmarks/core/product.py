"""The path from vLLM's page and the plug-in's messages to our own page.

There is no network, and the time is simulated.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import structlog

from benchmarks.core.pages import later
from sidecar.analysis.state import State
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import SPECULATION
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot, SnapshotReader
from sidecar.export.changes import LoggedState
from sidecar.export.declaration import Shown
from sidecar.log import StateLog
from sidecar.requests.messages import (
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    Row,
    TallyRow,
)
from sidecar.requests.tables import Table
from sidecar.requests.tally import Outcome, Tally
from sidecar.settings import load_settings

_TEMPERATURES = (0, 20, 60, 100)
_REQUESTS_A_POLL = 10
_REQUESTS_ENDED = 125  # at most, per poll; those that are not reported count as lost
_COUNTED = attrgetter("drafts", "draft_tokens", "accepted_tokens")


class Product:
    """One poll per second of a page whose numbers grow.

    Each engine's plug-in counts the same as the page.
    """

    def __init__(self, page: bytes) -> None:
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        self.polls = 0
        self.settings = load_settings(None, {})
        self._state = State(self.settings, 0.0)
        self._sink = LoggedState(self._state, log, StateLog(log), self.settings.measured)
        self._reader = PageReader(names.wanted(), self.settings.limits)
        self._snapshots = SnapshotReader()
        self._page = page
        self._engines = self._read(page).engines
        for number, engine in enumerate(self._engines):
            self._state.plugin.receive(number, hello(engine))

    def shown(self) -> Shown:
        """The data that our page is made from."""
        tree = self._state.report(float(self.polls))
        assert all(model.temperatures for model in tree.models), (
            "the split by temperature is withheld"
        )
        return Shown(tree, self.settings)

    def bodies(self, count: int) -> list[bytes]:
        """vLLM's next pages."""
        return [later(self._page, self.polls + step) for step in range(1, count + 1)]

    def poll(self, body: bytes) -> None:
        """Takes in what the plug-ins have sent since the last poll, then vLLM's page."""
        self.polls += 1
        for number, engine in enumerate(self._engines):
            requests = [finished(request, self.polls) for request in range(_REQUESTS_A_POLL)]
            self._state.plugin.receive(number, report(engine, self.polls, requests))
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


def report(engine: EngineSnapshot, poll: int, requests: Sequence[FinishedRequest]) -> ReportPart:
    """The page's numbers at this poll, split equally by temperature.

    The last temperature also gets the remainder.
    """
    ended = _REQUESTS_ENDED * poll
    total = _tally([int(engine.counters[counter]) * (poll + 1) for counter in SPECULATION], ended)
    part = _tally(
        [count // len(_TEMPERATURES) for count in _COUNTED(total)], ended // len(_TEMPERATURES)
    )
    rows, left = list[TallyRow](), total
    for temperature in _TEMPERATURES:
        row = left if temperature == _TEMPERATURES[-1] else part
        left = left - row
        rows.append(Row(key=temperature, since=0.0, counts=_with_positions(row)))
    other = replace(total, drafts=0, draft_tokens=0, accepted_tokens=0, stopped=0)
    prompts: tuple[TallyRow, ...] = (
        Row(key=8, since=0.0, counts=total),
        Row(key=12, since=0.0, counts=other),
    )
    end = ReportEnd(total=total, lost=0)
    tables = {Table.TEMPERATURE: tuple(rows), Table.PROMPT_TOKENS: prompts}
    return ReportPart(tables=tables, finished=tuple(requests), end=end)


def _tally(counts: Sequence[int], stopped: int) -> Tally:
    drafts, draft_tokens, accepted_tokens = counts
    return Tally(
        stopped=stopped, drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted_tokens
    )


def _with_positions(tally: Tally) -> Tally:
    each = (tally.drafts, tally.drafts, tally.draft_tokens - 2 * tally.drafts)
    return replace(
        tally, drafted_at=each, accepted_at=(min(tally.accepted_tokens, tally.drafts), 0, 0)
    )


def finished(number: int, poll: int) -> FinishedRequest:
    """A request that took four seconds."""
    end = poll - number / _REQUESTS_A_POLL
    return FinishedRequest(
        temperature=_TEMPERATURES[number % len(_TEMPERATURES)],
        drafts=3,
        draft_tokens=9,
        accepted_tokens=5,
        prompt_tokens=300,
        output_tokens=200,
        arrival=end - 4.0,
        first_token=end - 3.8,
        last_token=end,
        outcome=Outcome.STOPPED,
    )
