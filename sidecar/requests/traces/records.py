"""From a span to a RequestRecord: what its attributes mean, and whether they are plausible."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from sidecar.requests.record import LONGEST_NAME, UNKNOWN_TEMPERATURE, Outcome, RequestRecord
from sidecar.requests.traces.refusal import Inconsistent

SPAN_NAME: Final = "llm_request"
"""vLLM's one span per request, from 0.4.3 (PR #4687) on; V1 engines emit it since PR #20372."""

_TEMPERATURE: Final = "gen_ai.request.temperature"
_TOP_P: Final = "gen_ai.request.top_p"
_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
_N: Final = "gen_ai.request.n"
_TIME_TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105 - an attribute's name, not a password
_END_TO_END: Final = "gen_ai.latency.e2e"
# V0 engines send the response model, V1 none (seen on 0.32); the conventions require the request model.
_MODEL: Final = ("gen_ai.response.model", "gen_ai.request.model")
# V0 uses the second name of each if opentelemetry-semantic-conventions-ai has it.
_PROMPT_TOKENS: Final = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
_COMPLETION_TOKENS: Final = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
_SAMPLING: Final = (_TEMPERATURE, _N, _TOP_P, _MAX_TOKENS)
_WANTED: Final = frozenset(
    {*_SAMPLING, _TIME_TO_FIRST_TOKEN, _END_TO_END, *_MODEL, *_PROMPT_TOKENS, *_COMPLETION_TOKENS}
)

_NS: Final = 1_000_000_000  # an integer, since Python divides two exactly; a float would first lose 200 ns
_LONGEST_REQUEST: Final = 86_400.0  # seconds
_MOST_TOKENS: Final = 2**31
_MOST_CHOICES: Final = 16_384  # vLLM's own limit of n
_SLACK: Final = 0.001  # seconds; a latency may exceed the span it lies in by the clocks' rounding

Attributes = Mapping[str, str | int | float | None]


def to_record(span: Span, latest_end: float) -> RequestRecord | None:
    """The request of ``span``; None if it is of another kind, or not a generation but, say, an embedding.

    ``start`` is the span's (when the request reached vLLM's API server), ``end`` and ``first_token`` are that plus
    vLLM's own latencies; without these, the span's end and None. An aborted request has no span, so every outcome is
    ``COMPLETED``. Whether the reply was streamed is not known: ``stream`` is False and ``stream_events`` 0. The path is
    not known either.

    With n > 1 a V1 engine sends one span per choice, each with n = 1, and nothing shows how many belong together;
    each is a record with one choice, which is also what the engine ran. A V0 engine sends one span with n.

    Raises:
        Inconsistent: a time, a count or an id that is impossible; ``latest_end`` is Unix seconds.
    """
    if span.name != SPAN_NAME:
        return None
    attributes = {pair.key: _value(pair.value) for pair in span.attributes if pair.key in _WANTED}
    if not (_is_id(span.trace_id, 16) and _is_id(span.span_id, 8)):
        raise Inconsistent("no valid id")
    completion_tokens = _count(attributes, _COMPLETION_TOKENS)
    has_sampling = any(name in attributes for name in _SAMPLING)  # a generation always has n and top_p
    if not completion_tokens and not has_sampling:
        return None
    start, first_token, end = _times(span, attributes, latest_end)
    choices = _count(attributes, (_N,))
    if choices is not None and not 1 <= choices <= _MOST_CHOICES:
        raise Inconsistent("n out of range")
    return RequestRecord(
        id=f"{span.trace_id.hex()}-{span.span_id.hex()}",
        path="",
        model=_model(attributes),
        temperature=_temperature(attributes) if has_sampling else UNKNOWN_TEMPERATURE,
        choices=choices or 1,
        stream=False,
        start=start,
        first_token=first_token if completion_tokens != 0 else None,
        end=end,
        outcome=Outcome.COMPLETED,
        max_tokens=_count(attributes, (_MAX_TOKENS,)),
        prompt_tokens=_count(attributes, _PROMPT_TOKENS),
        completion_tokens=completion_tokens,
    )


def _is_id(value: bytes, size: int) -> bool:
    """Whether an id has its length, or that of hex read as base64, and is not all zeros, which OTLP forbids."""
    return len(value) in (size, 2 * size * 3 // 4) and any(value)


def _value(value: AnyValue) -> str | int | float | None:
    """An attribute's value; None for a type that no wanted attribute has."""
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind in ("double_value", "int_value", "string_value") else None


def _temperature(attributes: Attributes) -> float:
    """The temperature at which vLLM ran the request.

    V1 sends it only if it is not 0 (a truthiness test in its ``do_tracing``), so a missing one means greedy. It is the
    effective temperature: the request's own, else the model's default; vLLM raises any between 0 and 0.01 to 0.01
    (seen on 0.32).
    """
    if _TEMPERATURE not in attributes:
        return 0.0
    value = _number(attributes, _TEMPERATURE)
    return value if value is not None and value >= 0 else UNKNOWN_TEMPERATURE


def _times(span: Span, attributes: Attributes, latest_end: float) -> tuple[float, float | None, float]:
    """Start, first token and end in Unix seconds."""
    start, end = span.start_time_unix_nano / _NS, span.end_time_unix_nano / _NS
    duration = (span.end_time_unix_nano - span.start_time_unix_nano) / _NS
    if start <= 0 or not 0 <= duration <= _LONGEST_REQUEST or end > latest_end:
        raise Inconsistent("the span's times are impossible")
    end_to_end = _number(attributes, _END_TO_END)
    if end_to_end is not None:
        if not 0 <= end_to_end <= duration + _SLACK:
            raise Inconsistent("the request is longer than its span")
        duration = end_to_end
    to_first_token = _number(attributes, _TIME_TO_FIRST_TOKEN)
    if to_first_token is not None and not 0 <= to_first_token <= duration + _SLACK:
        raise Inconsistent("the first token is not within the request")
    end = start + duration
    # vLLM leaves the latency at 0 if no token came.
    return start, min(start + to_first_token, end) if to_first_token else None, end


def _number(attributes: Attributes, name: str) -> float | None:
    """A finite number; None: absent, or of another type."""
    value = attributes.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _count(attributes: Attributes, known_as: Iterable[str]) -> int | None:
    """A count under the first of its names that has one; None: absent, or of another type.

    Raises:
        Inconsistent: it is negative or beyond any real one.
    """
    for name in known_as:
        value = attributes.get(name)
        if isinstance(value, int):
            if not 0 <= value <= _MOST_TOKENS:
                raise Inconsistent("a count out of range")
            return value
    return None


def _model(attributes: Attributes) -> str | None:
    for name in _MODEL:
        value = attributes.get(name)
        if isinstance(value, str) and 0 < len(value) <= LONGEST_NAME:
            return value
    return None
