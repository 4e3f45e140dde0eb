"""Under which label of a metric each row of the plug-in's tables is summed."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

from sidecar.analysis.split.life import Life, Rows
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.requests.messages import OTHER, Table
from sidecar.requests.tally import NOTHING, Tally

PROMPT_LABELS: Final = ("0-512", "512-2k", "2k-8k", "8k-32k", "32k+")
OUTPUT_LABELS: Final = ("free", "structured")
_PROMPT_EDGES: Final = (9, 11, 13, 15)  # the highest exponent of each but the last: 512 is 2**9
_MOST_ADAPTERS: Final = 16
_NO_ADAPTER: Final = "none"

Label = tuple[Table, str]
Tallies = Mapping[Label, Tally]


class Labels:
    """The labels of one model's requests."""

    def __init__(self, buckets: TemperatureBuckets, *, names_adapters: bool) -> None:
        """Without ``names_adapters``, the table of adapters, which may be names of tenants, is left out."""
        self._buckets = buckets
        self._names_adapters = names_adapters
        self._adapters: frozenset[str] = frozenset()  # those with a label of their own
        self.overflowed = 0  # adapters that are summed as "other"

    def name_adapters(self, lives: Iterable[Life]) -> bool:
        """Gives the adapters that appeared first, by the engines' clock, labels of their own; whether any changed."""
        since: dict[str, float] = {}
        for life in lives if self._names_adapters else ():
            for row in life.confirmed.tables[Table.ADAPTER].values() if life.confirmed is not None else ():
                since[str(row.key)] = min(row.since, since.get(str(row.key), row.since))
        named = frozenset(sorted(since, key=lambda name: (since[name], name))[:_MOST_ADAPTERS])
        before, self._adapters, self.overflowed = self._adapters, named, len(since) - len(named)
        return named != before

    def sums(self, tables: Mapping[Table, Rows]) -> dict[Label, Tally]:
        """The tallies of one cut by label."""
        sums: dict[Label, Tally] = {}
        for table, rows in tables.items():
            for row in rows.values() if table is not Table.ADAPTER or self._names_adapters else ():
                label = table, self._label(table, row.key)
                sums[label] = sums[label] + row.counts if label in sums else row.counts
        return sums

    def _label(self, table: Table, key: int | str) -> str:
        if isinstance(key, int):
            is_temperature = table is Table.TEMPERATURE
            return self._buckets.label(key) if is_temperature else PROMPT_LABELS[bisect_left(_PROMPT_EDGES, key)]
        if table is Table.ADAPTER:
            return (key or _NO_ADAPTER) if key in self._adapters else OTHER
        return key


def together(tallies: Iterable[Tallies]) -> dict[Label, Tally]:
    """Several lives' tallies, summed label by label."""
    sums: dict[Label, Tally] = {}
    for one in tallies:
        for label, tally in one.items():
            sums[label] = sums.get(label, NOTHING) + tally
    return sums
