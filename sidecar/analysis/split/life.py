"""One life of an engine's scheduler, as its plug-in reports it, cut by cut."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from typing import Final

from sidecar.analysis.split.comparison import Compared, Totals
from sidecar.analysis.split.growth import Growth
from sidecar.analysis.split.plugin_state import PluginEngineReport, PluginState
from sidecar.analysis.split.standing import Event, Standing, after
from sidecar.engine.engine_key import EngineKey
from sidecar.requests.keys import CellKey, Ending
from sidecar.requests.messages import (
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    StepKey,
    StepTally,
)
from sidecar.requests.tally import NO_REQUESTS, Numbers, Tally, tally_of

Cells = Mapping[CellKey, Numbers]
_NONE: Final = StepTally()


@dataclass(frozen=True, slots=True)
class LifeSteps:
    """A life's engine steps: those in which any request decodes, and those that only prefill."""

    decoding: StepTally = _NONE
    prefilling: StepTally = _NONE

    @classmethod
    def of(cls, cells: Mapping[StepKey, StepTally]) -> "LifeSteps":
        """The sums of a report's cells."""
        decoding = (tally for key, tally in cells.items() if key.decodes)
        prefilling = (tally for key, tally in cells.items() if not key.decodes)
        return cls(StepTally.sum(decoding), StepTally.sum(prefilling))

    @property
    def number(self) -> int:
        """Of both."""
        return self.decoding.steps + self.prefilling.steps

    def __add__(self, other: "LifeSteps") -> "LifeSteps":
        """The sum of both."""
        return LifeSteps(self.decoding + other.decoding, self.prefilling + other.prefilling)

    def __sub__(self, before: "LifeSteps") -> "LifeSteps":
        """The growth since ``before``."""
        return LifeSteps(self.decoding - before.decoding, self.prefilling - before.prefilling)


NO_STEPS: Final = LifeSteps()
# The plug-in has at most 1,024 combinations of keys, and one for each temperature past these.
MOST_CELLS: Final = 2_048
_MOST_STEP_CELLS: Final = 2_048
# About how many bytes Python takes for a cell, without its numbers and its name, and for a finished
# request, without its names; tests/analysis/test_lives.py measures both.
_CELL_BYTES: Final = 500
_NUMBER_BYTES: Final = 40
_STEP_CELL_BYTES: Final = 700
_REQUEST_BYTES: Final = 900
_NAME_BYTES: Final = 64
_LETTER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """One whole report: all that a life had counted at one moment.

    ``endings`` are of finished requests, ``steps`` of all loads together. ``at`` is the moment in
    Unix seconds, and ``heartbeat`` the number of all engine steps; None in the cut before the first
    report, in which nothing is counted. ``size`` is about how many bytes its cells take.
    """

    total: Tally = NO_REQUESTS
    cells: Cells = field(default_factory=dict)
    endings: Mapping[Ending, Tally] = field(default_factory=dict)
    steps: LifeSteps = NO_STEPS
    generation_tokens: int = 0
    at: float | None = None
    heartbeat: int | None = None
    size: int = 0

    @property
    def totals(self) -> Totals:
        """What is compared with vLLM's counters."""
        return {
            Compared.DRAFTS: self.total.drafts,
            Compared.DRAFT_TOKENS: self.total.draft_tokens,
            Compared.ACCEPTED_TOKENS: self.total.accepted_tokens,
            Compared.GENERATION_TOKENS: self.generation_tokens,
        }


