"""Findings on outputs that end badly, in words."""

from typing import Final

from sidecar.analysis.endings import EndingChange, EndingsReport, Reference
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
_FACT: Final = (
    "Whether that is usual is not known yet: some models repeat themselves at temperature 0"
    " without speculation, too. It will be once this pod has served for longer, or with a baseline"
    " (`specdec-sidecar baseline --plugin-socket PATH`)."
)


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
    """How more replies than usual end; ``endings`` is worse."""
    worse = [_HOW[one.ending] for one in endings.changes.values() if one.is_clearly_more]
    return f"More replies than usual {', or '.join(worse)}."


def _looping(finding: Looping, _model: ModelReport) -> Explanation:
    return _explained(finding, _EXPECT + _FLATTERS)


def _empty_replies(finding: EmptyReplies, _model: ModelReport) -> Explanation:
    return _explained(finding, _EXPECT)


def _explained(finding: EndsBadly, expect: str) -> Explanation:
    how = _HOW[finding.ending]
    if finding.change is None:
        what = f"{percent(finding.share)} of the last {finding.requests:,} replies {how}."
        return Explanation.fact(finding.code, what, _FACT)

    return Explanation(
        code=finding.code,
        what=_share_and_usual(finding.change, how),
        remedy=_REMEDY,
        expect=expect,
        verify=_VERIFY,
    )


def _share_and_usual(change: EndingChange, how: str) -> str:
    return (
        f"{percent(change.share)} of the last {change.requests:,} replies {how}. At the same"
        f" temperatures it was {percent(change.usual)} {_REFERENCES[change.reference]}."
    )


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
