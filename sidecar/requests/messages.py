"""The wire format between the plug-in in vLLM and the sidecar, and what the sidecar reads from it.

One packet is one JSON object over a Unix SEQPACKET socket. Nothing in a packet is trusted: each
field has a type, a range and a maximum size, and a packet that violates one is refused as a whole.
Other fields and tables are ignored, so a plug-in may send more in the same version. Version 2, in
which a report's tables are fields of it, is read as well and becomes the same structures.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
)

from sidecar.requests.tables import (
    Exponent,
    Hundredths,
    Name,
    Output,
    RequestGroups,
    RowKey,
    Sampling,
    Table,
)
from sidecar.requests.tally import Count, Outcome, Tally

VERSION: Final = 3
READ_VERSIONS: Final = (2, VERSION)
MAX_PACKET_BYTES: Final = 65_536
MAX_FINISHED: Final = 64  # finished requests per packet
MAX_KEYS: Final = 256  # rows per table; further ones are summed under "other"
_MOST: Final = 2**31
_MOST_DRAFTED: Final = 1024  # tokens per draft
_MOST_TABLES: Final = 64

Seconds = Annotated[float, Field(ge=0, le=2**53, allow_inf_nan=False)]
UnixSeconds = Annotated[float, Field(ge=0, le=2**40, allow_inf_nan=False)]
Version = Annotated[str, Field(max_length=64)]
StepExponent = Annotated[int, Field(ge=0, le=20)]
Parameters = Annotated[
    tuple[Annotated[str, Field(max_length=24)], ...], Field(max_length=8, fail_fast=True)
]
TABLES_OF_VERSION_2: Final = frozenset(
    {Table.TEMPERATURE, Table.PROMPT_TOKENS, Table.OUTPUT, Table.SAMPLING, Table.ADAPTER}
)
"""Those that a plug-in of version 2 sends, which does not name them."""


def _json_object(text: str) -> str:
    """A JSON object of texts, numbers, flags and lists, as it came.

    Raises:
        ValueError: it is something else.
    """
    try:
        options = json.loads(text)
    except RecursionError as error:
        raise ValueError from error
    if not isinstance(options, dict) or any(isinstance(one, dict) for one in options.values()):
        raise ValueError
    return text


Options = Annotated[str, Field(max_length=4096), AfterValidator(_json_object)]
ServerId = Annotated[str, Field(min_length=1, max_length=64)]


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
    its disable_eagle_block_drop. ``options`` is vLLM's whole --speculative-config, a JSON object.
    None: this vLLM has none.
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
    draft_architectures: Annotated[tuple[Name, ...], Field(max_length=8)] | None = None
    options: Options | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The rest of the engine's configuration that explains an acceptance rate or a speedup.

    It is what vLLM made of its options. None where this vLLM cannot tell. ``drops_cache_block``:
    the last block of a prefix-cache hit is computed again; ``lookahead_hash_tokens``: how many
    tokens after a block its hash includes, which makes that unnecessary.
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
    drops_cache_block: bool | None = None
    lookahead_hash_tokens: Count | None = None
    max_model_len: Count | None = None
    pipeline_parallel_size: Count | None = None
    kv_connector_role: Name | None = None


def _known_tables(names: Any) -> frozenset[Table] | None:
    """The tables that a hello names, without those that this sidecar does not know.

    Raises:
        ValueError: it is no list of at most 64 names.
    """
    if names is None:
        return None
    if not isinstance(names, list | frozenset) or len(names) > _MOST_TABLES:
        raise ValueError
    return frozenset(table for table in Table if table in names)


Tables = Annotated[
    frozenset[Table] | None,
    PlainValidator(_known_tables),
    PlainSerializer(sorted, when_used="unless-none"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identifies the sender: the first message of each connection.

    Sent again when the state changes. ``start`` identifies one life of one scheduler; totals start
    at 0 in each. ``speculation`` is None if there is none. ``tables`` are those that it sends; None
    if it does not say, as in version 2. ``server`` is the id of the vLLM server that the engine is
    of, as vLLM's page has it in ``specdec_server_info``; None where the plug-in made none.
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
    tables: Tables = None
    server: ServerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest(RequestGroups):
    """One finished request; each of ``n`` choices counts as one.

    ``temperature`` is the one in effect, in hundredths, rounded up. ``arrival`` is by the API
    server's clock, the tokens' times are by the engine's. ``parameters`` names the request's
    sampling parameters that vLLM from 0.14 on rejects while it speculates. ``cached_tokens`` are
    the prompt tokens found in the prefix cache; None where this vLLM cannot tell.
    """

    temperature: Hundredths
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    output_tokens: Count
    arrival: UnixSeconds | None
    first_token: UnixSeconds | None
    last_token: UnixSeconds | None
    outcome: Outcome
    parameters: Parameters = ()
    cached_tokens: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTally:
    """Engine steps.

    ``seconds`` sums their durations, ``decodes`` the requests that decoded in each, ``tokens`` the
    tokens that these got, and ``request_seconds`` the products of the requests and the step's
    duration. ``prefill_tokens`` are those that were computed of prompts in the same steps,
    ``context_tokens`` sums the tokens in the KV cache of the decoding requests, as sampled once a
    report, and ``drafts`` the requests with a draft; version 2 has none of the three.
    """

    steps: Count = 0
    seconds: Seconds = 0.0
    decodes: Count = 0
    request_seconds: Seconds = 0.0
    tokens: Count = 0
    prefill_tokens: Count = 0
    context_tokens: Count = 0
    drafts: Count = 0

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


@dataclass(frozen=True, slots=True)
class StepKey:
    """What the steps of a row have in common.

    Up to ``2**running`` requests decode in each. The mean context of these is at most
    ``4**context`` tokens, as last sampled. ``is_mixed``: more than 64 tokens of prompts were
    computed in the step. None from a plug-in that does not say.
    """

    running: Exponent
    context: StepExponent | None = None
    is_mixed: bool | None = None


Key = TypeVar("Key")
AnyTally = TypeVar("AnyTally")  # Tally or StepTally


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Generic[Key, AnyTally]):
    """A row of a table: what has been counted under a key that first appeared at ``since``."""

    key: Key
    since: UnixSeconds
    counts: AnyTally


TallyRow = Row[RowKey, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEnd:
    """The total of a report's tables, and the engine's heartbeat at the same moment.

    ``lost`` is how many finished requests could not be sent. ``at`` is the moment of the cut.
    ``steps`` and ``generation_tokens`` count since the engine started, ``running`` and ``waiting``
    are requests. None from a plug-in that does not say.
    """

    total: Tally
    lost: Count
    at: UnixSeconds | None = None
    steps: Count | None = None
    generation_tokens: Count | None = None
    running: Count | None = None
    waiting: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPart:
    """One packet of a report: totals, and the requests that finished since the last report.

    The totals count from ``Hello.start``. A report is one cut: all its rows and its total are from
    the same moment. A row that is missing has not changed since the last report on this connection;
    the first one has every row. The report is whole once the part with ``end`` has arrived. No
    table but ``temperature`` has tokens by position.
    """

    tables: Mapping[Table, tuple[TallyRow, ...]] = field(default_factory=dict)
    steps: tuple[Row[StepKey, StepTally], ...] = ()
    finished: tuple[FinishedRequest, ...] = ()
    end: ReportEnd | None = None

    @property
    def rows(self) -> Iterator[tuple[Table, TallyRow]]:
        """The rows of the tables that tally requests."""
        for table, rows in self.tables.items():
            for row in rows:
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
        read = _packets().validate_json(text, strict=True)
    except ValidationError as error:
        raise Malformed from error

    if isinstance(read, Unreadable):
        if read.version in READ_VERSIONS:
            raise Malformed
        return read

    packet = Packet(read.hello, None if read.report is None else read.report.part())
    if packet.report is not None and not packet.report.is_possible:
        raise Malformed
    return packet


# How the packets of each version are laid out.

_AT_MOST_KEYS: Final = Field(max_length=MAX_KEYS + 1, fail_fast=True)
_Rows = Annotated[tuple[Row[Key, AnyTally], ...], _AT_MOST_KEYS]
_Finished = Annotated[tuple[FinishedRequest, ...], Field(max_length=MAX_FINISHED, fail_fast=True)]


@dataclass(frozen=True)
class ReportVersion2:
    """A part of a report of version 2, in which the tables are fields of it.

    They are written out: no other table will be sent in that version.
    """

    temperature: _Rows[Hundredths | Literal["other"], Tally] = ()
    prompt_tokens: _Rows[Exponent, Tally] = ()
    output: _Rows[Output, Tally] = ()
    sampling: _Rows[Sampling, Tally] = ()
    adapter: _Rows[Name, Tally] = ()
    steps: _Rows[Exponent, StepTally] = ()
    finished: _Finished = ()
    end: ReportEnd | None = None

    def part(self) -> ReportPart:
        """The same in the structure of today."""
        tables: dict[Table, tuple[Row[Any, Tally], ...]] = {
            Table.TEMPERATURE: self.temperature,
            Table.PROMPT_TOKENS: self.prompt_tokens,
            Table.OUTPUT: self.output,
            Table.SAMPLING: self.sampling,
            Table.ADAPTER: self.adapter,
        }
        steps = tuple(
            Row(key=StepKey(row.key), since=row.since, counts=row.counts) for row in self.steps
        )

        return ReportPart(
            tables=_with_rows(tables), steps=steps, finished=self.finished, end=self.end
        )


_StepKey3 = tuple[StepExponent, StepExponent | None, bool | None]


def _rows_by(key: Any) -> Any:
    """The type of the rows of a table with such keys."""
    return Annotated[tuple[Row[key, Tally], ...], _AT_MOST_KEYS]


# The tables of version 3: an attribute for each that is declared, empty where the packet has none.
_Tables3: Any = make_dataclass(
    "_Tables3",
    [
        *((table.value, _rows_by(table.declared.key), ()) for table in Table),
        ("steps", _Rows[_StepKey3, StepTally], ()),
    ],
    frozen=True,
)


@dataclass(frozen=True)
class _ReportVersion3:
    tables: _Tables3 = field(default_factory=_Tables3)
    finished: _Finished = ()
    end: ReportEnd | None = None

    def part(self) -> ReportPart:
        tables = {table: getattr(self.tables, table) for table in Table}
        steps = tuple(
            Row(key=StepKey(*row.key), since=row.since, counts=row.counts)
            for row in self.tables.steps
        )

        return ReportPart(
            tables=_with_rows(tables), steps=steps, finished=self.finished, end=self.end
        )


def _with_rows(
    tables: Mapping[Table, tuple[Row[Any, Tally], ...]],
) -> dict[Table, tuple[TallyRow, ...]]:
    """The tables that have rows; one without did not change, or does not exist."""
    return {table: rows for table, rows in tables.items() if rows}


@dataclass(frozen=True, slots=True)
class _PacketVersion2:
    v: Literal[2]
    hello: Hello | None = None
    report: ReportVersion2 | None = None


@dataclass(frozen=True, slots=True)
class _PacketVersion3:
    v: Literal[3]
    hello: Hello | None = None
    report: _ReportVersion3 | None = None


_AnyPacket = _PacketVersion2 | _PacketVersion3 | Unreadable


@cache
def _packets() -> TypeAdapter[_AnyPacket]:
    known = Annotated[_PacketVersion2 | _PacketVersion3, Field(discriminator="v")]
    return TypeAdapter(Annotated[known | Unreadable, Field(union_mode="left_to_right")])
