"""The wire format between the plug-in in vLLM and the sidecar, and what the sidecar reads from it.

One packet is one JSON object over a Unix SEQPACKET socket. Nothing in a packet is trusted: each
field has a type, a range and a maximum size, and a packet that violates one is refused as a whole.
Other fields and tables are ignored, so a plug-in may send more in the same version.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Final, Generic, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from sidecar.requests.tally import Count, Outcome, Tally

VERSION: Final = 2
MAX_PACKET_BYTES: Final = 65_536
MAX_FINISHED: Final = 64  # finished requests per packet
MAX_KEYS: Final = 256  # rows per table; further ones are summed under OTHER
OTHER: Final = "other"
_MOST: Final = 2**31
_MOST_DRAFTED: Final = 1024  # tokens per draft

Seconds = Annotated[float, Field(ge=0, le=2**53, allow_inf_nan=False)]
UnixSeconds = Annotated[float, Field(ge=0, le=2**40, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=256)]
Version = Annotated[str, Field(max_length=64)]
Hundredths = Annotated[int, Field(ge=0, le=1_000_000)]
Exponent = Annotated[int, Field(ge=0, le=64)]
Parameters = Annotated[
    tuple[Annotated[str, Field(max_length=24)], ...], Field(max_length=8, fail_fast=True)
]
Other = Literal["other"]
Sampling = Literal["greedy", "plain", "filtered", "penalties"]


class HelloState(StrEnum):
    """What the plug-in does in an engine; ``Hello.reason`` says why if it does not observe."""

    OBSERVING = "observing"
    # The scheduler's class overrides methods; reports begin once a step shows vLLM's are called.
    CHECKING = "checking"
    # It does not observe: the scheduler's methods are not those that it knows, or not called.
    REFUSED = "refused"
    DISABLED = "disabled"  # it failed and disabled itself


@dataclass(frozen=True, slots=True)
class Speculation:
    """The engine's speculative configuration; the names are vLLM's.

    ``per_batch_size``: the number of tokens follows a schedule by batch size, ``schedule``: its
    first and last number of requests and draft tokens. ``parallel_drafting``: a model drafts all
    tokens in one pass. ``local_argmax`` is vLLM's use_local_argmax_reduction, ``keeps_last_block``
    its disable_eagle_block_drop. None: this vLLM has none.
    """

    method: Name | None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=_MOST_DRAFTED)]
    per_batch_size: bool = False
    adaptive_verification: bool = False
    rejection_sample_method: Name | None = None
    parallel_drafting: bool = False
    schedule: Annotated[tuple[tuple[Count, Count, Count], ...], Field(max_length=64)] = ()
    draft_sample_method: Name | None = None
    local_argmax: bool | None = None
    heterogeneous_vocab: bool | None = None
    keeps_last_block: bool | None = None
    draft_quantization: Name | None = None
    draft_max_model_len: Count | None = None
    draft_layers: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The rest of the engine's configuration that explains an acceptance rate or a speedup.

    None if unknown.
    """

    model_runner_v2: bool | None = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
    quantization: Name | None = None
    max_num_seqs: Count | None = None
    vocabulary: Count | None = None
    data_parallel_size: Count | None = None
    block_size: Count | None = None
    layers: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identifies the sender: the first message of each connection.

    Sent again when the state changes. ``start`` identifies one life of one scheduler; totals start
    at 0 in each. ``speculation`` is None if there is none.
    """

    plugin: Version
    vllm: Version | None
    model: Annotated[str, Field(max_length=1024)] | None
    engine: Annotated[int, Field(ge=0, le=_MOST)]
    start: Annotated[str, Field(min_length=1, max_length=64)]
    started: UnixSeconds
    state: HelloState
    reason: Annotated[str, Field(max_length=200)] = ""
    speculation: Speculation | None = None
    configuration: Configuration = Configuration()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One finished request; each of ``n`` choices counts as one.

    ``temperature`` is the one in effect, in hundredths, rounded up. ``arrival`` is by the API
    server's clock, the tokens' times are by the engine's. ``parameters`` names the request's
    sampling parameters that vLLM from 0.14 on rejects while it speculates.
    """

    temperature: Hundredths
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    prompt_tokens: Count
    output_tokens: Count
    arrival: UnixSeconds | None
    first_token: UnixSeconds | None
    last_token: UnixSeconds | None
    outcome: Outcome
    structured: bool = False
    sampling: Sampling | None = None
    adapter: Name | None = None
    parameters: Parameters = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTally:
    """Engine steps.

    ``decodes`` sums the requests that decoded in each, ``tokens`` the tokens that these got, and
    ``request_seconds`` the products of the requests and the step's duration.
    """

    steps: Count = 0
    decodes: Count = 0
    request_seconds: Seconds = 0.0
    tokens: Count = 0

    def __add__(self, other: "StepTally") -> "StepTally":
        """The sum of both."""
        return StepTally(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__slots__}
        )

    def __sub__(self, before: "StepTally") -> "StepTally":
        """The growth since ``before``."""
        return StepTally(
            **{name: getattr(self, name) - getattr(before, name) for name in self.__slots__}
        )


