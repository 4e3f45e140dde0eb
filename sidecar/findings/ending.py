"""What ``looping`` and ``empty_replies`` share: more outputs end badly than usual.

Speculation promises the same output, so that this is a fault of the draft, of vLLM, of the model or
a kernel, or another kind of traffic. A share that is large and that nobody measured without
speculation is a fact for as long as it lasts: some models loop at temperature 0 by themselves, and
a pod may be broken from its start.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.endings import EndingAt, EndingChange, EndingsReport, Reference
from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation
from sidecar.findings.finding import Finding
from sidecar.requests.keys import EMPTY, LOOP, Ending
from sidecar.wording.numbers import percent

_LARGE: Final = 0.2  # share from which on it comes before what is said of the speed


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsBadly(Finding):
    """A ``share`` of the window's finished ``requests``, 0 to 1, ends badly.

    ``change`` is how that compares with the reference; None if there is none. ``temperatures`` are
    those where it has risen or, for a fact, where it is often; most such requests first.
    """

    ending: Ending
    share: float
    requests: int
    change: EndingChange | None
    temperatures: tuple[EndingAt, ...] = ()


def unmeasured(findings: Iterable[Finding]) -> Sequence[EndsBadly]:
    """How requests end that nobody measured without speculation.

    Empty unless these together are so many that nothing said of the speed matters more.
    """
    facts = [one for one in findings if isinstance(one, EndsBadly) and not one.is_advice]
    return facts if sum(fact.share for fact in facts) >= _LARGE else ()


def ending_badly(code: str, ending: Ending, model: ModelReport) -> Iterator[EndsBadly]:
    """The finding on a model that speculates.

    It is a fact unless more requests than usual end so. What the pod's own past makes usual is one,
    too: a pod that is broken from its start has no other past.
    """
    endings = model.endings
    if endings is None or model.speed is None:
        return

    change = endings.changes.get(ending)
    is_worse = change is not None and change.is_clearly_more
    is_measured = change is not None and change.reference is Reference.BASELINE
    if not is_worse and (is_measured or not endings.is_often(ending)):
        return

    places = endings.temperatures.get(ending, ())
    told = [place for place in places if (place.has_risen if is_worse else place.is_often)]
    yield EndsBadly(
        code=code,
        ending=ending,
        share=endings.shares.get(ending, 0.0),
        requests=endings.requests,
        change=change,
        temperatures=tuple(told),
        is_advice=is_worse,
    )


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

READ_A_REPLY: Final = "Send one prompt to this pod and read the reply."
REPEAT: Final = "repeat themselves until they are cut off"
_HOW: Final = {LOOP: REPEAT, EMPTY: "are empty (at most one token)"}
RUNBOOK: Final = "SpecDecodeOutputWorse"
IN_SHORT: Final = "read a reply; restart vLLM, or stop speculating"  # the remedy
_REFERENCES: Final = {
    Reference.BASELINE: "without speculation (baseline)",
    Reference.PAST: "on this pod before",
}
REMEDY: Final = (
    f"{READ_A_REPLY} If it is wrong, restart vLLM. If that does not help, remove"
    " --speculative-config until `specdec-sidecar fidelity` finds no difference."
)
EXPECT: Final = (
    "Speculation must not change what a model says. So the draft, vLLM or the model has a fault, or"
    " the traffic has changed, as when one prompt is sent again and again."
)
_VERIFY: Final = (
    "`specdec-sidecar fidelity --url http://THIS:8000 --against http://WITHOUT_SPECULATION:8000`"
    " compares the outputs of two servers of the same model."
)
_NOT_MEASURED: Final = (
    "Without speculation it has not been measured at these temperatures: `specdec-sidecar baseline"
    " --plugin-socket PATH --duration 1h` does that, without --load, beside a plain vLLM that"
    " serves such requests."
)
_AS_BEFORE: Final = "This pod has done so before, but it may have been wrong from its start."
_NO_PAST: Final = "There is nothing to compare it with yet."
_FACTS: Final = {
    LOOP: "Some models repeat themselves at temperature 0 without speculation, too.",
    EMPTY: (
        "If it is empty, too, restart vLLM, and if that does not help, remove --speculative-config"
        " on one pod and compare: a model that works seldom answers with nothing."
    ),
}


def replies_sentence(model: ModelReport) -> str:
    """What is known of a pod's replies, and how to look at one."""
    endings = model.endings
    if endings is None:
        return (
            "The replies may be wrong as well: the fault can be in the target model."
            f" {READ_A_REPLY}"
        )

    empty = percent(endings.shares[EMPTY])
    loops = percent(endings.shares[LOOP])
    seen = f"Of the last {endings.requests:,} replies, {empty} are empty and {loops} {REPEAT}"
    if endings.is_worse:
        return f"The replies have changed for the worse as well. {seen}. {READ_A_REPLY}"
    return f"{seen}; the others may be wrong as well. {READ_A_REPLY}"


