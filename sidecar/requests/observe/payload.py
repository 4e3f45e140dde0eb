"""What is read from the bodies of requests and replies.

Only the named fields are decoded; msgspec skips the rest, including prompts and completions, without building objects.
No function here raises, whatever the bytes. The shapes are those of vLLM 0.32 (tests/data/exchanges).
"""

from typing import Final

import msgspec

from sidecar.requests.observe.endpoint import CHAT, COMPLETIONS, RESPONSES, Endpoint
from sidecar.requests.record import MOST_CHOICES, UNKNOWN_TEMPERATURE, Count, Histogram, Name, RequestAcceptance

UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding may raise: malformed JSON, wrong types, deep nesting, text that is not UTF-8."""

_ABSENT: Final = msgspec.Raw()
_NULLS: Final = (_ABSENT, msgspec.Raw(b"null"))


class RequestFields(msgspec.Struct, frozen=True):
    """The fields of a request; the defaults apply to a body that could not be read."""

    model: str | None = None
    temperature: float | None = UNKNOWN_TEMPERATURE
    choices: int = 1
    stream: bool = False
    max_tokens: int | None = None
    parameters: tuple[str, ...] = ()


class ReplyFields(msgspec.Struct, frozen=True):
    """The fields of a reply, or of one event of a streamed reply.

    ``temperature`` is the one that ``/v1/responses`` echoes, the model's default included. ``is_usage``: the event
    has an empty list of choices, like the usage event at the end of a stream.
    """

    model: str | None = None
    temperature: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    acceptance: RequestAcceptance | None = None
    acceptance_malformed: bool = False
    error: bool = False
    is_usage: bool = False


class _Model(msgspec.Struct):
    model: Name | None = None


class _Request(_Model):
    temperature: float | None = None
    n: int | None = None
    prompt: msgspec.Raw = _ABSENT
    prompt_embeds: msgspec.Raw = _ABSENT
    stream: bool | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_output_tokens: Count | None = None
    min_p: float | None = None
    logit_bias: msgspec.Raw = _ABSENT
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None


class _Reply(_Model):
    temperature: float | None = None
    choices: list[msgspec.Raw] | None = None
    usage: _Usage | None = None
    metrics: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    object: str | None = None
    type: str | None = None
    status: str | None = None
    response: "_Reply | None" = None  # in the events of `/v1/responses`


class _Speculation(msgspec.Struct):
    num_spec_steps: Count
    num_draft_tokens: Count
    num_accepted_draft_tokens: Count
    acceptance_histogram: Histogram | None = None


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


_REQUEST: Final = msgspec.json.Decoder(_Request, strict=False)  # accepts "0.7" for 0.7, as vLLM does
_MODEL: Final = msgspec.json.Decoder(_Model)
_PROMPTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_REPLY: Final = msgspec.json.Decoder(_Reply)
_METRICS: Final = msgspec.json.Decoder(_Metrics)


def read_request(endpoint: Endpoint, body: bytes | bytearray) -> RequestFields | None:
    """The fields of the request in ``body``; None if it is not a JSON object.

    If vLLM would refuse a field because of its type, only the model is read.
    """
    try:
        fields = _REQUEST.decode(body)
    except msgspec.ValidationError:
        try:
            return RequestFields(_MODEL.decode(body).model)
        except UNREADABLE:
            return None
    except UNREADABLE:
        return None
    temperature = fields.temperature
    if temperature is not None and not 0 <= temperature < float("inf"):
        temperature = UNKNOWN_TEMPERATURE
    return RequestFields(
        fields.model,
        temperature,
        _choices(endpoint, fields),
        fields.stream is True,
        _max_tokens(endpoint, fields),
        _parameters(fields),
    )


def _parameters(fields: _Request) -> tuple[str, ...]:
    """The given parameters that some version of vLLM refuses, ignores or serves without speculation."""
    penalties = ("presence_penalty", "frequency_penalty")
    given = [name for name in ("min_p", *penalties, "min_tokens") if getattr(fields, name)]
    if fields.repetition_penalty not in {None, 1.0}:
        given.append("repetition_penalty")
    if fields.logit_bias not in _NULLS and bytes(fields.logit_bias) != b"{}":
        given.append("logit_bias")
    return tuple(given)


def _choices(endpoint: Endpoint, fields: _Request) -> int:
    choices = 1 if fields.n is None else fields.n
    if endpoint == COMPLETIONS:
        choices *= _prompts(fields.prompt) + _prompts(fields.prompt_embeds)
    elif endpoint != CHAT:
        return 1
    return choices if 1 <= choices <= MOST_CHOICES else 1


def _prompts(raw: msgspec.Raw) -> int:
    """The number of prompts: 1 for a text or a list of token ids, else the number of items in the list."""
    if raw in _NULLS:
        return 0
    try:
        items = _PROMPTS.decode(raw)
    except UNREADABLE:
        return 1
    return len(items) if items and bytes(items[0])[:1] in (b'"', b"[") else min(len(items), 1)


def _max_tokens(endpoint: Endpoint, fields: _Request) -> int | None:
    if endpoint == RESPONSES:
        return fields.max_output_tokens
    if endpoint == CHAT and fields.max_completion_tokens is not None:
        return fields.max_completion_tokens  # vLLM prefers it to the older name
    return fields.max_tokens


def read_reply(body: bytes | bytearray) -> ReplyFields | None:
    """The fields of a whole reply or of one event's data; None if it is not an endpoint's JSON object."""
    try:
        outer = _REPLY.decode(body)
    except UNREADABLE:
        return None
    reply = outer.response or outer
    usage = outer.usage or reply.usage or _Usage()
    acceptance, malformed = _acceptance(reply.metrics)
    return ReplyFields(
        reply.model,
        reply.temperature,
        usage.prompt_tokens if usage.input_tokens is None else _input_tokens(usage),
        usage.completion_tokens if usage.output_tokens is None else usage.output_tokens,
        acceptance,
        malformed,
        _says_error(outer) or _says_error(reply),
        reply.choices == [],
    )


def _input_tokens(usage: _Usage) -> int:
    """``/v1/messages`` reports cached tokens apart from the other input tokens."""
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return (usage.input_tokens or 0) + cached


def _says_error(reply: _Reply) -> bool:
    """Whether a reply or event reports a failure, in the form of any endpoint or of vLLM before 0.10."""
    return reply.error not in _NULLS or reply.object == "error" or reply.type == "error" or reply.status == "failed"


def _acceptance(raw: msgspec.Raw) -> tuple[RequestAcceptance | None, bool]:
    """The reply's own speculation numbers, and whether it has impossible ones."""
    if raw in _NULLS:
        return None, False
    try:
        numbers = _METRICS.decode(raw).speculative_decoding
    except UNREADABLE:
        return None, True
    if numbers is None:
        return None, False
    acceptance = RequestAcceptance(
        numbers.num_spec_steps,
        numbers.num_draft_tokens,
        numbers.num_accepted_draft_tokens,
        numbers.acceptance_histogram or (),
    )
    return (acceptance, False) if acceptance.adds_up else (None, True)
