"""One life of an engine's scheduler, as its plug-in reports it, cut by cut."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sidecar.analysis.split.comparison import Compared, Totals
from sidecar.analysis.split.growth import Growth
from sidecar.analysis.split.plugin_state import PluginEngineReport, PluginState
from sidecar.analysis.split.standing import Event, Standing, after
from sidecar.engine.identity import EngineKey
from sidecar.requests.messages import (
    MAX_KEYS,
    TABLES_OF_VERSION_2,
    FinishedRequest,
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    Row,
    StepKey,
    StepTally,
    TallyRow,
)
from sidecar.requests.tables import Table
from sidecar.requests.tally import NO_REQUESTS, Outcome, Tally

TableRows = Mapping[int | str, TallyRow]
NO_STEPS: Final = StepTally()
# About how many bytes Python takes for a row, without its positions and its name, and for a
# finished request, without its names; tests/analysis/test_lives.py measures both.
_ROW_BYTES: Final = 900
_POSITION_BYTES: Final = 40
_STEP_ROW_BYTES: Final = 700
_REQUEST_BYTES: Final = 900
_LETTER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """One whole report: all that a life had counted at one moment.

    ``tables`` are those that the plug-in sends. ``steps`` are of all loads together.
    ``generation_tokens``, ``at``, the moment in Unix seconds, and ``heartbeat``, the number of all
    engine steps, are None where the plug-in does not say. ``size`` is about how many bytes its rows
    take.
    """

    total: Tally = NO_REQUESTS
    tables: Mapping[Table, TableRows] = field(default_factory=dict)
    steps: StepTally = NO_STEPS
    generation_tokens: int | None = None
    at: float | None = None
    heartbeat: int | None = None
    size: int = 0

    @property
    def totals(self) -> Totals:
        """What is compared with vLLM's counters."""
        totals = {
            Compared.DRAFTS: self.total.drafts,
            Compared.DRAFT_TOKENS: self.total.draft_tokens,
            Compared.ACCEPTED_TOKENS: self.total.accepted_tokens,
        }
        if self.generation_tokens is not None:
            totals[Compared.GENERATION_TOKENS] = self.generation_tokens
        return totals


