"""The sums of the plug-in's rows by label, and how they have grown.

Also which groups of requests accept less.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import add, sub
from typing import Final

from sidecar.analysis.evidence import Acceptance
from sidecar.analysis.split.life import Cut
from sidecar.analysis.split.strata import Difference
from sidecar.analysis.windows.growth import HOUR, GrowthWindow
from sidecar.requests.keys import GROUPED, OTHER, Bit, CellKey, RequestGroups, Table
from sidecar.requests.tally import NO_REQUESTS, Tally, tally_of

GREEDY: Final = "0"
_TEMPERATURE_EDGES: Final = (0.0, 0.3, 0.5, 0.7, 1.0)
MOST_ADAPTERS: Final = 9  # with "none"
NO_ADAPTER: Final = "none"

Label = tuple[Table, str]
OWN: Final[Label] = (Table.OWN, "own")
_NOTHING: Final = Acceptance(share=0.0)
_NOTHING_COUNTED: Final = Cut()
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

    def label(self, hundredths: int | None) -> str:
        """The bucket of a temperature in hundredths, rounded up; ``other`` if it is unknown."""
        if hundredths is None:
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
        tables = {
            table: declared
            for table, declared in GROUPED.items()
            if table is not Table.ADAPTER or names_adapters
        }
        self._told_by_cells = [
            (table, declared.key_of_cell)
            for table, declared in tables.items()
            if declared.key_of_cell is not None
        ]
        self._told_by_requests = [
            (table, declared.key_of)
            for table, declared in tables.items()
            if declared.key_of is not None
        ]

    def name_adapters(self, cuts: Iterable[Cut]) -> bool:
        """Gives the adapters that appeared first labels of their own; returns whether any changed.

        An engine's cells are in the order in which they appeared.
        """
        rank: dict[str, int] = {}
        for cut in cuts if self._names_adapters else ():
            told = (key for key in cut.cells if key.prompt is not None and not key.bits & Bit.OWN)
            adapters = (key.adapter or "" for key in told)
            for place, name in enumerate(dict.fromkeys(adapters)):
                rank[name] = min(place, rank.get(name, place))

        oldest = sorted(rank, key=lambda name: (rank[name], name))
        named = frozenset(oldest[:MOST_ADAPTERS])
        before = self._adapters
        self._adapters = named
        self.overflowed = len(rank) - len(named)
        return named != before

    def sums(self, cut: Cut, since: Cut = _NOTHING_COUNTED) -> dict[Label, Tally]:
        """What a life has counted ``since`` an earlier cut, by label.

        A cell that has not changed has the same numbers in both: what is only in such is left out.
        """
        sums: dict[Label, Sequence[int]] = {}
        for key, numbers in cut.cells.items():
            before = since.cells.get(key)
            if before is numbers:
                continue
            grown = numbers if before is None else [*map(sub, numbers, before)]
            for label in self._labels(key):
                known = sums.get(label)
                sums[label] = grown if known is None else [*map(add, known, grown)]

        tallies = {
            label: tally_of(numbers, by_position=label[0] is Table.TEMPERATURE)
            for label, numbers in sums.items()
        }
        endings = {
            (Table.ENDING, str(ending)): tally - since.endings.get(ending, NO_REQUESTS)
            for ending, tally in cut.endings.items()
        }
        return {**tallies, **endings}

    def _labels(self, key: CellKey) -> Iterator[Label]:
        """All labels of a cell."""
        if key.bits & Bit.OWN:
            yield OWN
            return
        yield Table.TEMPERATURE, self._buckets.label(key.temperature)
        is_known = key.prompt is not None
        for table, key_of_cell in self._told_by_cells:
            yield table, self._label(table, key_of_cell(key)) if is_known else OTHER

    def _label(self, table: Table, key: int | str | None) -> str:
        """The label of a group's key; ``other`` if it is unknown."""
        if key is None:
            return OTHER
        if table is Table.ADAPTER:
            return _adapter_label(str(key)) if key in self._adapters else OTHER
        return GROUPED[table].label(key)

    def compared(self, request: RequestGroups) -> Iterator[Label]:
        """The groups of a finished request that are compared, as far as its plug-in tells."""
        for table, key_of in self._told_by_requests:
            key = key_of(request)
            if key is not None:
                yield table, self._label(table, key)


def _adapter_label(name: str) -> str:
    """An adapter's name; another text where the name is a label of something else."""
    if not name:
        return NO_ADAPTER
    return f"adapter {name}" if name in {NO_ADAPTER, OTHER} else name


