"""What requests are counted by.

The plug-in counts by ``CellKey``, which has everything by which it tells requests apart. A
``Table`` sums the cells by one of these things; the report's groups and their names follow from the
tables. The plug-in cannot import this module, so it declares its own side; a test compares the two.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field

from sidecar.requests.tally import Count

OTHER: Final = "other"
ABOVE_2: Final = 201  # the key of all temperatures above 2, in hundredths
PROMPT_LABELS: Final = ("0-512", "512-2k", "2k-8k", "8k-32k", "32k+")
_PROMPT_EDGES: Final = (9, 11, 13, 15)  # their highest exponents, the last one's apart: 512 is 2**9
LOOP: Final = "loop"
EMPTY: Final = "empty"

# The types of keys in a packet.
Name = Annotated[str, Field(max_length=256)]
Hundredths = Annotated[int, Field(ge=0, le=ABOVE_2)]
Exponent = Annotated[int, Field(ge=0, le=64)]
Output = Literal["free", "structured"]
Sampling = Literal["greedy", "plain", "filtered", "penalties"]
Ending = Literal["normal", "loop", "empty"]
ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)
OWN_MARK: Final = "specdec-own-"
"""Part of the id of every request that this product's own commands send."""


class Bit(IntFlag):
    """What else a request is counted by, one bit each; the values are the plug-in's."""

    STRUCTURED = 1
    FILTERED = 2  # top-k, top-p or min-p
    PENALTIES = 4
    MIN_P = 8
    LOGIT_BIAS = 16
    OWN = 32  # one of this product's own commands has sent it


Bits = Annotated[int, Field(ge=0, le=2**16)]
PARAMETERS: Final[Mapping[Bit, str]] = {Bit.MIN_P: "min_p", Bit.LOGIT_BIAS: "logit_bias"}
"""Sampling parameters with a bit of their own: vLLM 0.14 and later reject them when speculating."""


def sampling_of(temperature: int | None, bits: int) -> Sampling | None:
    """How tokens are sampled; None if the temperature is unknown.

    Greedy at temperature 0; above it, with penalties, otherwise filtered, otherwise plain.
    """
    if temperature is None:
        return None
    if temperature == 0:
        return "greedy"
    if bits & Bit.PENALTIES:
        return "penalties"
    return "filtered" if bits & Bit.FILTERED else "plain"


@dataclass(frozen=True, slots=True)
class CellKey:
    """What the requests of one of the plug-in's cells have in common.

    ``temperature`` is in hundredths, rounded up; None: unknown. Their prompts have at most
    2 ** ``prompt`` tokens. If ``prompt`` is None, the plug-in has too many combinations of keys to
    tell these requests apart by anything but their temperature.
    """

    temperature: Hundredths | None
    bits: Bits
    prompt: Exponent | None
    adapter: Name | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroups:
    """What decides a finished request's groups; None if the plug-in does not know.

    ``ending`` says how its output ends: in a ``loop``, ``empty`` or ``normal``.
    """

    prompt_tokens: Count
    structured: bool = False
    sampling: Sampling | None = None
    adapter: Name | None = None
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    """A table whose rows are groups of requests.

    ``labels`` are the groups that exist from the start; ``label`` gives the group of a key.
    ``name`` is what the pages call a group, with ``{}`` for its label. ``key_of`` gives a finished
    request's key; it is None if the groups are not compared with one another at the same
    temperatures. ``key_of_cell`` gives a cell's key, None if unknown; without it, the plug-in
    itself sums the table. Requests of the groups ``undrafted`` never get drafts.
    """

    name: str
    labels: tuple[str, ...] = ()
    undrafted: frozenset[str] = frozenset()
    label: Callable[[Any], str] = str
    key_of: Callable[[RequestGroups], int | str | None] | None
    key_of_cell: Callable[[CellKey], int | str | None] | None


def prompt_label(exponent: int) -> str:
    """The group of prompts of at most 2 ** ``exponent`` tokens."""
    return PROMPT_LABELS[bisect_left(_PROMPT_EDGES, exponent)]


def _output(key: CellKey) -> Output:
    return "structured" if key.bits & Bit.STRUCTURED else "free"


class Table(StrEnum):
    """What requests are summed by: the report and the pages have the groups in this order."""

    declared: GroupTable | None

    def __new__(cls, name: str, declared: GroupTable | None = None) -> Self:
        """A member is its name, and has its declaration in ``declared``."""
        table = str.__new__(cls, name)
        table._value_ = name
        table.declared = declared
        return table

    # What this product's own commands have sent: it is in this table alone, in one row.
    OWN = ("own",)
    # The one table with tokens by position; its labels are those of ``TemperatureBuckets``.
    TEMPERATURE = ("temperature",)
    PROMPT_TOKENS = (
        "prompt_tokens",
        GroupTable(
            name="prompts of {} tokens",
            labels=PROMPT_LABELS,
            label=prompt_label,
            key_of=lambda request: max(request.prompt_tokens - 1, 0).bit_length(),
            key_of_cell=lambda key: key.prompt,
        ),
    )
    OUTPUT = (
        "output",
        GroupTable(
            name="{} output",
            labels=get_args(Output),
            key_of=lambda request: "structured" if request.structured else "free",
            key_of_cell=_output,
        ),
    )
    ENDING = (
        "ending",
        GroupTable(
            name="{} endings",
            labels=ENDINGS,
            undrafted=frozenset({EMPTY}),  # the first token comes from the prompt
            key_of=None,  # no request asks for its ending
            key_of_cell=None,
        ),
    )
    SAMPLING = (
        "sampling",
        GroupTable(
            name="{} sampling",
            labels=get_args(Sampling),
            key_of=lambda request: request.sampling,
            key_of_cell=lambda key: sampling_of(key.temperature, key.bits),
        ),
    )
    ADAPTER = (
        "adapter",
        GroupTable(
            name="adapter {}",
            key_of=lambda request: request.adapter or "",
            key_of_cell=lambda key: key.adapter or "",
        ),
    )


GROUPED: Final[Mapping[Table, GroupTable]] = {
    table: table.declared for table in Table if table.declared is not None
}
"""The tables with one row per group."""