def worse_sentence(endings: EndingsReport) -> str:
    """How more replies than usual end, and at which temperatures; ``endings`` is worse."""
    worse = []
    for ending, change in endings.changes.items():
        if change.is_clearly_more:
            places = endings.temperatures.get(ending, ())
            risen = [place for place in places if place.has_risen]
            worse.append(f"{_at(_named(risen, change.requests))}{_HOW[ending]}")

    return f"More replies than usual {', or '.join(worse)}."


def unmeasured_sentence(findings: Iterable[EndsBadly]) -> str:
    """How replies end that nobody measured without speculation."""
    ended = [f"{percent(finding.share)} {_HOW[finding.ending]}" for finding in findings]
    return f"Of the last replies, {' and '.join(ended)}: whether that is right is not known."


def endings_sentence(model: ModelReport) -> str:
    """How the last replies ended; empty if that is not known."""
    endings = model.endings
    if endings is None:
        return ""
    loops = percent(endings.shares[LOOP])
    empty = percent(endings.shares[EMPTY])
    return f"Of the last {endings.requests:,} replies, {loops} {REPEAT} and {empty} are empty."


def _at(places: Sequence[EndingAt]) -> str:
    """The temperatures as a phrase with a space behind it; empty for none."""
    labels = [place.temperature for place in places]
    if not labels:
        return ""
    return f"at temperature{'s' if len(labels) > 1 else ''} {' and '.join(labels)} "


def _named(places: Sequence[EndingAt], requests: int) -> Sequence[EndingAt]:
    """The temperatures worth naming: none if there are several, and they have all ``requests``."""
    is_everywhere = sum(place.requests for place in places) >= requests
    return () if len(places) > 1 and is_everywhere else places


def explained(finding: EndsBadly, expect: str) -> Explanation:
    """The finding in words; ``expect`` is what it means for a pod where it is not usual."""
    what = _seen(finding)
    if not finding.is_advice:
        usual = _NO_PAST if finding.change is None else _AS_BEFORE
        why = f"{usual} {READ_A_REPLY} {_FACTS[finding.ending]} {_NOT_MEASURED}"
        return Explanation.fact(finding.code, what, why)

    return Explanation(code=finding.code, what=what, remedy=REMEDY, expect=expect, verify=_VERIFY)


def _seen(finding: EndsBadly) -> str:
    """How many replies end so, at which temperatures, and how many are usual."""
    how = _HOW[finding.ending]
    change = finding.change
    reference = "" if change is None else _REFERENCES[change.reference]
    places = _named(finding.temperatures, finding.requests)

    if not places:
        whole = f"{percent(finding.share)} of the last {finding.requests:,} replies {how}."
        if change is None:
            return whole
        return f"{whole} At the same temperatures it was {percent(change.usual)} {reference}."

    parts = []
    for place in places:
        usual = "" if place.usual is None else f" ({percent(place.usual)} {reference})"
        parts.append(
            f"{percent(place.share)} of the last {place.requests:,} replies at temperature"
            f" {place.temperature}{usual}"
        )

    seen = f"{' and '.join(parts)} {how}."
    if sum(place.requests for place in places) == finding.requests:
        return seen
    return f"{seen} Of all {finding.requests:,} replies it is {percent(finding.share)}."
