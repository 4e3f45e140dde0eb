"""Which engine a series on vLLM's page belongs to.

vLLM numbers the engines of one process with the label ``engine``. A page that an agent collects
from several processes, such as a Ray node's, can have several engines with the same number, which
other labels tell apart. Each of them is an engine of its own, named by its number and the other
label's value: ``0@replica``. On a Ray node's page the name follows from the labels alone, so a
counter never becomes another engine's when replicas come and go or the sidecar restarts.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sidecar.engine.exposition import Series

_RAY_REPLICA: Final = ("ReplicaId", "WorkerId")  # the first that a series has names its replica
_MODEL: Final = "model_name"
_NUMBER: Final = "engine"
_NO_NUMBER: Final = "0"  # V0 and the first V1 versions have one engine and no label for it
_MARK: Final = "@"
# Labels of parts of one engine's quantity: a histogram's buckets, the processes of a gauge, ...
_PARTS: Final = frozenset({"le", "quantile", "position", "reason", "finished_reason", "pid"})
_MOST_LABELS: Final = 4  # at most so many tell engines apart
_READABLE: Final = re.compile(r"[A-Za-z0-9_.-]{1,24}")
_DIGEST: Final = 8  # hexadecimal digits in place of a value that is not ``_READABLE``


class EngineKey(NamedTuple):
    """Which engine of which model; versions without an ``engine`` label have one engine, "0"."""

    model_name: str
    engine: str

    @property
    def number(self) -> str:
        """What vLLM itself, and so the plug-in, calls the engine."""
        return self.engine.partition(_MARK)[0]


class EngineNames:
    """Names the engines of one page."""

    def __init__(
        self, series: Iterable[Series], *, is_collected: bool, known: tuple[str, ...] = ()
    ) -> None:
        """``is_collected``: the page is a Ray node's.

        ``known`` are ``replica_labels`` of an earlier page of the same server.
        """
        self._is_collected = is_collected
        self.replica_labels = known  # labels that tell apart engines with the same number

        by_engine: dict[EngineKey, list[Mapping[str, str]]] = defaultdict(list)
        for one in series:
            labels = dict(one.labels)
            if _MODEL in labels:
                by_engine[self.key(labels)].append(labels)

        for same in by_engine.values():
            new = [name for name in _telling_apart(same) if name not in self.replica_labels]
            self.replica_labels = (*self.replica_labels, *new)[:_MOST_LABELS]

    def key(self, labels: Mapping[str, str]) -> EngineKey:
        """The engine of a series with these labels, ``model_name`` among them."""
        return EngineKey(labels[_MODEL], self.engine(labels))

    def engine(self, labels: Mapping[str, str]) -> str:
        """The name of the engine of a series with these labels."""
        parts = [labels.get(_NUMBER, _NO_NUMBER)]
        if self._is_collected:
            parts += [labels[name] for name in _RAY_REPLICA if labels.get(name)][:1]
        parts += [labels[name] for name in self.replica_labels if name in labels]
        return _MARK.join([parts[0], *map(_readable, parts[1:])])


def _telling_apart(series: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The labels that tell apart the engines among series that seem to be of one engine.

    Chosen one by one, the label with the most values first, from those that all series have: a
    label that only some quantities have splits these quantities, not the engine. Empty if there is
    just one engine.
    """
    common = set.intersection(*(set(labels) for labels in series)) - _PARTS
    values = {name: {labels[name] for labels in series} for name in common}

    chosen: tuple[str, ...] = ()
    told_apart = 1
    for name in sorted(common, key=lambda name: (-len(values[name]), name)):
        with_it = len({tuple(labels[one] for one in (*chosen, name)) for labels in series})
        if with_it > told_apart:
            chosen = (*chosen, name)
            told_apart = with_it

    return chosen


def _readable(value: str) -> str:
    if _READABLE.fullmatch(value):
        return value
    return hashlib.sha256(value.encode()).hexdigest()[:_DIGEST]
