"""A verdict in a few words: the same on the page, in ``report`` and on the dashboards."""

from typing import Final

from sidecar.analysis.judgement import Judgement, Verdict

UNDECIDED: Final = "undecided"
"""There is enough traffic, but no verdict is certain yet."""
TOO_LITTLE: Final = "too little data"
UNMEASURED: Final = "not measured"
"""There is enough traffic, but its acceptance rate tells nothing, and no time is known."""
_MEASURED: Final = {
    Verdict.NET_POSITIVE: "pays",
    Verdict.BREAK_EVEN: "breaks even",
    Verdict.NET_NEGATIVE: "does not pay",
    Verdict.INSUFFICIENT_DATA: TOO_LITTLE,
}
_BY_RULE: Final = {
    Verdict.NET_POSITIVE: "high acceptance, not measured",
    Verdict.BREAK_EVEN: "medium acceptance, not measured",
    Verdict.NET_NEGATIVE: "low acceptance, not measured",
    Verdict.INSUFFICIENT_DATA: TOO_LITTLE,
}


def is_guess(judgement: Judgement) -> bool:
    """Whether there is a verdict, and only the rule of thumb says so."""
    return _is_by_rule(judgement) and judgement.verdict is not Verdict.INSUFFICIENT_DATA


def verdict_words(judgement: Judgement) -> str:
    """The verdict in a few words; by the rule of thumb it is the acceptance rate that is high."""
    if judgement.is_undecided:
        return UNDECIDED
    is_by_rule = _is_by_rule(judgement)
    if is_by_rule and judgement.judged is not None and not judgement.evidence.is_ruled:
        return UNMEASURED
    return words_of(judgement.verdict, is_guess=is_by_rule)


def words_of(verdict: Verdict, *, is_guess: bool) -> str:
    """A verdict in a few words; a guess is one by the rule of thumb."""
    words = _BY_RULE if is_guess else _MEASURED
    return words[verdict]


def _is_by_rule(judgement: Judgement) -> bool:
    """Whether neither a measured time nor a fault decides."""
    return judgement.by_speedup is None and not judgement.has_collapsed
