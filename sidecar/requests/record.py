"""What is known of one request that passed through vLLM: never its text."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Outcome(StrEnum):
    """How a request ended, as its client saw it."""

    COMPLETED = "completed"
    ABORTED = "aborted"  # the client or the server went away before the end
    ERROR = "error"  # an HTTP status of 400 or more, or an error object in the stream


@dataclass(frozen=True, slots=True)
class RequestAcceptance:
    """vLLM's own speculative-decoding numbers for one request (vLLM 0.29+, its per-request metrics).

    ``histogram[j]`` is the number of verification steps that accepted exactly ``j`` draft tokens, so
    ``sum(histogram) == drafts`` and ``sum(j * histogram[j]) == accepted_tokens`` where vLLM filled it;
    it is empty where vLLM did not.
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    histogram: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestStart:
    """A request that has begun and not ended; ``id`` is unique within one source's life."""

    id: str
    start: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request.

    Times are Unix seconds. ``temperature`` is the one in the request (None: not given, so the model's
    default applies). ``choices`` is ``n`` times the number of prompts. ``stream_events`` counts the stream's
    events that carried generated tokens: at most one an engine step, fewer where vLLM merged some; it is 0
    for a reply that was not streamed. ``completion_tokens`` sums all choices; None where the reply did not say.
    """

    id: str
    path: str
    model: str | None
    temperature: float | None
    choices: int
    stream: bool
    start: float
    first_token: float | None
    end: float
    outcome: Outcome
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    stream_events: int = 0
    acceptance: RequestAcceptance | None = None
    event_offsets: tuple[float, ...] = ()  # seconds from ``start``; filled only while recording


class RequestSink(Protocol):
    """Where a source delivers. Calls are quick, never block and never raise."""

    def started(self, request: RequestStart) -> None:
        """A request has begun; exactly one ``finished`` with its id follows, unless the source dies."""

    def finished(self, record: RequestRecord) -> None:
        """A request has ended; ``started`` may not have been called for it (traces know only ends)."""

    def dropped(self, reason: str, count: int) -> None:
        """``count`` events were lost or refused; ``reason`` is from a small fixed set."""
