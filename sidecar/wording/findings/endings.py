"""Findings on outputs that end badly, in words."""

from collections.abc import Iterable, Sequence
from typing import Final

from sidecar.analysis.endings import EndingAt, EndingsReport, Reference
from sidecar.analysis.findings.endings import EmptyReplies, EndsBadly, Looping
from sidecar.analysis.report import ModelReport
from sidecar.requests.tables import EMPTY, LOOP
from sidecar.wording.findings.explanation import Explanation, Words
from sidecar.wording.numbers import percent

READ_A_REPLY: Final = "Send one prompt to this pod and read the reply."
REPEAT: Final = "repeat themselves until they are cut off"
_HOW: Final = {LOOP: REPEAT, EMPTY: "are empty (at most one token)"}
_RUNBOOK: Final = "SpecDecodeOutputWorse"
_REFERENCES: Final = {
    Reference.BASELINE: "without speculation (baseline)",
    Reference.PAST: "on this pod before",
}
_REMEDY: Final = (
    f"{READ_A_REPLY} If it is wrong, restart vLLM. If that does not help, remove"
    " --speculative-config until `specdec-sidecar fidelity` finds no difference."
)
_EXPECT: Final = (
    "Speculation must not change what a model says. So the draft, vLLM or the model has a fault, or"
    " the traffic has changed, as when one prompt is sent again and again."
)
_FLATTERS: Final = (
    " Text that repeats itself is easy to predict, so speed and acceptance rate look better than"
    " they are."
)
_VERIFY: Final = (
    "`specdec-sidecar fidelity --url http://THIS:8000 --against http://WITHOUT_SPECULATION:8000`"
    " compares the outputs of two servers of the same model."
)
_NOT_MEASURED: Final = (
    "Without speculation it has not been measured at these temperatures: `specdec-sidecar baseline"
    " --plugin-socket PATH` does that."
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


def _looping(finding: Looping, _model: ModelReport) -> Explanation:
    return _explained(finding, _EXPECT + _FLATTERS)


def _empty_replies(finding: EmptyReplies, _model: ModelReport) -> Explanation:
    return _explained(finding, _EXPECT)


def _explained(finding: EndsBadly, expect: str) -> Explanation:
    what = _seen(finding)
    if not finding.is_advice:
        usual = _NO_PAST if finding.change is None else _AS_BEFORE
        why = f"{usual} {READ_A_REPLY} {_FACTS[finding.ending]} {_NOT_MEASURED}"
        return Explanation.fact(finding.code, what, why)

    return Explanation(code=finding.code, what=what, remedy=_REMEDY, expect=expect, verify=_VERIFY)


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


LOOPING: Final = Words(
    kind=Looping,
    explain=_looping,
    why="replies repeat themselves",
    remedy="read a reply; restart vLLM, or stop speculating",
    runbook=_RUNBOOK,
)
EMPTY_REPLIES: Final = Words(
    kind=EmptyReplies,
    explain=_empty_replies,
    why="replies are empty",
    remedy=LOOPING.remedy,
    runbook=_RUNBOOK,
)

WORDS: Final = (LOOPING, EMPTY_REPLIES)