class Life:
    """Takes in a plug-in's reports.

    Bounded whatever is sent: in cells, and in bytes, as the caller says how many there is room for.
    A report's parts are kept apart until the last one has arrived, so that ``latest`` is from one
    moment.
    """

    def __init__(self, hello: Hello, *, from_start: bool) -> None:
        """``from_start``: it began while this sidecar was listening.

        All that it counted is growth then.
        """
        self.hello = hello
        # The engine as vLLM's page names it; until a page has told, as the plug-in does.
        self.key = self.named
        self.standing = Standing.WAITS
        self.from_start = from_start
        self.connections: set[int] = set()
        self.heard_after = 0  # polls that had ended when it last said hello
        self.was_one_of_several = False  # another was connected as its engine at the same time
        self.has_counted = False  # its numbers have been part of the split
        self.was_polled = False  # it was known at a good poll

        self.reports = 0
        self.lost = 0  # finished requests that could not be sent
        # what it had counted before this sidecar listened
        self.first: Cut | None = Cut() if from_start else None
        self.latest = self.first
        self.begin_growth()
        self.confirmed: Cut | None = None  # the latest cut that counts
        self.finished: list[FinishedRequest] = []  # up to the latest cut
        # how many of them are in the first cut, so from before this sidecar listened
        self.early = 0

        self._has_fallen = False
        self._arriving: dict[CellKey, Numbers] = {}
        self._arriving_finished: list[FinishedRequest] = []
        self._arriving_size = 0  # of the cells, in bytes
        self._waiting_size = 0  # of the finished requests, in bytes
        self._sum: list[int] = []  # of the latest cut's cells
        self._steps: dict[StepKey, StepTally] = {}
        self._taken: Cut | None = None  # of which the steps have been taken

    @property
    def named(self) -> EngineKey:
        """The engine as its plug-in names it: by the number that vLLM itself gives it."""
        return EngineKey(self.hello.model or "", str(self.hello.engine))

    @property
    def report(self) -> PluginEngineReport:
        """What is shown of its plug-in."""
        has_drafted = self.latest is not None and self.latest.total.drafts > 0
        state = PluginState.OBSERVING if has_drafted else PluginState.IDLE
        if self.hello.state is HelloState.DISABLED:
            state = PluginState.DISABLED
        elif not self.observes:
            state = PluginState.REFUSED

        return PluginEngineReport(
            model_name=self.key.model_name,
            engine=self.key.engine,
            version=self.hello.plugin,
            vllm_version=self.hello.vllm or "",
            state=state,
            reason=self.hello.reason,
            speculates=self.hello.speculation is not None,
        )

    @property
    def observes(self) -> bool:
        """Whether its latest hello says that it observes."""
        return self.hello.state is HelloState.OBSERVING

    @property
    def is_blank(self) -> bool:
        """Whether it has counted nothing."""
        return self.latest is not None and not any(self.latest.totals.values())

    @property
    def is_consistent(self) -> bool:
        """Whether no number ever fell."""
        return not self._has_fallen

    # What it takes

    @property
    def size(self) -> int:
        """About how many bytes its cells take."""
        cuts = {id(cut): cut.size for cut in (self.first, self.confirmed, self.latest) if cut}
        steps = _STEP_CELL_BYTES * len(self._steps)
        return sum(cuts.values()) + self._arriving_size + steps

    @property
    def waiting_size(self) -> int:
        """About how many bytes the finished requests that wait for the next poll take."""
        return self._waiting_size

    def abandon_requests(self) -> int:
        """Drops the finished requests that wait; returns how many."""
        dropped = len(self.finished) + len(self._arriving_finished)
        self.finished.clear()
        self._arriving_finished.clear()
        self._waiting_size = 0
        return dropped

    def forget_cells(self) -> None:
        """Drops all cells of a life that has left and is not confirmed: it may send them again."""
        self.forget_unsettled()
        self.first = Cut() if self.from_start else None
        self.latest = self.first
        self._sum = []

    def forget_start(self) -> None:
        """It may have begun before this sidecar listened, and all that it has counted so far."""
        self.from_start = False
        if self.latest == Cut():  # it has reported nothing, or nothing that is kept
            self.latest = None
        self.first = self.latest
        self.early = len(self.finished)

    def follow(self, event: Event) -> None:
        """Its next standing."""
        before = self.standing
        self.standing = after(before, event)
        if self.standing is before:
            return
        if self.standing is Standing.ELSEWHERE:
            self.confirmed = None
            self.has_counted &= event is not Event.REPLACED
            self.rest()
        elif before is Standing.ELSEWHERE or event is Event.RESTARTED:
            self._begin_again()

    def rest(self) -> None:
        """It is another vLLM's: while it is not connected, none of its cells are needed."""
        if not self.connections:
            self.forget_cells()
            self.forget_start()

    def _begin_again(self) -> None:
        """What it had counted until now is part of another vLLM's split, or of none."""
        self.confirmed = None
        if self.has_counted or not self.from_start:
            self.has_counted = False
            self.forget_start()
        self.begin_growth()

    def begin_growth(self) -> None:
        """Only what it tells from now on is compared with vLLM's counters."""
        self.growth = Growth(self.latest.totals if self.latest is not None else None)

    def forget_arriving(self) -> None:
        """Drops a report that is not whole: after a hello, its cells are sent again."""
        self._arriving.clear()
        self._arriving_size = 0

    def forget_unsettled(self) -> None:
        """Drops all that the next connection sends again: it sends every cell."""
        self.forget_arriving()
        self._steps.clear()

    # What it gives

    def take_steps(self) -> LifeSteps:
        """The growth of the confirmed cut's steps since the last call.

        At the first call, it is the growth since this sidecar was listening.
        """
        before = self._taken or self.first
        self._taken = self.confirmed
        if before is None or self._taken is None:
            return NO_STEPS
        return self._taken.steps - before.steps

    def take_finished(self) -> tuple[list[FinishedRequest], list[FinishedRequest]]:
        """The finished requests up to the latest cut: those of the first one, and those after."""
        early = self.finished[: self.early]
        recent = self.finished[self.early :]
        self.finished = []
        self.early = 0
        self._waiting_size = sum(map(_request_size, self._arriving_finished))
        return early, recent

    # What it is sent

    def receive(self, part: ReportPart, *, room: int, request_room: int) -> int:
        """Takes in a part of a report; returns how many of its cells and requests had no room.

        ``room`` is how many bytes more its cells may take, ``request_room`` how many more the
        finished requests may that wait for the next poll.
        """
        dropped = self._take_requests(part.finished, request_room)
        dropped += self._take_cells(part.cells, room)
        dropped += self._take_steps(part.steps, room)
        if part.end is not None:
            self.lost = max(part.end.lost, self.lost)
            self._complete(part.end)
        elif self.latest is not None and not self._arriving:  # they come after the end of their cut
            self._release_finished()

        return dropped

    def _take_cells(self, cells: Iterable[tuple[CellKey, Numbers]], room: int) -> int:
        """Returns how many had no room."""
        known = self.latest.cells if self.latest is not None else {}
        dropped = 0
        for key, numbers in cells:
            size = cell_size(key, numbers)
            is_new = key not in known and key not in self._arriving
            is_full = is_new and len(known) + len(self._arriving) >= MOST_CELLS
            if size > room or is_full:
                dropped += 1
                continue
            room -= size
            self._arriving[key] = numbers
            self._arriving_size += size
        return dropped

    def _take_requests(self, requests: Sequence[FinishedRequest], room: int) -> int:
        """Returns how many had no room."""
        for place, request in enumerate(requests):
            size = _request_size(request)
            if size > room:
                return len(requests) - place
            room -= size
            self._waiting_size += size
            self._arriving_finished.append(request)
        return 0

    def _take_steps(self, cells: Iterable[tuple[StepKey, StepTally]], room: int) -> int:
        """Returns how many had no room."""
        dropped = 0
        for key, tally in cells:
            if key not in self._steps:
                if room < _STEP_CELL_BYTES or len(self._steps) >= _MOST_STEP_CELLS:
                    dropped += 1
                    continue
                room -= _STEP_CELL_BYTES
            self._steps[key] = tally
        return dropped

    def _complete(self, end: ReportEnd) -> None:
        """Makes a cut of the report that has arrived."""
        before = self.latest or Cut()
        cells = before.cells
        size = before.size
        total = before.total
        if self._arriving:
            cells = self._with_arrived(before.cells)
            size = sum(cell_size(key, numbers) for key, numbers in cells.items())
            total = tally_of(self._sum)

        steps = LifeSteps.of(self._steps)
        if steps.number < before.steps.number:  # some cells had no room
            steps = before.steps

        has_gone_on = total != before.total or end.generation_tokens != before.generation_tokens
        self._has_fallen |= end.generation_tokens < before.generation_tokens
        self.forget_arriving()
        self.latest = Cut(
            total=total,
            cells=cells,
            endings=end.endings,
            steps=steps,
            generation_tokens=end.generation_tokens,
            at=end.at,
            heartbeat=end.steps,
            size=size,
        )
        self.growth.report(end.at, self.latest.totals)
        if has_gone_on:
            self.reports += 1

        self._release_finished()
        if self.first is None:
            self.first = self.latest
            self.early = len(self.finished)

    def _with_arrived(self, before: Cells) -> Cells:
        cells = dict(before)
        for key, numbers in self._arriving.items():
            if not self._sum:
                self._sum = [0] * len(numbers)
            known = cells.get(key, (0,) * len(self._sum))
            growth = [*map(sub, numbers, known)]
            self._has_fallen |= len(growth) != len(self._sum) or min(growth) < 0
            self._sum = [*map(add, self._sum, growth)]
            cells[key] = numbers
        return cells

    def _release_finished(self) -> None:
        self.finished += self._arriving_finished
        self._arriving_finished.clear()


def cell_size(key: CellKey, numbers: Numbers) -> int:
    """About how many bytes a cell takes."""
    letters = len(key.adapter or "")
    return _CELL_BYTES + _NUMBER_BYTES * len(numbers) + _LETTER_BYTES * letters


def _request_size(request: FinishedRequest) -> int:
    """About how many bytes a finished request takes."""
    letters = len(request.adapter or "") + sum(map(len, request.parameters))
    names = 1 + len(request.parameters)
    return _REQUEST_BYTES + _NAME_BYTES * names + _LETTER_BYTES * letters