Key = TypeVar("Key")
AnyTally = TypeVar("AnyTally")  # Tally or StepTally


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[Key, AnyTally]):
    """A row of a table: what has been counted under a key that first appeared at ``since``."""

    key: Key
    since: UnixSeconds
    counts: AnyTally


class Table(StrEnum):
    """The tables that tally requests, each by something else; all sum to the same total."""

    TEMPERATURE = "temperature"  # in hundredths, rounded up
    PROMPT_TOKENS = "prompt_tokens"  # key n: more than 2**(n - 1) and at most 2**n prompt tokens
    OUTPUT = "output"  # structured or free
    # Greedy; above temperature 0: penalties, filtered (top-k, top-p, min-p) or plain.
    SAMPLING = "sampling"
    ADAPTER = "adapter"  # the LoRA adapter's name, "" without one


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEnd:
    """The total of a report's tables.

    ``lost`` is how many finished requests could not be sent, because the sidecar was away.
    """

    total: Tally
    lost: Count


_Table: Final = Field(max_length=MAX_KEYS + 1, fail_fast=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPart:
    """One packet of a report: totals, and the requests that finished since the last report.

    The totals count from ``Hello.start``. A report is one cut: all its rows and its total are from
    the same moment. A row that is missing has not changed since the last report on this connection;
    the first one has every row. The report is whole once the part with ``end`` has arrived.
    ``steps`` has a row for each number of decoding requests, a power of two like prompt lengths. No
    table but ``temperature`` has tokens by position.
    """

    temperature: Annotated[tuple[Row[Hundredths | Other, Tally], ...], _Table] = ()
    prompt_tokens: Annotated[tuple[Row[Exponent, Tally], ...], _Table] = ()
    output: Annotated[tuple[Row[Literal["free", "structured"], Tally], ...], _Table] = ()
    sampling: Annotated[tuple[Row[Sampling, Tally], ...], _Table] = ()
    adapter: Annotated[tuple[Row[Name, Tally], ...], _Table] = ()
    steps: Annotated[tuple[Row[Exponent, StepTally], ...], _Table] = ()
    finished: Annotated[
        tuple[FinishedRequest, ...], Field(max_length=MAX_FINISHED, fail_fast=True)
    ] = ()
    end: ReportEnd | None = None

    @property
    def rows(self) -> Iterator[tuple[Table, Row[int | str, Tally]]]:
        """The rows of the tables that tally requests."""
        for table in Table:
            for row in getattr(self, table):
                yield table, row

    @property
    def is_possible(self) -> bool:
        """Whether no number contradicts another of its row or request."""
        return (
            all(row.counts.is_possible for _, row in self.rows)
            and all(request.accepted_tokens <= request.draft_tokens for request in self.finished)
            and (self.end is None or self.end.total.is_possible)
        )


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet; its parts must be processed in this order."""

    v: Literal[2]
    hello: Hello | None = None
    report: ReportPart | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A packet of another version of the format."""

    version: Annotated[int, Field(ge=0, le=_MOST, validation_alias="v")]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was refused; ``reason`` is one of the receiver's ``DROP_REASONS``."""

    reason: str


Message = Hello | ReportPart | Unreadable | Dropped | None
PluginSink = Callable[[int, Message], None]
"""Receives the plug-ins' messages on the event loop, each with the number of its connection.

Numbers are never reused. A connection's messages begin with a Hello or an Unreadable and end with
None when it closes. A Dropped may come at any time, even before these or without a connection
(number 0). Calls are quick, never block and never raise.
"""


class Malformed(Exception):
    """Not a packet of any version."""


def read_packet(text: bytes) -> Packet | Unreadable:
    """Reads one packet.

    Raises:
        Malformed: a field is missing, of a wrong type or out of range, or the numbers contradict
            each other.
    """
    try:
        packet = _packets().validate_json(text, strict=True)
    except ValidationError as error:
        raise Malformed from error
    if isinstance(packet, Unreadable):
        if packet.version == VERSION:
            raise Malformed
    elif packet.report is not None and not packet.report.is_possible:
        raise Malformed
    return packet


@cache
def _packets() -> TypeAdapter[Packet | Unreadable]:
    return TypeAdapter(Annotated[Packet | Unreadable, Field(union_mode="left_to_right")])
