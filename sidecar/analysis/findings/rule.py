"""What there is to know of a finding: its kind, its gate, and how it goes with the others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.situation import Situation
from sidecar.analysis.request_count import RequestCount


class Place(Enum):
    """What a finding is about, in the order in which findings are told: what to do first first.

    A finding on requests of one kind is a ``PART`` if they accept less than the others. A fact
    about the traffic that explains no acceptance rate is ``COSTS_NO_STEP``, or ``OUTPUT`` if it is
    about what the requests get.
    """

    NO_DRAFTS = auto()
    """an engine drafts nothing"""
    COLLAPSE = auto()
    """the drafts fit nothing: only this, what comes before it and OUTPUT are told"""
    OUTPUT = auto()
    """outputs end badly"""
    DRAFTING = auto()
    """how draft tokens are chosen; their number and what to route elsewhere follow from that"""
    PART = auto()
    """some requests accept less: only the costliest are told, since parts may share requests"""
    NUMBER = auto()
    """the load and the number of draft tokens; told by cost with a part, and not if the number
    follows from what costs more"""
    COSTS_NO_STEP = auto()
    """the cache and room: all of them are told"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRule:
    """One kind of finding.

    ``gate`` gives the findings of the kind in a situation, mostly one or none. With a finding of a
    rule in ``unless``, none of this one is told: the other explains the same loss. ``counts`` are
    what ``Situation.counts`` must have for the gate. ``of_requests``: it follows from finished
    requests, and is unknown without them.
    """

    kind: type[Finding]
    gate: Callable[[Situation], Iterable[Finding]]
    place: Place
    unless: tuple["FindingRule", ...] = ()
    counts: tuple[RequestCount, ...] = ()
    of_requests: bool = False