def sum_by_label(tallies: Iterable[Tallies]) -> dict[Label, Tally]:
    """Several lives' tallies, summed label by label."""
    sums: dict[Label, Tally] = {}
    for one in tallies:
        for label, tally in one.items():
            sums[label] = sums[label] + tally if label in sums else tally
    return sums


class LiveTally:
    """One label's total, and its growth over the sliding window.

    ``total`` is the sum over the lives of the current process of vLLM, so it starts again at 0 when
    vLLM does. The window keeps its own growth, which includes nothing from before this sidecar was
    listening.
    """

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        self.total = NO_REQUESTS
        self._grown = NO_REQUESTS
        self.recent = GrowthWindow[Tally](window, sub)

    def grow(self, growth: Tally) -> None:
        """Adds growth to the window."""
        self._grown += growth

    def mark(self, at: float) -> None:
        """Timestamps the growth so far with ``at``, a poll's time."""
        self.recent.append(at, self._grown)

    @property
    def window(self) -> Acceptance:
        """Over the sliding window, without a share."""
        return _acceptance(self.recent, self.recent.growth)


class JudgedTally(LiveTally):
    """That of a temperature, which may be judged over the last hour."""

    def __init__(self, window: float) -> None:
        """``window`` is the sliding window in seconds."""
        super().__init__(window)
        self.hourly = GrowthWindow[Tally](HOUR, sub)

    def mark(self, at: float) -> None:
        """Timestamps the growth so far with ``at``, a poll's time."""
        super().mark(at)
        self.hourly.append(at, self._grown)

    @property
    def hour(self) -> Acceptance:
        """Over the last hour, or as much of it as is known, without a share."""
        return _acceptance(self.hourly, self.hourly.growth)


def windows(tallies: Mapping[str, LiveTally]) -> dict[str, Acceptance]:
    """Each label over the sliding window, with its share of what was drafted for all of them."""
    return _with_shares({label: tally.recent for label, tally in tallies.items()})


def hours(tallies: Mapping[str, JudgedTally]) -> dict[str, Acceptance]:
    """The same over the last hour, or as much of it as is known."""
    return _with_shares({label: tally.hourly for label, tally in tallies.items()})


def _with_shares(windows: Mapping[str, GrowthWindow[Tally]]) -> dict[str, Acceptance]:
    grown = {label: window.growth for label, window in windows.items()}
    drafted = sum(growth.draft_tokens for growth in grown.values() if growth is not None)
    return {
        label: _acceptance(
            windows[label], growth, growth.draft_tokens / drafted if growth and drafted else 0.0
        )
        for label, growth in grown.items()
    }


def _acceptance(
    window: GrowthWindow[Tally], growth: Tally | None, share: float = 1.0
) -> Acceptance:
    if growth is None:
        return Acceptance(requests=0, share=share)

    return Acceptance(
        seconds=window.seconds,
        requests=growth.requests,
        drafts=growth.drafts,
        draft_tokens=growth.draft_tokens,
        accepted_tokens=growth.accepted_tokens,
        drafted_per_position=growth.drafted_at,
        accepted_per_position=growth.accepted_at,
        share=share,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReport:
    """One model's requests in one group.

    ``by`` is one of the tables ``GROUPED``; ``tally`` is as above.
    ``difference`` is how far the acceptance of those that finished lately lies above that of the
    model's other requests that are otherwise alike; None if too few can be compared.
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
        """Whether its acceptance is clearly below that of others that are otherwise alike."""
        return self.difference is not None and self.difference.is_clearly_lower


def group_reports(
    tallies: Mapping[Label, LiveTally],
    differences: Mapping[str, Mapping[str, Difference]],
    min_requests: int,
    *,
    is_fresh: bool,
) -> Iterator[GroupReport]:
    """Every group.

    One with fewer than ``min_requests`` requests in the window is never flagged. The windows are
    empty unless the last poll ``is_fresh``.
    """
    for by, declared in GROUPED.items():
        groups = {group: tally for (table, group), tally in tallies.items() if table is by}
        recent = windows(groups) if is_fresh else dict.fromkeys(groups, _NOTHING)
        drafted = sum(window.draft_tokens for window in recent.values())

        for group, window in recent.items():
            is_enough = (window.requests or 0) >= min_requests
            could_draft = is_enough and group not in declared.undrafted
            yield GroupReport(
                by=by,
                group=group,
                tally=groups[group].total,
                window=window,
                difference=differences.get(by, {}).get(group),
                without_drafts=could_draft and drafted > 0 and window.draft_tokens == 0,
            )
