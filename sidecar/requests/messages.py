"""The wire format between the plug-in in vLLM and the sidecar, and what the sidecar reads from it.

One packet is one JSON object over a Unix SEQPACKET socket. Nothing in a packet is trusted: each field has a type, a
range and a maximum size, and a packet that violates one is refused as a whole. Unknown keys of an object are ignored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

VERSION: Final = 1
MAX_PACKET_BYTES: Final = 65_536
MAX_FINISHED: Final = 64  # finished requests per packet
MAX_KEYS: Final = 256  # rows per table; further ones are summed under OTHER
MAX_POSITIONS: Final = 32  # positions per draft; deeper ones are added to the last
OTHER: Final = "other"
_MOST: Final = 2**31
_MOST_DRAFTED: Final = 1024  # tokens per draft

Count = Annotated[int, Field(ge=0, le=2**53)]  # the largest range of integers that a double holds exactly
Seconds = Annotated[float, Field(ge=0, le=2**53, allow_inf_nan=False)]
UnixSeconds = Annotated[float, Field(ge=0, le=2**40, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=256)]
Version = Annotated[str, Field(max_length=64)]
Hundredths = Annotated[int, Field(ge=0, le=1_000_000)]
Exponent = Annotated[int, Field(ge=0, le=64)]
Positions = Annotated[tuple[Count, ...], Field(max_length=MAX_POSITIONS, fail_fast=True)]
Lengths = Annotated[tuple[Count, ...], Field(max_length=MAX_POSITIONS + 1, fail_fast=True)]
Parameters = Annotated[tuple[Annotated[str, Field(max_length=24)], ...], Field(max_length=8, fail_fast=True)]
Other = Literal["other"]


class Outcome(StrEnum):
    """How a request ended in the engine."""

    STOPPED = "stopped"  # at an end-of-sequence or stop token
    LENGTH = "length"
    ABORTED = "aborted"  # the client left, or the API server stopped it at a stop string
    ERROR = "error"


class HelloState(StrEnum):
    """What the plug-in does in an engine; ``Hello.reason`` says why if it does not observe."""

    OBSERVING = "observing"
    REFUSED = "refused"  # it does not observe: the scheduler's methods are not those that it knows
    DISABLED = "disabled"  # it failed and disabled itself


@dataclass(frozen=True, slots=True)
class Speculation:
    """The engine's speculative configuration; the names are vLLM's.

    ``per_batch_size``: the number of tokens follows a schedule by batch size.
    """

    method: Name | None
    num_speculative_tokens: Annotated[int, Field(ge=0, le=_MOST_DRAFTED)]
    per_batch_size: bool = False
    adaptive_verification: bool = False
    rejection_sample_method: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Identifies the sender: the first message of each connection, sent again when the state changes.

    ``start`` identifies one life of one scheduler; totals start at 0 in each. ``speculation`` is None if there is none.
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


class Totals(NamedTuple):
    """Verification steps that drafted, draft tokens and accepted tokens."""

    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count


class Endings(NamedTuple):
    """Finished requests by outcome."""

    stopped: Count
    length: Count
    aborted: Count
    error: Count


class TemperatureTotals(NamedTuple):
    """The totals of one temperature (in hundredths, rounded up), with draft and accepted tokens by position."""

    temperature: Hundredths | Other
    requests: Endings
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    drafted_at: Positions
    accepted_at: Positions


class PromptTotals(NamedTuple):
    """The totals of requests whose prompts have more than ``2**(key - 1)`` and at most ``2**key`` tokens."""

    key: Exponent
    requests: Count
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count


class OutputTotals(NamedTuple):
    """The totals of requests with or without structured output."""

    key: Literal["free", "structured"]
    requests: Count
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count


class AdapterTotals(NamedTuple):
    """The totals of one LoRA adapter's requests; the key is its name, or "" without one."""

    key: Name
    requests: Count
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count


GroupTotals = PromptTotals | OutputTotals | AdapterTotals


