"""The wire format between the plug-in in vLLM and the sidecar, and the messages that it carries.

One packet is one JSON object over a Unix SEQPACKET socket. Nothing in a packet is trusted: each
field has a type, a range and a maximum size, and a packet that violates one is refused as a whole.
Unknown fields are ignored, so a plug-in may send more in the same version of the format.

A packet of another version is ``Unreadable``, so that the status page can name the version. From
the first release on, a sidecar reads the current version and the one before it.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from operator import add, attrgetter, sub
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from sidecar.requests.keys import (
    PARAMETERS,
    Bit,
    Bits,
    CellKey,
    Ending,
    Exponent,
    Hundredths,
    Name,
    RequestGroups,
    sampling_of,
)
from sidecar.requests.tally import Count, Numbers, Outcome, Tally, are_possible

VERSION: Final = 4
MAX_PACKET_BYTES: Final = 131_072
MAX_ITEMS: Final = 64  # of one kind in a packet
_MOST: Final = 2**31
_MOST_DRAFTED: Final = 1024  # tokens per draft

Seconds = Annotated[float, Field(ge=0, le=2**53, allow_inf_nan=False)]
UnixSeconds = Annotated[float, Field(ge=0, le=2**40, allow_inf_nan=False)]
Version = Annotated[str, Field(max_length=64)]
ServerId = Annotated[str, Field(min_length=1, max_length=64)]
StepExponent = Annotated[int, Field(ge=0, le=20)]
Decodes = Annotated[int, Field(ge=0, le=2**20)]
Parameters = Annotated[
    tuple[Annotated[str, Field(max_length=24)], ...], Field(max_length=8, fail_fast=True)
]


def _json_object(text: str) -> str:
    """Returns the text unchanged if it is a JSON object of texts, numbers, flags and lists.

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


Sizes = Annotated[dict[Annotated[str, Field(max_length=64)], Count], Field(max_length=32)]
Options = Annotated[str, Field(max_length=4096), AfterValidator(_json_object)]


class HelloState(StrEnum):
    """What the plug-in does in an engine; ``Hello.reason`` says why if it does not observe."""

    OBSERVING = "observing"
    REFUSED = "refused"  # it does not know the scheduler's methods
    DISABLED = "disabled"  # it failed and disabled itself


