"""The tables in which the plug-in counts requests, each by something else: declared once, here.

A table is a member of ``Table``, with its declaration, and what a finished request tells of it, a
field of ``RequestGroups``. What a packet may have, the groups of the report and their names, and
docs/plugin.md follow from these. The plug-in has to do without imports, so it declares its own
side, in ``Key``; a test compares both.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field

from sidecar.requests.tally import Count

OTHER: Final = "other"
ABOVE_2: Final = 201  # the key of all temperatures above 2, in hundredths
PROMPT_LABELS: Final = ("0-512", "512-2k", "2k-8k", "8k-32k", "32k+")
_PROMPT_EDGES: Final = (9, 11, 13, 15)  # the highest exponent of each but the last: 512 is 2**9
LOOP: Final = "loop"
EMPTY: Final = "empty"

# The types of keys in a packet.
Name = Annotated[str, Field(max_length=256)]
Hundredths = Annotated[int, Field(ge=0, le=1_000_000)]
Exponent = Annotated[int, Field(ge=0, le=64)]
Output = Literal["free", "structured"]
Sampling = Literal["greedy", "plain", "filtered", "penalties"]
Ending = Literal["normal", "loop", "empty"]
ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)

RowKey = Annotated[int, Field(ge=0, le=1_000_000)] | Name
"""A row's key where rows of several tables go together: a number or a name.

In a packet, each key has the type that its table declares, ``RequestTable.key``.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroups:
    """What a finished request tells of its groups; None where the plug-in cannot tell.

    ``ending`` says how its output ends: in a ``loop``, ``empty`` or ``normal``.
    """

    prompt_tokens: Count
    structured: bool = False
    sampling: Sampling | None = None
    adapter: Name | None = None
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTable:
    """What is known of every table.

    ``key`` is the type of its rows' keys in a packet, ``about`` what docs/plugin.md says of them.
    ``sums_to_total`` is False if not all requests are in it, so that its rows do not sum to the
    report's total.
    """

    key: Any
    about: str
    sums_to_total: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable(RequestTable):
    """A table whose rows are groups of requests.

    ``labels`` are the groups that exist from the start, and ``label`` is the group of a key.
    ``name`` is what the pages call a group, with ``{}`` for its label. ``key_of`` is a finished
    request's key; None if the groups are not compared with one another at the same temperatures.
    ``undrafted`` are groups whose requests never get drafts, whatever vLLM does.
    """

    name: str
    labels: tuple[str, ...] = ()
    undrafted: frozenset[str] = frozenset()
    label: Callable[[Any], str] = str
    key_of: Callable[[RequestGroups], int | str | None] | None


def prompt_label(exponent: int) -> str:
    """The group of prompts of at most 2 ** ``exponent`` tokens."""
    return PROMPT_LABELS[bisect_left(_PROMPT_EDGES, exponent)]


class Table(StrEnum):
    """The tables that tally requests, each by something else.

    Groups come in this order in the report and on the pages.
    """

    declared: RequestTable

    def __new__(cls, name: str, declared: RequestTable) -> Self:
        """A member is its name, and has its declaration beside it."""
        table = str.__new__(cls, name)
        table._value_ = name
        table.declared = declared
        return table

    # The one table with tokens by position; its labels are those of ``TemperatureBuckets``.
    TEMPERATURE = (
        "temperature",
        RequestTable(
            # Version 2 has no limit of 2, and "other".
            key=Hundredths | Literal["other"],
            about=f"hundredths, rounded up, to {ABOVE_2 - 1}; {ABOVE_2} is above 2",
        ),
    )
    PROMPT_TOKENS = (
        "prompt_tokens",
        GroupTable(
            key=Exponent,
            about="n, for at most 2ⁿ tokens",
            name="prompts of {} tokens",
            labels=PROMPT_LABELS,
            label=prompt_label,
            key_of=lambda request: max(request.prompt_tokens - 1, 0).bit_length(),
        ),
    )
    OUTPUT = (
        "output",
        GroupTable(
            key=Output,
            about="`structured` or `free`",
            name="{} output",
            labels=get_args(Output),
            key_of=lambda request: "structured" if request.structured else "free",
        ),
    )
    ENDING = (
        "ending",
        GroupTable(
            key=Ending,
            about=(
                "`normal`, `loop`, `empty`: of finished requests only, where vLLM shows output"
                " tokens"
            ),
            sums_to_total=False,
            name="{} endings",
            labels=ENDINGS,
            undrafted=frozenset({EMPTY}),  # the first token comes from the prompt
            key_of=None,  # nothing that a request asked for
        ),
    )
    SAMPLING = (
        "sampling",
        GroupTable(
            # Greedy; above temperature 0: penalties, filtered (top-k, top-p, min-p) or plain.
            key=Sampling,
            about="`greedy`, `plain`, `filtered`, `penalties`",
            name="{} sampling",
            labels=get_args(Sampling),
            key_of=lambda request: request.sampling,
        ),
    )
    ADAPTER = (
        "adapter",
        GroupTable(
            key=Name,
            about="LoRA name, `other`, or empty for none",
            name="adapter {}",
            key_of=lambda request: request.adapter or "",
        ),
    )


GROUPED: Final[Mapping[Table, GroupTable]] = {
    table: table.declared for table in Table if isinstance(table.declared, GroupTable)
}
"""The tables with a row a group."""
