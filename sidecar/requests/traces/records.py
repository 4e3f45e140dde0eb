"""From a span to a RequestRecord: what its attributes mean, and whether they can be true."""

import math
from collections.abc import Iterable
from typing import Final

from sidecar.requests.record import UNKNOWN_TEMPERATURE, Outcome, RequestRecord
from sidecar.requests.traces import span as names
from sidecar.requests.traces.refusal import Inconsistent
from sidecar.requests.traces.span import Span

NO_PATH: Final = ""
"""A span does not say which endpoint the request came in by."""

_NS: Final = 1_000_000_000  # an integer: Python divides two of them exactly, a float would first lose 200 ns
_LONGEST_REQUEST: Final = 86_400.0  # seconds
_MOST_TOKENS: Final = 2**31
_MOST_CHOICES: Final = 16_384  # vLLM's own limit of n
_LONGEST_NAME: Final = 256
_SLACK: Final = 0.001  # seconds; a latency may exceed the span it lies in by the clocks' rounding


def to_record(span: Span, latest_end: float) -> RequestRecord | None:
    """The request that ``span`` tells of; None: it was not a generation but, say, an embedding.

    ``start`` is the span's (when the request reached vLLM's API server), ``end`` and ``first_token`` are that plus
    vLLM's own latencies; without these, the span's end and None. An aborted request has no span, so every outcome
    is ``COMPLETED``. Whether the reply was streamed is not known: ``stream`` is False and ``stream_events`` 0.

    With n > 1 a V1 engine sends one span a choice, each with n = 1, and nothing that tells how many belong together;
    each is a record with one choice, which is also what the engine ran. A V0 engine sends one span with n.

    Raises:
        Inconsistent: a time, a count or an id that can't be; ``latest_end`` is Unix seconds.
    """
    if not (_is_id(span.trace_id, 16) and _is_id(span.span_id, 8)):
        raise Inconsistent("no valid id")
    completion_tokens = _count(span, names.COMPLETION_TOKENS)
    if not completion_tokens and not _has_sampling(span):
        return None
    start, first_token, end = _times(span, latest_end)
    choices = _count(span, (names.N,))
    if choices is not None and not 1 <= choices <= _MOST_CHOICES:
        raise Inconsistent("n out of range")
    return RequestRecord(
        id=f"{span.trace_id.hex()}-{span.span_id.hex()}",
        path=NO_PATH,
        model=_model(span),
        temperature=_temperature(span),
        choices=choices or 1,
        stream=False,
        start=start,
        first_token=first_token if completion_tokens != 0 else None,
        end=end,
        outcome=Outcome.COMPLETED,
        max_tokens=_count(span, (names.MAX_TOKENS,)),
        prompt_tokens=_count(span, names.PROMPT_TOKENS),
        completion_tokens=completion_tokens,
    )


def _is_id(value: bytes, size: int) -> bool:
    """Whether an id has its length and is not all zeros, which OpenTelemetry calls invalid."""
    return len(value) == size and any(value)


def _has_sampling(span: Span) -> bool:
    """Whether the span carries any sampling parameter; one of a generation always has n and top_p."""
    return any(name in span.attributes for name in (names.TEMPERATURE, names.N, names.TOP_P, names.MAX_TOKENS))


def _temperature(span: Span) -> float:
    """The temperature that vLLM ran the request at.

    V1 sends it only where it is not 0 (a truthiness test in its ``do_tracing``), so a missing one means greedy,
    unless something on the way has removed the sampling parameters altogether. What is sent is the effective one:
    a request's own, else the model's default; vLLM raises any between 0 and 0.01 to 0.01 (seen on 0.32).
    """
    if names.TEMPERATURE not in span.attributes:
        return 0.0 if _has_sampling(span) else UNKNOWN_TEMPERATURE
    value = _number(span, names.TEMPERATURE)
    return value if value is not None and value >= 0 else UNKNOWN_TEMPERATURE


def _times(span: Span, latest_end: float) -> tuple[float, float | None, float]:
    """Start, first token and end in Unix seconds."""
    start, end = span.start_ns / _NS, span.end_ns / _NS
    duration = (span.end_ns - span.start_ns) / _NS
    if start <= 0 or not 0 <= duration <= _LONGEST_REQUEST or end > latest_end:
        raise Inconsistent("the span's times can't be")
    end_to_end = _number(span, names.END_TO_END)
    if end_to_end is not None:
        if not 0 <= end_to_end <= duration + _SLACK:
            raise Inconsistent("the request is longer than its span")
        duration = end_to_end
    to_first_token = _number(span, names.TIME_TO_FIRST_TOKEN)
    if to_first_token is not None and not 0 <= to_first_token <= duration + _SLACK:
        raise Inconsistent("the first token is not within the request")
    end = start + duration
    # vLLM leaves the latency at 0 where no token came.
    return start, min(start + to_first_token, end) if to_first_token else None, end


def _number(span: Span, name: str) -> float | None:
    """A finite number; None: absent, or of another type."""
    value = span.attributes.get(name)
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return None
    return float(value)


def _count(span: Span, known_as: Iterable[str]) -> int | None:
    """A count under the first of its names that has one; None: absent, or of another type.

    Raises:
        Inconsistent: it is negative or beyond any real one.
    """
    for name in known_as:
        value = span.attributes.get(name)
        if isinstance(value, int):
            if not 0 <= value <= _MOST_TOKENS:
                raise Inconsistent("a count out of range")
            return value
    return None


def _model(span: Span) -> str | None:
    for name in names.MODEL:
        value = span.attributes.get(name)
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME:
            return value
    return None
