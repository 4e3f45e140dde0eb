"""What every finding in words has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.requests.messages import Speculation

VERIFY: Final = (
    "`specdec-sidecar sweep --url URL --prompts FILE --temperatures 0,0.7,1 --rounds 8 --duration"
    " 3h --save before.json`, the same with `--save after.json` after the change and the restart,"
    " then `specdec-sidecar compare before.json after.json`."
)
VERIFY_GROUP: Final = (
    f"{VERIFY} For requests of this group, let `sweep` send their parameters with --extra-body."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A finding in words.

    ``what`` is seen, with numbers; ``remedy`` is the change, ``expect`` its likely effect,
    ``verify`` a command.
    """

    code: str
    what: str
    remedy: str
    expect: str
    verify: str = VERIFY


AnyFinding = TypeVar("AnyFinding", bound=Finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Words(Generic[AnyFinding]):
    """What is said of one kind of finding.

    ``explain`` puts a finding on a model into sentences. ``why`` and ``remedy`` are a few words for
    a cell of a dashboard, ``runbook`` is the alert whose runbook has the remedy's steps.
    """

    kind: type[AnyFinding]
    explain: Callable[[AnyFinding, ModelReport], Explanation]
    why: str
    remedy: str
    runbook: str


AnyWords = Words[Any]


def speculating_engine(model: ModelReport) -> EngineReport:
    """An engine that speculates; all of a model's engines are configured alike."""
    speculating = (engine for engine in model.engines if engine.speculation is not None)
    return next(speculating, model.engines[0])


def speculation_of(model: ModelReport) -> Speculation:
    """How the model's engines draft; without a method if that is unknown."""
    return speculating_engine(model).speculation or Speculation(None, 0)
