"""``looping`` and ``empty_replies``: more outputs end badly than usual at the same temperatures.

Speculation promises the same output, so that this is a fault of the draft, of vLLM, of the model or
a kernel, or another kind of traffic. Without anything to compare with it is a fact: some models
loop at temperature 0 by themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.endings import EndingChange
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.requests.tables import EMPTY, LOOP, Ending

_MANY: Final = 0.05  # share of the requests from which on it is a fact worth telling


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsBadly(Finding):
    """A ``share`` of the window's finished ``requests``, 0 to 1, ends badly.

    ``change`` is how that compares with the reference; None if there is none.
    """

    ending: ClassVar[Ending]
    share: float
    requests: int
    change: EndingChange | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looping(EndsBadly):
    """Outputs repeat themselves until they are cut off."""

    code: ClassVar[str] = "looping"
    ending: ClassVar[Ending] = LOOP


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyReplies(EndsBadly):
    """Outputs stop with at most one token."""

    code: ClassVar[str] = "empty_replies"
    ending: ClassVar[Ending] = EMPTY


def looping(situation: Situation) -> Iterator[EndsBadly]:
    """The finding on repetition loops."""
    return _ending_badly(Looping, situation)


def empty_replies(situation: Situation) -> Iterator[EndsBadly]:
    """The finding on replies of at most one token."""
    return _ending_badly(EmptyReplies, situation)


def _ending_badly(kind: type[EndsBadly], situation: Situation) -> Iterator[EndsBadly]:
    """The finding on a model that speculates; a fact where nothing can be compared."""
    endings = situation.model.endings
    if endings is None or situation.model.speed is None:
        return

    share = endings.shares.get(kind.ending, 0.0)
    change = endings.changes.get(kind.ending)
    found = share >= _MANY if change is None else change.is_clearly_more
    if found:
        yield kind(
            share=share,
            requests=endings.requests,
            change=change,
            is_advice=change is not None,
        )


RULES: Final = (
    FindingRule(kind=Looping, gate=looping, place=Place.OUTPUT),
    FindingRule(kind=EmptyReplies, gate=empty_replies, place=Place.OUTPUT),
)
