"""What there is to know of a kind of finding: its gate, how it goes with others, its words."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.settings.groups import Thresholds


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


AnyFinding = TypeVar("AnyFinding", bound=Finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingKind(Generic[AnyFinding]):
    """One kind of finding: when it is true, how it goes with the others, and what is said of it.

    ``code`` is the label value of ``specdec_finding``. ``gate`` gives the findings of the kind on a
    model's values and verdicts, mostly one or none. With a finding of a kind in ``unless``, none of
    this one is told: the other explains the same loss. ``of_requests``: it follows from finished
    requests, and is unknown without them.

    ``explain`` puts a finding on a model into sentences. ``why`` and ``remedy`` are a few words for
    a cell of a dashboard, ``runbook`` is the alert whose runbook has the remedy's steps.
    """

    code: str
    gate: Callable[[ModelReport, Thresholds], Iterable[AnyFinding]]
    place: Place
    unless: tuple["FindingKind[Any]", ...] = ()
    of_requests: bool = False
    explain: Callable[[AnyFinding, ModelReport], Explanation]
    why: str
    remedy: str
    runbook: str
