"""One life of an engine's scheduler, as its plug-in reports it: the merged totals and their growth."""

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

Row = TemperatureTotals | GroupTotals | StepTotals
_Key = tuple[type[Row], int | str]


class PluginEngine:
    """Bounded whatever is sent: a table has at most ``MAX_KEYS`` keys and "other"."""

    def __init__(self, hello: Hello, *, whole: bool) -> None:
        """``whole``: it started while this sidecar was listening, so all of its totals are growth."""
        self.hello = hello
        self.whole = whole
        self.is_over = False  # vLLM has restarted since
        self.connections: set[int] = set()
        self.total: Totals | None = None  # None before the first tick
        self.tick_growth = 0  # draft tokens in the last tick, which may come in several packets
        self._before = (0.0, 0)  # when that tick began, and the draft tokens until then
        self.lost = 0  # finished requests that could not be sent
        self._rows: dict[_Key, Row] = {}
        self._sizes: Tally[type[Row]] = Tally()  # of the tables in ``_rows``
        self._taken: dict[_Key, Row] = {}
        self._old: dict[_Key, Row] = {}  # as first received, if it may predate this sidecar; until it is taken
        self._changed: set[_Key] = set()

    @property
    def counts(self) -> bool:
        """Whether its latest hello says that it observes."""
        return self.hello.state is HelloState.OBSERVING

    @property
    def observes(self) -> bool:
        """Whether it is connected and observes."""
        return bool(self.connections) and self.counts

    @property
    def drafted(self) -> int | None:
        """Its draft tokens; None before the first tick, and once it has said that it no longer counts."""
        if self.total is None or not self.counts:
            return None
        return self.total.draft_tokens

    @property
    def disabled(self) -> str | None:
        """Why the plug-in disabled itself; None if it did not."""
        return self.hello.reason if self.hello.state is HelloState.DISABLED else None

    def tick(self, tick: Tick) -> int:
        """Takes in totals; a missing row has not changed. Returns how many rows were past their table's limit."""
        drafted = tick.total.draft_tokens
        if abs(tick.at - self._before[0]) >= _TICK:
            self._before = (tick.at, self.total.draft_tokens if self.total is not None else drafted)
        self.tick_growth = max(drafted - self._before[1], 0)
        self.total, self.lost = tick.total, max(tick.lost, self.lost)
        overflowed = 0
        rows: Iterable[Row] = (*tick.temperature, *tick.prompt, *tick.output, *tick.adapter, *tick.steps)
        for row in rows:
            key = (type(row), row[0])
            if key not in self._rows:
                if self._sizes[key[0]] > MAX_KEYS:
                    overflowed += 1
                    continue
                self._sizes[key[0]] += 1
                if not self.whole:
                    self._old[key] = row
            self._rows[key] = row
            self._changed.add(key)
        return overflowed

    def take_growth(self) -> Iterator[tuple[Row, Sequence[float], bool]]:
        """The rows that have grown since the last call, each with its growth and whether that is recent.

        The growth has the form of ``Counts`` or, for ``StepTotals``, of that row's fields after the key. What was
        counted before this sidecar was listening is not recent, however late the rows are taken.
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
