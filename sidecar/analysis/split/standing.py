"""Whether what a life tells counts: its states, what changes them, and nothing else."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Standing(StrEnum):
    """Where a life stands with the vLLM whose page is polled. ``_NEXT`` says how it gets there."""

    # Nothing tells yet whether it is this vLLM's.
    WAITS = "waits"
    # It is: its latest cut counts.
    COUNTS = "counts"
    # It is, and vLLM has counted on for long without a report. Its last cut is right, but not all.
    SILENT = "silent"
    # Its growth is not vLLM's: it is another's, or counts otherwise.
    DIFFERS = "differs"
    # One of its numbers fell, which no counter does.
    BROKEN = "broken"
    # It is another vLLM's, or of one that has ended.
    ELSEWHERE = "elsewhere"


UNTRUE: Final = (Standing.DIFFERS, Standing.BROKEN)
"""Whose numbers are known to be wrong."""


class Event(StrEnum):
    """What a good poll, or a hello, says of a life."""

    # By the ids on vLLM's page and in the hello:
    # Its server is on the page, and no other life of its engine is, or was, connected beside it.
    IS_OURS = "is_ours"
    # Its server is not on the page; or it names none, and another life of its engine does.
    IS_ANOTHERS = "is_anothers"
    # By the growth of its totals beside that of vLLM's counters (``growth.py``):
    AGREED = "agreed"  # over enough drafts to tell
    CAUGHT_UP = "caught_up"  # its latest report has what was missing
    STRAYED = "strayed"
    FELL_SILENT = "fell_silent"
    # By the life itself:
    CONTRADICTED = "contradicted"
    RETURNED = "returned"  # it says hello again, or its server is on the page again
    # By another life of the same engine, which is connected:
    REPLACED = "replaced"  # this one has left, and was not known to be right
    # Where no id tells, by vLLM's restart:
    RESTARTED = "restarted"  # it is connected, so it may be the new one's
    ENDED = "ended"  # it is not


_GONE: Final = {
    Event.IS_ANOTHERS: Standing.ELSEWHERE,
    Event.ENDED: Standing.ELSEWHERE,
    Event.REPLACED: Standing.ELSEWHERE,
}
_NEXT: Final[Mapping[Standing, Mapping[Event, Standing]]] = {
    Standing.WAITS: {
        **_GONE,
        Event.IS_OURS: Standing.COUNTS,
        Event.AGREED: Standing.COUNTS,
        Event.STRAYED: Standing.DIFFERS,
        Event.CONTRADICTED: Standing.BROKEN,
    },
    Standing.COUNTS: {
        **_GONE,
        Event.STRAYED: Standing.DIFFERS,
        Event.FELL_SILENT: Standing.SILENT,
        Event.CONTRADICTED: Standing.BROKEN,
        Event.RESTARTED: Standing.WAITS,
    },
    Standing.SILENT: {
        **_GONE,
        Event.AGREED: Standing.COUNTS,
        Event.CAUGHT_UP: Standing.COUNTS,
        Event.STRAYED: Standing.DIFFERS,
        Event.CONTRADICTED: Standing.BROKEN,
        Event.RESTARTED: Standing.WAITS,
    },
    Standing.DIFFERS: {
        **_GONE,
        Event.AGREED: Standing.COUNTS,
        Event.CONTRADICTED: Standing.BROKEN,
        Event.RESTARTED: Standing.WAITS,
    },
    Standing.BROKEN: {**_GONE},
    Standing.ELSEWHERE: {Event.RETURNED: Standing.WAITS},
}
"""What is not listed changes nothing: an id, for example, heals no life that differs."""


def after(standing: Standing, event: Event) -> Standing:
    """The standing after an event."""
    return _NEXT[standing].get(event, standing)
