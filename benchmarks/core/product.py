"""The path from vLLM's page and the plug-in's messages to our own page.

There is no network, and the time is simulated.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import Any

import structlog

from benchmarks.core.pages import later
from sidecar.analysis.state import State
from sidecar.engine import names
from sidecar.engine.exposition import PageReader
from sidecar.engine.names import SPECULATION
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot, SnapshotReader
from sidecar.export.changes import LoggedState
from sidecar.export.declaration import ReportView
from sidecar.log import StateLog
from sidecar.requests.keys import CellKey
from sidecar.requests.messages import (
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
)
from sidecar.requests.tally import Outcome
from sidecar.settings import load_settings
from tests.cells import numbers

_TEMPERATURES = (0, 20, 60, 100)
_REQUESTS_A_POLL = 10
_REQUESTS_ENDED = 125  # at most, per poll; those that are not reported count as lost


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

    def shown(self) -> ReportView:
        """The data that our page is made from."""
        tree = self._state.report(float(self.polls))
        assert all(model.temperatures for model in tree.models), (
            "the split by temperature is withheld"
        )
        return ReportView(tree, self.settings)

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
    counted = [int(engine.counters[counter]) * (poll + 1) for counter in SPECULATION]
    whole = [_REQUESTS_ENDED * poll, *counted]
    part = [number // len(_TEMPERATURES) for number in whole]
    rest = [
        number - each * (len(_TEMPERATURES) - 1) for number, each in zip(whole, part, strict=True)
    ]

    end = ReportEnd(
        at=float(poll),
        steps=poll,
        generation_tokens=int(engine.counters[names.Counter.GENERATION_TOKENS]) * (poll + 1),
        running=0,
        waiting=0,
        lost=0,
        endings={},
    )
    cells = tuple(
        (CellKey(temperature, 0, 8, None), numbers(*(rest if is_last else part)))
        for temperature in _TEMPERATURES
        for is_last in [temperature == _TEMPERATURES[-1]]
    )
    return ReportPart(cells=cells, finished=tuple(requests), end=end)


def packed(part: ReportPart) -> dict[str, Any]:
    """A part of a report as the plug-in sends it."""
    end = None
    if part.end is not None:
        end = {**asdict(part.end), "endings": {}}
    return {
        "requests": [[*astuple(key), counted] for key, counted in part.cells],
        "steps": [],
        "finished": [_packed(request) for request in part.finished],
        "end": end,
    }


def _packed(request: FinishedRequest) -> list[Any]:
    return [
        request.temperature,
        0,
        request.adapter,
        request.prompt_tokens,
        request.cached_tokens,
        request.output_tokens,
        request.outcome,
        request.ending,
        request.drafts,
        request.draft_tokens,
        request.accepted_tokens,
        request.arrival,
        request.first_token,
        request.last_token,
    ]


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
