"""The sums of the plug-in's rows by label, and how they have grown.

Also which groups of requests accept less.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import sub
from typing import Final

from sidecar.analysis.evidence import NO_DRAFTS, Acceptance
from sidecar.analysis.split.life import Cut, TableRows
from sidecar.analysis.split.strata import Difference
from sidecar.analysis.windows.growth import HOUR, GrowthWindow
from sidecar.requests.tables import GROUPED, OTHER, Table
from sidecar.requests.tally import NO_REQUESTS, Tally

GREEDY: Final = "0"
_TEMPERATURE_EDGES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)
MOST_ADAPTERS: Final = 9  # with "none"
NO_ADAPTER: Final = "none"

Label = tuple[Table, str]
Tallies = Mapping[Label, Tally]


class TemperatureBuckets:
    """Upper edges, inclusive, and their labels: ``0``, ``0-0.3``, …, ``1+``."""

    def __init__(self, edges: Sequence[float] = _TEMPERATURE_EDGES) -> None:
        """``edges`` are ascending and whole hundredths."""
        above = tuple(edge for edge in edges if edge > 0)
        lower = (0.0, *above)
        self._edges = (0, *(round(100 * edge) for edge in above))
        self.labels = (
            GREEDY,
            *(f"{low:g}-{high:g}" for low, high in pairwise(lower)),
            f"{lower[-1]:g}+",
        )

    def label(self, hundredths: int | str) -> str:
        """The bucket of a temperature in hundredths, rounded up.

        It is ``other`` for those past the plug-in's limit.
        """
        if isinstance(hundredths, str):
            return OTHER
        return self.labels[bisect_left(self._edges, hundredths)]


class RequestLabels:
    """The labels of one model's requests."""

    def __init__(self, buckets: TemperatureBuckets, *, names_adapters: bool) -> None:
        """Without ``names_adapters``, the table of adapters is left out.

        Adapters may be names of tenants.
        """
        self._buckets = buckets
        self._names_adapters = names_adapters
        self._adapters: frozenset[str] = frozenset()  # those with a label of their own
        self.overflowed = 0  # adapters that are summed as "other"

    def name_adapters(self, cuts: Iterable[Cut]) -> bool:
        """Gives the adapters that appeared first labels of their own; returns whether any changed.

        The engines' clock says which appeared first.
        """
        since: dict[str, float] = {}
        for cut in cuts if self._names_adapters else ():
            for row in cut.tables.get(Table.ADAPTER, {}).values():
                since[str(row.key)] = min(row.since, since.get(str(row.key), row.since))

        oldest = sorted(since, key=lambda name: (since[name], name))
        named = frozenset(oldest[:MOST_ADAPTERS])
        before = self._adapters
        self._adapters = named
        self.overflowed = len(since) - len(named)
        return named != before

    def has(self, table: Table) -> bool:
        """Whether the rows of a table have labels."""
        return table is not Table.ADAPTER or self._names_adapters

    def sums(self, tables: Mapping[Table, TableRows]) -> dict[Label, Tally]:
        """The tallies of one cut by label."""
        sums: dict[Label, Tally] = {}
        for table, rows in tables.items():
            if not self.has(table):
                continue
            for row in rows.values():
                label = (table, self.label(table, row.key))
                sums[label] = sums[label] + row.counts if label in sums else row.counts
        return sums

    def label(self, table: Table, key: int | str) -> str:
        """The label of a row's key in a table."""
        if table is Table.TEMPERATURE:
            return self._buckets.label(key)
        if table is Table.ADAPTER:
            return (str(key) or NO_ADAPTER) if key in self._adapters else OTHER
        return GROUPED[table].label(key)


def sum_by_label(tallies: Iterable[Tallies]) -> dict[Label, Tally]:
    """Several lives' tallies, summed label by label."""
    sums: dict[Label, Tally] = {}
    for one in tallies:
        for label, tally in one.items():
            sums[label] = sums.get(label, NO_REQUESTS) + tally
    return sums


class LiveTally:
    """One label's total, and its growth over the windows.

    ``total`` is the sum over the lives of the current process of vLLM, so it starts again at 0 when
    vLLM does. The windows keep their own growth, which includes nothing from before this sidecar
    was listening.
    """

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self.total = NO_REQUESTS
        self._grown = NO_REQUESTS
        self._window = GrowthWindow(window, sub)
        self._hour = GrowthWindow(HOUR, sub)

    def grow(self, growth: Tally) -> None:
        """Adds growth to the windows."""
        self._grown += growth

    def mark(self, at: float) -> None:
        """Timestamps the growth so far with ``at``, a poll's time."""
        self._window.append(at, self._grown)
        self._hour.append(at, self._grown)

    @property
    def window(self) -> Acceptance:
        """Over the sliding window; the caller sets its share."""
        return _acceptance(self._window)

    @property
    def hour(self) -> Acceptance:
        """Over the last hour, or as much of it as is known."""
        return _acceptance(self._hour)


def _acceptance(window: GrowthWindow[Tally]) -> Acceptance:
    growth = window.growth
    if growth is None:
        return replace(NO_DRAFTS, requests=0)

    return Acceptance(
        seconds=window.seconds,
        requests=growth.requests,
        drafts=growth.drafts,
        draft_tokens=growth.draft_tokens,
        accepted_tokens=growth.accepted_tokens,
        drafted_per_position=growth.drafted_at,
        accepted_per_position=growth.accepted_at,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One model's requests in one group.

    ``by`` is one of the tables ``GROUPED``; ``tally`` is as above.
    ``difference`` is how far the acceptance of those that finished in the window lies above that of
    the model's other requests at the same temperatures; None if too few can be compared.
    ``without_drafts``: vLLM drafted nothing for its requests of the window, but did for others.
    """

    by: Table
    group: str
    tally: "Tally"
    window: Acceptance
    difference: Difference | None
    without_drafts: bool

    @property
    def accepts_less(self) -> bool:
        """Whether its acceptance is clearly below that of the others at the same temperatures."""
        return self.difference is not None and self.difference.is_clearly_lower


def group_reports(
    tallies: Mapping[Label, LiveTally],
    tables: Collection[Table],
    differences: Mapping[str, Mapping[str, Difference]],
    min_requests: int,
    *,
    is_fresh: bool,
) -> Iterator[GroupReport]:
    """Every group of the ``tables``; one of a table that a plug-in does not send is absent.

    One with fewer than ``min_requests`` requests in the window is never flagged. The windows are
    empty unless the last poll ``is_fresh``.
    """
    for by, declared in GROUPED.items():
        if by not in tables:
            continue
        groups = {group: tally for (table, group), tally in tallies.items() if table is by}
        windows = {
            group: tally.window if is_fresh else NO_DRAFTS for group, tally in groups.items()
        }
        drafted = sum(window.draft_tokens for window in windows.values())

        for group, window in windows.items():
            is_enough = (window.requests or 0) >= min_requests
            could_draft = is_enough and group not in declared.undrafted
            yield GroupReport(
                by=by,
                group=group,
                tally=groups[group].total,
                window=replace(window, share=window.draft_tokens / drafted if drafted else 0.0),
                difference=differences.get(by, {}).get(group),
                without_drafts=could_draft and drafted > 0 and window.draft_tokens == 0,
            )