class StepTotals(NamedTuple):
    """The steps in which more than ``2**(exponent - 1)`` and at most ``2**exponent`` requests were decoding.

    ``seconds`` sums the steps' durations, ``decodes`` the requests that decoded, ``request_seconds`` the products of
    the two, and ``tokens`` the tokens that those requests got.
    """

    exponent: Exponent
    steps: Count
    seconds: Seconds
    decodes: Count
    request_seconds: Seconds
    tokens: Count


_Table: Final = Field(max_length=MAX_KEYS + 1, fail_fast=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Totals since ``Hello.start``; a missing row has not changed since it was last sent.

    ``lost`` counts finished requests that could not be sent because the sidecar was away.
    """

    at: UnixSeconds
    lost: Count
    total: Totals
    temperature: Annotated[tuple[TemperatureTotals, ...], _Table] = ()
    prompt: Annotated[tuple[PromptTotals, ...], _Table] = ()
    output: Annotated[tuple[OutputTotals, ...], Field(max_length=2, fail_fast=True)] = ()
    adapter: Annotated[tuple[AdapterTotals, ...], _Table] = ()
    steps: Annotated[tuple[StepTotals, ...], _Table] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """One finished request; each of ``n`` choices counts as one.

    ``temperature`` is the one in effect, in hundredths, rounded up. ``lengths[j]`` is the number of verification steps
    that accepted ``j`` draft tokens; ``lengths[MAX_POSITIONS]`` is for that many or more. ``arrival`` is by the API
    server's clock, the tokens' times are by the engine's. ``parameters`` names the request's sampling parameters that
    not every vLLM supports with speculation.
    """

    temperature: Hundredths
    drafts: Count
    draft_tokens: Count
    accepted_tokens: Count
    lengths: Lengths
    prompt_tokens: Count
    cached_tokens: Count | None
    output_tokens: Count
    arrival: UnixSeconds | None
    first_token: UnixSeconds | None
    last_token: UnixSeconds | None
    outcome: Outcome
    structured: bool = False
    adapter: Name | None = None
    parameters: Parameters = ()


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet; its parts must be processed in this order."""

    v: Literal[1]
    hello: Hello | None = None
    tick: Tick | None = None
    done: Annotated[tuple[FinishedRequest, ...], Field(max_length=MAX_FINISHED, fail_fast=True)] = ()

    @property
    def adds_up(self) -> bool:
        """Whether every part has at most as many accepted tokens as draft tokens."""
        counts: list[Totals | TemperatureTotals | GroupTotals | FinishedRequest] = [*self.done]
        if self.tick is not None:
            counts += [self.tick.total, *self.tick.temperature, *self.tick.prompt, *self.tick.output]
            counts += self.tick.adapter
        return all(one.accepted_tokens <= one.draft_tokens for one in counts)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A packet of another version of the format."""

    version: Annotated[int, Field(ge=0, le=_MOST, validation_alias="v")]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that was refused; ``reason`` is one of the receiver's ``DROP_REASONS``."""

    reason: str


Message = Hello | Tick | FinishedRequest | Unreadable | Dropped | None
PluginSink = Callable[[int, Message], None]
"""Receives the plug-ins' messages on the event loop, each with the number of its connection, which is never reused.

A connection's messages begin with a Hello or an Unreadable and end with None when it closes. A Dropped may come at any
time, even before these or without a connection (number 0). Calls are quick, never block and never raise.
"""


class Malformed(Exception):
    """Not a packet of any version."""


def read_packet(text: bytes) -> Packet | Unreadable:
    """Reads one packet.

    Raises:
        Malformed: a field is missing, of a wrong type or out of range, or the numbers contradict each other.
    """
    try:
        packet = _packets().validate_json(text, strict=True)
    except ValidationError as error:
        raise Malformed from error
    if not packet.adds_up if isinstance(packet, Packet) else packet.version == VERSION:
        raise Malformed
    return packet


@cache
def _packets() -> TypeAdapter[Packet | Unreadable]:
    return TypeAdapter(Annotated[Packet | Unreadable, Field(union_mode="left_to_right")])