class Life:
    """Takes in a plug-in's reports.

    Bounded whatever is sent: in rows, as a table has at most ``MAX_KEYS`` keys and "other", and in
    bytes, as the caller says how many there is room for. A report's parts are kept apart until the
    last one has arrived, so that ``latest`` is from one moment.
    """

    def __init__(self, hello: Hello, growth: Growth, *, from_start: bool) -> None:
        """``from_start``: it began while this sidecar was listening.

        All that it counted is growth then.
        """
        self.hello = hello
        # The engine as vLLM's page names it; until a page has told, as the plug-in does.
        self.key = self.named
        self.growth = growth
        self.standing = Standing.WAITS
        self.from_start = from_start
        self.connections: set[int] = set()
        self.heard_after = 0  # polls that had ended when it last said hello
        self.has_counted = False  # its numbers have been part of the split

        self.reports = 0
        self.lost = 0  # finished requests that could not be sent
        # what it had counted before this sidecar listened
        self.first: Cut | None = Cut() if from_start else None
        self.latest = self.first
        self.latest_at = 0.0  # the first poll at which ``latest`` was there
        self.confirmed: Cut | None = None  # the latest cut that counts
        self.finished: list[FinishedRequest] = []  # up to the latest cut
        # how many of them are in the first cut, so from before this sidecar listened
        self.early = 0

        self._adds_up = True
        self._has_fallen = False
        self._finished_sum = NO_REQUESTS  # of all finished requests
        self._arriving: dict[Table, dict[int | str, TallyRow]] = {}
        self._new_keys: dict[Table, int] = {}  # of the arriving rows, those not in ``latest``
        self._arriving_finished: list[FinishedRequest] = []
        self._arriving_size = 0  # of the rows, in bytes
        self._waiting_size = 0  # of the finished requests, in bytes
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
        """Whether no report contradicted another.

        The tables sum to the total, finished requests to no more, and no number ever fell.
        """
        has_too_many = self.latest is not None and self.latest.total.has_fallen(self._finished_sum)
        return self._adds_up and not self._has_fallen and not has_too_many

    @property
    def tables(self) -> frozenset[Table]:
        """The tables that its plug-in sends.

        One of version 2 does not name them: it sends those that have rows.
        """
        if self.hello.tables is not None:
            return self.hello.tables
        if self.latest is None or self.latest.total == NO_REQUESTS:
            return TABLES_OF_VERSION_2
        return frozenset(table for table, rows in self.latest.tables.items() if rows)

    # What it takes

    @property
    def size(self) -> int:
        """About how many bytes its rows take."""
        cuts = {id(cut): cut.size for cut in (self.first, self.confirmed, self.latest) if cut}
        steps = _STEP_ROW_BYTES * len(self._steps)
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

    def forget_rows(self) -> None:
        """Drops all rows of a life that has left and is not confirmed: it may send them again."""
        self.forget_arriving()
        self.first = Cut() if self.from_start else None
        self.latest = self.first

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
            self.rest()
        elif before is Standing.ELSEWHERE or event is Event.RESTARTED:
            self._begin_again()

    def rest(self) -> None:
        """It is another vLLM's: while it is not connected, none of its rows are needed."""
        if not self.connections:
            self.forget_rows()
            self.forget_start()

    def _begin_again(self) -> None:
        """What it had counted until now is part of another vLLM's split, or of none."""
        self.growth = Growth()
        self.confirmed = None
        if self.has_counted or not self.from_start:
            self.has_counted = False
            self.forget_start()

    def forget_arriving(self) -> None:
        """Drops a report that is not whole: a new connection sends all rows again."""
        self._arriving.clear()
        self._new_keys.clear()
        self._arriving_size = 0

    # What it gives

    def take_steps(self) -> StepTally:
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
        self._waiting_size = _requests_size(self._arriving_finished)
        return early, recent

    # What it is sent

    def receive(self, part: ReportPart, *, room: int, request_room: int) -> int:
        """Takes in a part of a report; returns how many of its rows and requests had no room.

        ``room`` is how many bytes more its rows may take, ``request_room`` how many more the
        finished requests may that wait for the next poll.
        """
        dropped = self._take_requests(part.finished, request_room)
        for table, row in part.rows:
            size = row_size(row)
            if size > room or not self._has_key_for(table, row):
                dropped += 1
                continue
            room -= size
            self._take_row(table, row, size)

        dropped += self._take_step_rows(part.steps, room)
        if part.end is not None:
            self.lost = max(part.end.lost, self.lost)
            self._complete(part.end)

        return dropped

    def _take_requests(self, requests: Sequence[FinishedRequest], room: int) -> int:
        """Returns how many had no room."""
        for place, request in enumerate(requests):
            size = _requests_size([request])
            if size > room:
                return len(requests) - place
            room -= size
            self._waiting_size += size
            self._arriving_finished.append(request)
        return 0

    def _take_step_rows(self, rows: Iterable[Row[StepKey, StepTally]], room: int) -> int:
        """Returns how many had no room."""
        dropped = 0
        for row in rows:
            if row.key not in self._steps:
                if room < _STEP_ROW_BYTES:
                    dropped += 1
                    continue
                room -= _STEP_ROW_BYTES
            self._steps[row.key] = row.counts
        return dropped

    def _has_key_for(self, table: Table, row: TallyRow) -> bool:
        """Whether a row's table is one that it sends, and has the row's key or room for it."""
        if self.hello.tables is not None and table not in self.hello.tables:
            return False
        if self._is_known(table, row) or row.key in self._arriving.get(table, ()):
            return True
        return len(self._latest_rows(table)) + self._new_keys.get(table, 0) <= MAX_KEYS

    def _take_row(self, table: Table, row: TallyRow, size: int) -> None:
        arriving = self._arriving.setdefault(table, {})
        if row.key not in arriving and not self._is_known(table, row):
            self._new_keys[table] = self._new_keys.get(table, 0) + 1
        arriving[row.key] = row
        self._arriving_size += size

    def _is_known(self, table: Table, row: TallyRow) -> bool:
        return row.key in self._latest_rows(table)

    def _latest_rows(self, table: Table) -> TableRows:
        return self.latest.tables.get(table, {}) if self.latest is not None else {}

    def _complete(self, end: ReportEnd) -> None:
        """Makes a cut of the report that has arrived."""
        before = self.latest or Cut()
        has_new = bool(self._arriving) or end.total != before.total
        tables = before.tables
        size = before.size
        if has_new:  # else there are only more finished requests
            tables = self._with_arrived(before.tables)
            size = sum(row_size(row) for rows in tables.values() for row in rows.values())

        if end.total.has_fallen(before.total):
            self._has_fallen = True
        self.forget_arriving()

        self.latest = Cut(
            total=end.total,
            tables=tables,
            steps=sum(self._steps.values(), NO_STEPS),
            generation_tokens=end.generation_tokens,
            at=end.at,
            heartbeat=end.steps,
            size=size,
        )
        if has_new:
            self._adds_up = self._sums_up()

        if end.total != before.total or end.generation_tokens != before.generation_tokens:
            self.reports += 1  # else it is of the same moment, with more finished requests

        self.finished += self._arriving_finished
        self._finished_sum += _sum(self._arriving_finished)
        self._arriving_finished.clear()
        if self.first is None:
            self.first = self.latest
            self.early = len(self.finished)

    def _with_arrived(self, before: Mapping[Table, TableRows]) -> Mapping[Table, TableRows]:
        tables = {table: dict(rows) for table, rows in before.items()}
        for table, arrived in self._arriving.items():
            rows = tables.setdefault(table, {})
            for key, row in arrived.items():
                known = rows.get(key)
                self._has_fallen |= known is not None and row.counts.has_fallen(known.counts)
                rows[key] = row
        return tables

    def _sums_up(self) -> bool:
        """Whether each table that the plug-in sends sums to the total.

        The split is made of the table of temperatures, so that one must be there.
        """
        if self.latest is None or self.latest.total == NO_REQUESTS:
            return True
        if Table.TEMPERATURE not in self.tables:
            return False
        return all(
            _sums_to(self.latest.total, self.latest.tables.get(table, {}).values())
            for table in self.tables
            if table.declared.sums_to_total
        )


