"""One life of an engine's scheduler, as its plug-in tells it: totals put together, and what they have grown by."""

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from sidecar.analysis.live_totals import Counts, group_counts, temperature_counts
from sidecar.requests.messages import (
    MAX_KEYS,
    GroupTotals,
    Hello,
    HelloState,
    StepTotals,
    TemperatureTotals,
    Tick,
    Totals,
)

_TICK: Final = 0.9  # seconds: one, less the steps' jitter
_FIRST_TICK: Final = 2.0  # seconds that the first tick's packets may take
_FIRST_ROWS: Final = 20.0  # seconds until the last of many rows has come for the first time

Row = TemperatureTotals | GroupTotals | StepTotals
_Key = tuple[type[Row], int | str]


class PluginEngine:
    """Bounded whatever is sent: a table has so many keys."""

    def __init__(self, hello: Hello, *, whole: bool) -> None:
        """``whole``: it started while this sidecar listened, so all of its totals are growth."""
        self.hello = hello
        self.connections: set[int] = set()
        self.total = Totals(0, 0, 0)
        self.tick_growth = 0  # draft tokens in the last tick, which may come in several packets
        self.tick_at: float | None = None
        self.lost = 0  # finished requests that could not be sent
        self._first_tick_at: float | None = 0.0 if whole else None
        self._before = (0.0, 0)  # when the last tick began, and the draft tokens until then
        self._rows: dict[_Key, Row] = {}
        self._sizes: Tally[type[Row]] = Tally()  # rows by table
        self._taken: dict[_Key, Row] = {}
        self._old: dict[_Key, Row] = {}  # as it was when this sidecar began to listen; until it is taken
        self._changed: set[_Key] = set()

    @property
    def observes(self) -> bool:
        """Whether it is connected and observes."""
        return bool(self.connections) and self.hello.state is HelloState.OBSERVING

    @property
    def counts(self) -> bool:
        """Whether it has counted, and has not said that it counts no more."""
        return self.tick_at is not None and self.hello.state is HelloState.OBSERVING

    @property
    def disabled(self) -> str | None:
        """Why the plug-in took itself out; None if it did not."""
        return self.hello.reason if self.hello.state is HelloState.DISABLED else None

    @property
    def recent(self) -> bool:
        """Whether growth is of now, rather than of the time before this sidecar listened."""
        return self._first_tick_at is not None and (self.tick_at or 0.0) >= self._first_tick_at + _FIRST_TICK

    def tick(self, tick: Tick) -> int:
        """Takes in totals; rows that are not there have not changed. Returns how many are past a table's bound."""
        if self.tick_at is not None and self._first_tick_at is not None and tick.at < self.tick_at:
            set_back = self.tick_at - tick.at  # the clock was: what came before it is as long ago as it was
            self._first_tick_at -= set_back
            self._before = (self._before[0] - set_back, self._before[1])
        if self._first_tick_at is None:
            self._first_tick_at, self._before = tick.at, (tick.at, tick.total.draft_tokens)
        elif tick.at - self._before[0] >= _TICK:
            self._before = (tick.at, self.total.draft_tokens)
        self.tick_growth = max(tick.total.draft_tokens - self._before[1], 0)
        self.total, self.tick_at, self.lost = tick.total, tick.at, max(tick.lost, self.lost)
        overflowed = 0
        rows: Iterable[Row] = (*tick.temperature, *tick.prompt, *tick.output, *tick.adapter, *tick.steps)
        for row in rows:
            key = (type(row), row[0])
            if key not in self._rows:
                if self._sizes[key[0]] > MAX_KEYS:
                    overflowed += 1
                    continue
                self._sizes[key[0]] += 1
            if self._is_old(key, tick.at):
                self._old[key] = row
            self._rows[key] = row
            self._changed.add(key)
        return overflowed

    def _is_old(self, key: _Key, at: float) -> bool:
        """Whether what comes at ``at`` was counted before this sidecar listened."""
        first = self._first_tick_at or 0.0
        return at < first + (_FIRST_TICK if key in self._rows else _FIRST_ROWS)

    def take_growth(self) -> Iterator[tuple[Row, Sequence[float], bool]]:
        """The rows that have grown since the last time, each with its growth, and whether that is recent.

        The growth has the form of ``Counts``; of ``StepTotals`` it has that row's fields after the key. What was
        counted before this sidecar listened is not recent, however late the rows are taken.
        """
        for key in sorted(self._changed, key=str):
            for row, recent in ((self._old.pop(key, None), False), (self._rows[key], True)):
                before = self._taken.get(key)
                if row is None:
                    continue
                old = _counts(before) if before is not None else ()
                grown = [max(b - a, 0) for a, b in zip_longest(old, _counts(row), fillvalue=0)]
                self._taken[key] = row
                if any(grown):
                    yield row, grown, recent
        self._changed.clear()


def _counts(row: Row) -> Counts | tuple[float, ...]:
    if isinstance(row, StepTotals):
        return row[1:]
    return temperature_counts(row) if isinstance(row, TemperatureTotals) else group_counts(row)
