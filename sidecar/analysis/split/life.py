"""One life of an engine's scheduler, as its plug-in reports it, cut by cut."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sidecar.analysis.split.plugin_state import PluginEngineReport, PluginState
from sidecar.analysis.split.trust import Trust
from sidecar.engine.plan import EngineKey
from sidecar.requests.messages import (
    MAX_KEYS,
    FinishedRequest,
    Hello,
    HelloState,
    ReportPart,
    StepKey,
    StepTally,
    Table,
    TallyRow,
)
from sidecar.requests.tally import NOTHING, Tally

Rows = Mapping[int | str, TallyRow]
NO_STEPS: Final = StepTally()


@dataclass(frozen=True, slots=True)
class Cut:
    """One whole report: all that a life had counted at one moment.

    ``steps`` are of all loads together.
    """

    total: Tally = NOTHING
    tables: Mapping[Table, Rows] = field(default_factory=lambda: {table: {} for table in Table})
    steps: StepTally = NO_STEPS


class Life:
    """Takes in a plug-in's reports.

    Bounded whatever is sent: a table has at most ``MAX_KEYS`` keys and "other". A report's parts
    are kept apart until the last one has arrived, so that ``latest`` is from one moment.
    """

    def __init__(self, hello: Hello, *, from_start: bool) -> None:
        """``from_start``: it began while this sidecar was listening.

        All that it counted is growth then.
        """
        self.hello = hello
        self.from_start = from_start
        self.trust = Trust()
        self.connections: set[int] = set()
        self.is_over = False  # its process of vLLM has ended
        self.is_before_reset = False  # vLLM's counters of its engine have started again at 0 since
        # the tables sum to the total, finished requests to no more, and no number ever fell
        self.is_consistent = True
        self._adds_up, self._has_fallen = True, False
        self.lost = 0  # finished requests that could not be sent
        self.reports = 0
        # what it had counted before this sidecar listened
        self.first: Cut | None = Cut() if from_start else None
        self.latest = self.first
        self.confirmed: Cut | None = None  # the latest cut that vLLM's counters confirmed
        self.finished: list[FinishedRequest] = []  # up to the latest cut
        # how many of them are in the first cut, so from before this sidecar listened
        self.early = 0
        self._finished_sum = NOTHING  # of all of them
        self._steps: dict[StepKey, StepTally] = {}
        self._taken: Cut | None = None  # of which the steps have been taken
        self._arriving: dict[tuple[Table, int | str], TallyRow] = {}
        self._arriving_finished: list[FinishedRequest] = []

    @property
    def key(self) -> EngineKey:
        """The engine as vLLM's page names it."""
        return EngineKey(self.hello.model or "", str(self.hello.engine))

    @property
    def report(self) -> PluginEngineReport:
        """What is shown of its plug-in."""
        state = PluginState(self.hello.state)
        is_idle = state is PluginState.OBSERVING and not (self.latest and self.latest.total.drafts)
        return PluginEngineReport(
            model_name=self.key.model_name,
            engine=self.key.engine,
            version=self.hello.plugin,
            vllm_version=self.hello.vllm or "",
            state=PluginState.IDLE if is_idle else state,
            reason=self.hello.reason,
        )

    @property
    def observes(self) -> bool:
        """Whether its latest hello says that it observes."""
        return self.hello.state is HelloState.OBSERVING

    @property
    def waiting(self) -> int:
        """Finished requests that wait for the next poll."""
        return len(self.finished) + len(self._arriving_finished)

    def abandon(self) -> int:
        """Drops the finished requests that wait; returns how many."""
        dropped = self.waiting
        self.finished.clear()
        self._arriving_finished.clear()
        return dropped

    def take_steps(self) -> StepTally:
        """The growth of the confirmed cut's steps since the last call.

        At the first call, it is the growth since this sidecar was listening.
        """
        before, self._taken = self._taken or self.first, self.confirmed
        if before is None or self._taken is None:
            return NO_STEPS
        return self._taken.steps - before.steps

    def receive(self, part: ReportPart, room: int) -> int:
        """Takes in a part of a report; returns how many of its rows and requests had no room.

        The requests are finished ones; ``room`` is how many more of them may wait.
        """
        dropped = max(len(part.finished) - room, 0)
        self._arriving_finished += part.finished[: max(room, 0)]

        known = self.latest.tables if self.latest is not None else Cut().tables
        new = Counter(table for table, key in self._arriving if key not in known[table])
        for table, row in part.rows:
            if row.key not in known[table] and (table, row.key) not in self._arriving:
                if len(known[table]) + new[table] > MAX_KEYS:
                    dropped += 1
                    continue
                new[table] += 1
            self._arriving[table, row.key] = row

        self._steps.update({row.key: row.counts for row in part.steps})  # bounded by its key
        if part.end is not None:
            self.lost = max(part.end.lost, self.lost)
            self._complete(part.end.total)

        return dropped

    def _complete(self, total: Tally) -> None:
        """Makes a cut of the report that has arrived."""
        before = self.latest or Cut()
        tables = before.tables
        if self._arriving or total != before.total:  # else there are only more finished requests
            tables = self._with_arrived(before.tables)
            self._adds_up = all(
                _sums_to(total, rows.values())
                for table, rows in tables.items()
                if table.sums_to_total
            )
            # the table of temperatures is what the split is made of
            self._adds_up &= bool(tables[Table.TEMPERATURE]) or total == NOTHING
        self._has_fallen |= total.has_fallen(before.total)

        self.finished += self._arriving_finished
        self.early = self.early if self.first else len(self.finished)
        self._finished_sum += _sum(self._arriving_finished)
        self.is_consistent = self._adds_up and not (
            self._has_fallen or total.has_fallen(self._finished_sum)
        )

        self._arriving.clear()
        self._arriving_finished.clear()
        self.latest = Cut(total, tables, sum(self._steps.values(), NO_STEPS))
        self.first = self.first or self.latest
        # else it is of the same moment, with more finished requests
        self.reports += total != before.total

    def _with_arrived(self, before: Mapping[Table, Rows]) -> Mapping[Table, Rows]:
        tables = {table: dict(rows) for table, rows in before.items()}
        for (table, key), row in self._arriving.items():
            known = tables[table].get(key)
            self._has_fallen |= known is not None and row.counts.has_fallen(known.counts)
            tables[table][key] = row
        return tables


def _sum(requests: Collection[FinishedRequest]) -> Tally:
    outcomes: dict[str, Any] = {**Counter(request.outcome for request in requests)}
    return Tally(
        **outcomes,
        drafts=sum(request.drafts for request in requests),
        draft_tokens=sum(request.draft_tokens for request in requests),
        accepted_tokens=sum(request.accepted_tokens for request in requests),
    )


_SUMMED: Final = ("requests", "drafts", "draft_tokens", "accepted_tokens")


def _sums_to(total: Tally, rows: Collection[TallyRow]) -> bool:
    """Whether a table's rows are the ``total``; a table that a plug-in does not send is empty."""
    return not rows or all(
        sum(getattr(row.counts, name) for row in rows) == getattr(total, name) for name in _SUMMED
    )
