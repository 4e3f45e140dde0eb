"""``looping`` and ``empty_replies``: more outputs end badly than usual at the same temperatures.

Speculation promises the same output, so that this is a fault of the draft, of vLLM, of the model or
a kernel, or another kind of traffic. A share that is large and that nobody measured without
speculation is a fact for as long as it lasts: some models loop at temperature 0 by themselves, and
a pod may be broken from its start.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from sidecar.analysis.endings import EndingAt, EndingChange, Reference
from sidecar.analysis.findings.finding import Finding
from sidecar.analysis.findings.rule import FindingRule, Place
from sidecar.analysis.findings.situation import Situation
from sidecar.requests.tables import EMPTY, LOOP, Ending

_LARGE: Final = 0.2  # share from which on it comes before what is said of the speed


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsBadly(Finding):
    """A ``share`` of the window's finished ``requests``, 0 to 1, ends badly.

    ``change`` is how that compares with the reference; None if there is none. ``temperatures`` are
    those where it has risen or, for a fact, where it is often; most such requests first.
    """

    ending: ClassVar[Ending]
    share: float
    requests: int
    change: EndingChange | None
    temperatures: tuple[EndingAt, ...] = ()


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


def unmeasured(findings: Iterable[Finding]) -> Sequence[EndsBadly]:
    """How requests end that nobody measured without speculation.

    Empty unless these together are so many that nothing said of the speed matters more.
    """
    facts = [one for one in findings if isinstance(one, EndsBadly) and not one.is_advice]
    return facts if sum(fact.share for fact in facts) >= _LARGE else ()


def looping(situation: Situation) -> Iterator[EndsBadly]:
    """The finding on repetition loops."""
    return _ending_badly(Looping, situation)


def empty_replies(situation: Situation) -> Iterator[EndsBadly]:
    """The finding on replies of at most one token."""
    return _ending_badly(EmptyReplies, situation)


def _ending_badly(kind: type[EndsBadly], situation: Situation) -> Iterator[EndsBadly]:
    """The finding on a model that speculates.

    It is a fact unless more requests than usual end so. What the pod's own past makes usual is one,
    too: a pod that is broken from its start has no other past.
    """
    endings = situation.model.endings
    if endings is None or situation.model.speed is None:
        return

    change = endings.changes.get(kind.ending)
    is_worse = change is not None and change.is_clearly_more
    is_measured = change is not None and change.reference is Reference.BASELINE
    if not is_worse and (is_measured or not endings.is_often(kind.ending)):
        return

    places = endings.temperatures.get(kind.ending, ())
    told = [place for place in places if (place.has_risen if is_worse else place.is_often)]
    yield kind(
        share=endings.shares.get(kind.ending, 0.0),
        requests=endings.requests,
        change=change,
        temperatures=tuple(told),
        is_advice=is_worse,
    )


RULES: Final = (
    FindingRule(kind=Looping, gate=looping, place=Place.OUTPUT, of_requests=True),
    FindingRule(kind=EmptyReplies, gate=empty_replies, place=Place.OUTPUT, of_requests=True),
)