@dataclass(frozen=True, slots=True)
class Speculation:
    """The engine's speculative configuration; the names are vLLM's.

    ``per_batch_size``: the number of draft tokens follows ``schedule``, whose rows have the first
    and the last number of requests and the number of draft tokens. ``parallel_drafting``: a model
    drafts all tokens in one pass. ``local_argmax`` is vLLM's use_local_argmax_reduction,
    ``keeps_last_block`` its disable_eagle_block_drop. ``draft_sizes`` are the dimensions of the
    draft model, or of the target if no other model drafts. ``options`` is vLLM's whole
    --speculative-config, a JSON object. A field is None if this vLLM has no such setting.
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
    draft_tensor_parallel_size: Count | None = None
    draft_sizes: Sizes = field(default_factory=dict, hash=False)
    draft_architectures: Annotated[tuple[Name, ...], Field(max_length=8)] | None = None
    options: Options | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The rest of the engine's configuration that explains an acceptance rate or a speedup.

    It is what vLLM made of its options; a field is None if this vLLM does not say.
    ``drops_cache_block``: the last block of a prefix-cache hit is computed again; ``block_size`` is
    the number of its tokens, 0 if blocks have several sizes and it is not known which.
    ``lookahead_hash_tokens`` is how many tokens after a block its hash includes; with any, no block
    needs to be dropped. ``device`` is vLLM's device type, ``accelerator`` the device's model, by
    its driver. ``is_hybrid``: some layers keep a state; ``is_moe``: some have experts. ``sizes``
    are the dimensions that the model's configuration has, by their names there.
    """

    model_runner_v2: bool | None = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
    quantization: Name | None = None
    max_num_seqs: Count | None = None
    data_parallel_size: Count | None = None
    tensor_parallel_size: Count | None = None
    block_size: Count | None = None
    drops_cache_block: bool | None = None
    lookahead_hash_tokens: Count | None = None
    max_model_len: Count | None = None
    pipeline_parallel_size: Count | None = None
    kv_connector_role: Name | None = None
    accelerator: Name | None = None
    device: Name | None = None
    is_hybrid: bool | None = None
    is_moe: bool | None = None
    sizes: Sizes = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identifies the sender: the first message on each connection.

    Sent again when the state changes. ``server`` is the random id of vLLM's server, or None if it
    has none; ``start`` identifies one life of one scheduler, in which counts start at 0. ``own``
    names the methods that the scheduler's class has in place of vLLM's. ``full``: there are too
    many combinations of keys to tell all of them apart. ``speculation`` is None if the engine does
    not speculate.
    """

    plugin: Version
    vllm: Version | None
    model: Annotated[str, Field(max_length=1024)] | None
    engine: Annotated[int, Field(ge=0, le=_MOST)]
    server: ServerId | None = None
    start: Annotated[str, Field(min_length=1, max_length=64)]
    started: UnixSeconds
    own: Annotated[tuple[Name, ...], Field(max_length=16)] = ()
    full: bool = False
    state: HelloState
    reason: Annotated[str, Field(max_length=200)] = ""
    speculation: Speculation | None = None
    configuration: Configuration = Configuration()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest(RequestGroups):
    """One finished request; each of ``n`` choices counts as one.

    ``temperature`` is the one in effect, in hundredths, rounded up; None: unknown. ``arrival`` is
    by the API server's clock, the tokens' times are by the engine's. ``parameters`` names those of
    ``PARAMETERS`` that it has. ``cached_tokens`` counts the prompt tokens found in the prefix
    cache; None if this vLLM does not say. For a session of several turns, it, ``output_tokens`` and
    all times are None. ``is_own``: one of this product's own commands has sent it.
    """

    temperature: Hundredths | None
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    output_tokens: Count | None
    arrival: UnixSeconds | None
    first_token: UnixSeconds | None
    last_token: UnixSeconds | None
    outcome: Outcome
    parameters: Parameters = ()
    cached_tokens: Count | None = None
    is_own: bool = False

    @property
    def decoded_tokens(self) -> int:
        """Tokens after the first; 0 if unknown."""
        return max((self.output_tokens or 0) - 1, 0)


@dataclass(frozen=True, slots=True)
class StepTally:
    """Engine steps.

    ``seconds`` sums their durations, ``decodes`` the requests that decoded in each, ``tokens`` the
    tokens that these got, and ``request_seconds`` their number times the step's duration.
    ``prefill_tokens`` sums the prompt tokens computed in the same steps, ``context_tokens`` the
    tokens that the decoding requests have in the KV cache, as sampled once per report, and
    ``drafts`` the requests with a draft. The order is that of the packets.
    """

    steps: Count = 0
    seconds: Seconds = 0.0
    decodes: Count = 0
    request_seconds: Seconds = 0.0
    tokens: Count = 0
    prefill_tokens: Count = 0
    context_tokens: Count = 0
    drafts: Count = 0

    @classmethod
    def sum(cls, tallies: Iterable["StepTally"]) -> "StepTally":
        """The sum of all of them."""
        return cls(*map(sum, zip(*map(_READ_STEPS, tallies), strict=True)))

    def __add__(self, other: "StepTally") -> "StepTally":
        """The sum of both."""
        return StepTally(*map(add, _READ_STEPS(self), _READ_STEPS(other)))

    def __sub__(self, before: "StepTally") -> "StepTally":
        """The growth since ``before``."""
        return StepTally(*map(sub, _READ_STEPS(self), _READ_STEPS(before)))


_READ_STEPS: Final = attrgetter(*StepTally.__slots__)


@dataclass(frozen=True, slots=True)
class StepKey:
    """What the steps of a cell have in common.

    ``decodes`` requests decode in each; above 16, at most so many and more than half of that; 0 in
    steps that only prefill. The mean context of these requests is at most ``4**context`` tokens, as
    last sampled. ``is_mixed``: more than 64 prompt tokens were computed in the step.
    """

    decodes: Decodes
    context: StepExponent
    is_mixed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEnd:
    """The engine's heartbeat at the moment of the cut, and how finished requests' outputs end.

    ``at`` is that moment. ``steps`` and ``generation_tokens`` count since the engine started;
    ``running`` and ``waiting`` are numbers of requests. ``lost`` is how many finished requests were
    dropped before they could be sent.
    """

    at: UnixSeconds
    steps: Count
    generation_tokens: Count
    running: Count
    waiting: Count
    lost: Count
    endings: dict[Ending, Tally]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPart:
    """One packet of a report: what was counted by key, and requests that have finished.

    Counts start at 0 with ``Hello.start``. A report is one cut: all its cells are from the same
    moment. A cell that is missing has not changed since the last report on this connection; the
    first report has every cell. It is whole once the part with ``end`` has arrived; finished
    requests come with that part or after it.
    """

    cells: tuple[tuple[CellKey, Numbers], ...] = ()
    steps: tuple[tuple[StepKey, StepTally], ...] = ()
    finished: tuple[FinishedRequest, ...] = ()
    end: ReportEnd | None = None

    @property
    def is_possible(self) -> bool:
        """Whether no number contradicts another one in the same cell or request."""
        endings = self.end.endings.values() if self.end is not None else ()
        return all(are_possible(numbers) for _, numbers in self.cells) and all(
            one.accepted_tokens <= one.draft_tokens for one in (*self.finished, *endings)
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
        if read.version == VERSION:
            raise Malformed
        return read

    packet = Packet(read.hello, None if read.report is None else read.report.part())
    if packet.report is not None and not packet.report.is_possible:
        raise Malformed
    return packet


# How the packets are laid out: rows are lists, in the order that docs/plugin.md also documents.

_AT_MOST: Final = Field(max_length=MAX_ITEMS, fail_fast=True)
_Cell = tuple[Hundredths | None, Bits, Exponent | None, Name | None, Numbers]
_StepNumbers = tuple[Count, Seconds, Count, Seconds, Count, Count, Count, Count]
_Steps = tuple[Decodes, StepExponent, bool, _StepNumbers]
_Ended = tuple[Count, Count, Count, Count, Count, Count, Count, Count]
_ENDED: Final = (*Outcome, "drafts", "draft_tokens", "accepted_tokens")


class _Finished(NamedTuple):
    temperature: Hundredths | None
    bits: Bits
    adapter: Name | None
    prompt_tokens: Count
    cached_tokens: Count | None
    output_tokens: Count | None
    outcome: Outcome
    ending: Ending | None
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    arrival: UnixSeconds | None
    first_token: UnixSeconds | None
    last_token: UnixSeconds | None

    def request(self) -> FinishedRequest:
        return FinishedRequest(
            temperature=self.temperature,
            structured=bool(self.bits & Bit.STRUCTURED),
            sampling=sampling_of(self.temperature, self.bits),
            parameters=tuple(name for bit, name in PARAMETERS.items() if self.bits & bit),
            is_own=bool(self.bits & Bit.OWN),
            adapter=self.adapter,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            outcome=self.outcome,
            ending=self.ending,
            drafts=self.drafts,
            draft_tokens=self.draft_tokens,
            accepted_tokens=self.accepted_tokens,
            arrival=self.arrival,
            first_token=self.first_token,
            last_token=self.last_token,
        )


@dataclass(frozen=True, slots=True)
class _End:
    at: UnixSeconds
    steps: Count
    generation_tokens: Count
    running: Count
    waiting: Count
    lost: Count
    endings: dict[Ending, _Ended]

    def end(self) -> ReportEnd:
        return ReportEnd(
            at=self.at,
            steps=self.steps,
            generation_tokens=self.generation_tokens,
            running=self.running,
            waiting=self.waiting,
            lost=self.lost,
            endings={
                ending: Tally(**dict(zip(_ENDED, numbers, strict=True)))
                for ending, numbers in self.endings.items()
            },
        )


@dataclass(frozen=True, slots=True)
class _Report:
    requests: Annotated[tuple[_Cell, ...], _AT_MOST] = ()
    steps: Annotated[tuple[_Steps, ...], _AT_MOST] = ()
    finished: Annotated[tuple[_Finished, ...], _AT_MOST] = ()
    end: _End | None = None

    def part(self) -> ReportPart:
        return ReportPart(
            cells=tuple(
                (CellKey(temperature, bits, prompt, adapter), numbers)
                for temperature, bits, prompt, adapter, numbers in self.requests
            ),
            steps=tuple(
                (StepKey(decodes, context, is_mixed), StepTally(*numbers))
                for decodes, context, is_mixed, numbers in self.steps
            ),
            finished=tuple(one.request() for one in self.finished),
            end=None if self.end is None else self.end.end(),
        )


@dataclass(frozen=True, slots=True)
class _Packet:
    v: Literal[4]
    hello: Hello | None = None
    report: _Report | None = None


@cache
def _packets() -> TypeAdapter[_Packet | Unreadable]:
    return TypeAdapter(Annotated[_Packet | Unreadable, Field(union_mode="left_to_right")])
