"""What can be said of a pod as numbers of a panel, in the page's words and in colours."""

from enum import IntEnum
from typing import Final

from sidecar.analysis.judgement import Verdict
from sidecar.wording.verdicts import TOO_LITTLE, UNDECIDED, UNMEASURED, words_of

GREY: Final = "#6e7079"
PURPLE: Final = "#a352cc"
AMBER: Final = "#e0a82e"
PINK: Final = "#ff7383"  # a part loses, as measured: next to red
TEAL: Final = "#56b6c2"  # high by the rule of thumb: green is only what was measured


class Rank(IntEnum):
    """Of several the highest is shown: the worst."""

    NO_SPECULATION = 0
    TOO_LITTLE = 1
    UNMEASURED = 2
    UNDECIDED = 3
    PAYS = 4
    HIGH = 5
    EVEN = 6
    MEDIUM = 7
    LOW = 8
    MISSING = 9
    IN_PART = 10  # it loses at a temperature or on an engine; of a model, on few of its pods
    LOSES = 11
    VLLM_DOWN = 12
    SIDECAR_DOWN = 13
    NEVER_SCRAPED = 14


def _guess(verdict: Verdict) -> str:
    return words_of(verdict, is_guess=True)


def _measured(verdict: Verdict) -> str:
    return words_of(verdict, is_guess=False)


VERDICTS: Final[dict[int, tuple[str, str]]] = {
    Rank.NO_SPECULATION: ("does not speculate", GREY),
    Rank.TOO_LITTLE: (TOO_LITTLE, GREY),
    Rank.UNMEASURED: (UNMEASURED, GREY),
    Rank.UNDECIDED: (UNDECIDED, GREY),
    Rank.PAYS: (_measured(Verdict.NET_POSITIVE), "green"),
    Rank.HIGH: (_guess(Verdict.NET_POSITIVE), TEAL),
    Rank.EVEN: (_measured(Verdict.BREAK_EVEN), "yellow"),
    Rank.MEDIUM: (_guess(Verdict.BREAK_EVEN), AMBER),
    Rank.LOW: (_guess(Verdict.NET_NEGATIVE), "orange"),
    Rank.MISSING: ("unknown: pod missing", PURPLE),
    Rank.IN_PART: ("loses in part", PINK),
    Rank.LOSES: (_measured(Verdict.NET_NEGATIVE), "red"),
}
