"""What requests drafted and accepted, and how those that finished ended.

One shape from the packet to the report.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import starmap, zip_longest
from operator import add, sub
from typing import Annotated, Any, Final

from pydantic import Field

MAX_POSITIONS: Final = 32  # positions per draft; deeper ones are added to the last

# The largest range of integers that a double holds exactly.
Count = Annotated[int, Field(ge=0, le=2**53)]
Positions = Annotated[tuple[Count, ...], Field(max_length=MAX_POSITIONS, fail_fast=True)]


class Outcome(StrEnum):
    """How a request ended in the engine."""

    STOPPED = "stopped"  # at an end-of-sequence or stop token
    LENGTH = "length"
    REPETITION = "repetition"  # vLLM found the text repeating itself
    ABORTED = "aborted"  # the client left, or the API server stopped it at a stop string
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Finished requests by outcome, drafts, and the tokens drafted and accepted.

    ``drafts`` counts the verification steps that had any. ``drafted_at[p]`` counts the drafts with
    a token at position p, from 0, and ``accepted_at[p]`` those that accepted it; both are empty
    where nobody counts positions, as in groups.
    """

    stopped: Count = 0
    length: Count = 0
    repetition: Count = 0
    aborted: Count = 0
    error: Count = 0
    drafts: Count = 0
    draft_tokens: Count = 0
    accepted_tokens: Count = 0
    drafted_at: Positions = ()
    accepted_at: Positions = ()

    def __add__(self, other: "Tally") -> "Tally":
        """The sum of both."""
        return self._with(add, other)

    def __sub__(self, before: "Tally") -> "Tally":
        """The growth since ``before``: an earlier tally of the same, so no number is negative."""
        return self._with(sub, before)

    def _with(self, act: Callable[[int, int], int], other: "Tally") -> "Tally":
        drafted_at = tuple(
            starmap(act, zip_longest(self.drafted_at, other.drafted_at, fillvalue=0))
        )
        accepted_at = tuple(
            starmap(act, zip_longest(self.accepted_at, other.accepted_at, fillvalue=0))
        )

        numbers: dict[str, Any] = {
            name: act(getattr(self, name), getattr(other, name)) for name in _NUMBERS
        }

        return Tally(**numbers, drafted_at=drafted_at, accepted_at=accepted_at)

    def has_fallen(self, before: "Tally") -> bool:
        """Whether any number but those by position is lower than in ``before``.

        If so, it is not a later tally of the same.
        """
        return any(getattr(self, name) < getattr(before, name) for name in _NUMBERS)

    @property
    def by_outcome(self) -> Mapping[Outcome, int]:
        """Finished requests by outcome."""
        return {outcome: getattr(self, outcome) for outcome in Outcome}

    @property
    def requests(self) -> int:
        """All finished requests."""
        return sum(self.by_outcome.values())

    @property
    def is_possible(self) -> bool:
        """Whether the numbers can be counts of the same drafts.

        Accepted tokens by position may sum to more than ``accepted_tokens``: vLLM up to 0.15 books
        -1 for a draft that came back without any token.
        """
        accepts = self.accepted_tokens <= self.draft_tokens and all(
            accepted <= drafted
            for drafted, accepted in zip_longest(self.drafted_at, self.accepted_at, fillvalue=0)
        )
        return accepts and (not self.drafted_at or sum(self.drafted_at) == self.draft_tokens)


_NUMBERS: Final = (*Outcome, "drafts", "draft_tokens", "accepted_tokens")
NO_REQUESTS: Final = Tally()
