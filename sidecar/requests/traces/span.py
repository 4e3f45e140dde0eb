"""The part of a span that is read, the same for both encodings. Everything else is left where it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

SPAN_NAME: Final = "llm_request"
"""vLLM's one span a request, from 0.4.3 (PR #4687) on; V1 engines emit it since PR #20372."""

TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
N: Final = "gen_ai.request.n"
TIME_TO_FIRST_TOKEN: Final = "gen_ai.latency.time_to_first_token"  # noqa: S105 - no password but a name
END_TO_END: Final = "gen_ai.latency.e2e"
# V0 engines send the response model, V1 none (seen on 0.32); the request model is what the conventions require.
MODEL: Final = ("gen_ai.response.model", "gen_ai.request.model")
# V0 took the second name of each where opentelemetry-semantic-conventions-ai had it.
PROMPT_TOKENS: Final = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
COMPLETION_TOKENS: Final = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")

WANTED: Final = frozenset(
    {TEMPERATURE, TOP_P, MAX_TOKENS, N, TIME_TO_FIRST_TOKEN, END_TO_END, *MODEL, *PROMPT_TOKENS, *COMPLETION_TOKENS}
)
"""The only attributes that are ever kept; others may hold prompts."""

SPAN_BYTES: Final = 65_536
"""A longer span is another service's: vLLM's has about 600 bytes, and 2,000 as JSON. It is not even parsed."""

Value = str | int | float | None
"""An attribute's value; None: a type that none of the wanted attributes has."""


class Passed(Enum):
    """What decoding passes over."""

    SPAN = "a span of another service or kind"
    FIELD = "anything around the spans: only a chance to pause"


@dataclass(frozen=True, slots=True)
class Span:
    """One ``llm_request`` span as sent; nothing in it is checked. ``attributes`` holds wanted names only."""

    trace_id: bytes
    span_id: bytes
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value]
