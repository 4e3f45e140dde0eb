"""What requests drafted and accepted, and how those that finished ended.

A ``Tally`` keeps its shape from the packet to the report.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, starmap, zip_longest
from operator import add, attrgetter, lt, sub
from typing import Annotated, Final

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
    if positions are not counted, as in groups.
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
        return other if self is NO_REQUESTS else self._with(add, other)

    def __sub__(self, before: "Tally") -> "Tally":
        """The growth since ``before``, an earlier tally of the same requests; never negative."""
        return self if before is NO_REQUESTS else self._with(sub, before)

    def _with(self, act: Callable[[int, int], int], other: "Tally") -> "Tally":
        numbers = map(act, _READ(self), _READ(other))
        return Tally(
            **dict(zip(_NUMBERS, numbers, strict=True)),
            drafted_at=_by_place(act, self.drafted_at, other.drafted_at),
            accepted_at=_by_place(act, self.accepted_at, other.accepted_at),
        )

    def has_fallen(self, before: "Tally") -> bool:
        """Whether any number, except those by position, is lower than in ``before``.

        If so, it is not a later tally of the same requests.
        """
        return any(map(lt, _READ(self), _READ(before)))

    @property
    def by_outcome(self) -> Mapping[Outcome, int]:
        """Finished requests by outcome."""
        return {outcome: getattr(self, outcome) for outcome in Outcome}

    @property
    def requests(self) -> int:
        """All finished requests."""
        return sum(_READ_ENDED(self))


_ENDED: Final = tuple(map(str, Outcome))
_NUMBERS: Final = (*_ENDED, "drafts", "draft_tokens", "accepted_tokens")
_READ_ENDED: Final = attrgetter(*_ENDED)
_READ: Final = attrgetter(*_NUMBERS)
NO_REQUESTS: Final = Tally()


def _by_place(
    act: Callable[[int, int], int], one: tuple[int, ...], other: tuple[int, ...]
) -> tuple[int, ...]:
    """Acts position by position; a position that one of them does not have counts as 0."""
    if len(one) == len(other):
        return tuple(map(act, one, other))
    return tuple(starmap(act, zip_longest(one, other, fillvalue=0)))


Numbers = Annotated[tuple[Count, ...], Field(max_length=2 * 1025 + 5, fail_fast=True)]
"""What the plug-in counts for requests with the same key, in the order of its packets.

First the requests that ended, by ``Outcome``; then the drafts by how many tokens they had, from 0
to the most; then the drafts by how many of their tokens were accepted, likewise.
"""


def are_possible(numbers: Sequence[int]) -> bool:
    """Whether ``Numbers`` can be counts of the same drafts."""
    drafted, accepted = _by_length(numbers)
    if not drafted or len(drafted) != len(accepted) or sum(drafted) != sum(accepted):
        return False
    return all(
        more <= most for more, most in zip(_at_least(accepted), _at_least(drafted), strict=True)
    )


def tally_of(numbers: Sequence[int], *, by_position: bool = True) -> Tally:
    """The tally of ``Numbers``; its positions are empty without ``by_position``."""
    drafted, accepted = _by_length(numbers)
    drafted_at = _at_least(drafted)
    accepted_at = _at_least(accepted)

    return Tally(
        **dict(zip(_ENDED, numbers, strict=False)),
        drafts=sum(drafted),
        draft_tokens=sum(drafted_at),
        accepted_tokens=sum(accepted_at),
        drafted_at=_limited(drafted_at) if by_position else (),
        accepted_at=_limited(accepted_at) if by_position else (),
    )


def _by_length(numbers: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The drafts by their number of tokens, and by how many of their tokens were accepted."""
    ended = len(_ENDED)
    half = (len(numbers) - ended) // 2
    return numbers[ended : ended + half], numbers[ended + half :]


def _at_least(by_length: Sequence[int]) -> tuple[int, ...]:
    """How many drafts had a token at position 0, 1, …, given how many had 0, 1, … tokens."""
    return tuple(accumulate(by_length[:0:-1]))[::-1]


def _limited(at: tuple[int, ...]) -> tuple[int, ...]:
    """Adds the positions past the limit to the last one."""
    last = MAX_POSITIONS - 1
    return at if len(at) <= last else (*at[:last], sum(at[last:]))