def row_size(row: TallyRow) -> int:
    """About how many bytes a row takes."""
    positions = len(row.counts.drafted_at) + len(row.counts.accepted_at)
    letters = len(row.key) if isinstance(row.key, str) else 0
    return _ROW_BYTES + _POSITION_BYTES * positions + _LETTER_BYTES * letters


def _requests_size(requests: Iterable[FinishedRequest]) -> int:
    """About how many bytes finished requests take."""
    size = 0
    for request in requests:
        names = [request.adapter or "", *request.parameters]
        size += _REQUEST_BYTES + sum(64 + _LETTER_BYTES * len(name) for name in names)
    return size


def _sum(requests: Collection[FinishedRequest]) -> Tally:
    """All of them as one tally, without positions."""
    outcomes = [request.outcome for request in requests]

    return Tally(
        stopped=outcomes.count(Outcome.STOPPED),
        length=outcomes.count(Outcome.LENGTH),
        repetition=outcomes.count(Outcome.REPETITION),
        aborted=outcomes.count(Outcome.ABORTED),
        error=outcomes.count(Outcome.ERROR),
        drafts=sum(request.drafts for request in requests),
        draft_tokens=sum(request.draft_tokens for request in requests),
        accepted_tokens=sum(request.accepted_tokens for request in requests),
    )


def _sums_to(total: Tally, rows: Collection[TallyRow]) -> bool:
    """Whether rows sum to the total."""
    counts = [row.counts for row in rows]
    return (
        sum(one.requests for one in counts) == total.requests
        and sum(one.drafts for one in counts) == total.drafts
        and sum(one.draft_tokens for one in counts) == total.draft_tokens
        and sum(one.accepted_tokens for one in counts) == total.accepted_tokens
    )
