"""What is read from the bodies of vLLM's OpenAI-style endpoints, and nothing else of them.

Every reader here takes bytes from anywhere and never raises on them. Only the named fields are decoded; msgspec
skips the rest without building objects. A wrong type costs as little as may be. The shapes are
those of vLLM 0.32 (tests/data/exchanges).
"""

from operator import mul
from typing import Final, Literal

import msgspec

from sidecar.requests.observe.values import (
    ABSENT,
    LARGEST_COUNT,
    LONGEST_NAME,
    UNKNOWN_TEMPERATURE,
    UNREADABLE,
    flag,
    is_given,
    name,
    plausible,
    prompts,
    temperature,
    whole,
)

_MOST_CHOICES: Final = 2**20  # vLLM refuses more than 16,384 unless told otherwise
LONGEST_HISTOGRAM: Final = 1024

Acceptance = tuple[int, int, int, tuple[int, ...]]
"""Drafts, draft tokens, accepted tokens and the histogram, as ``RequestAcceptance`` takes them."""


Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
"""An endpoint that generates tokens: its path, less any root path before it."""

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
ENDPOINTS: Final[tuple[Endpoint, ...]] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


class RequestFields(msgspec.Struct, frozen=True):
    """What a request asks for; the defaults are those of a body that could not be read."""

    model: str | None = None
    temperature: float | None = UNKNOWN_TEMPERATURE
    choices: int = 1
    stream: bool = False
    max_tokens: int | None = None


class ReplyFields(msgspec.Struct, frozen=True):
    """What a reply, or one event of a streamed one, says.

    ``temperature`` is the one that `/v1/responses` echoes, vLLM's default included. ``empty`` is True where a list of
    choices is there and has none: a stream's final usage.
    """

    model: str | None = None
    temperature: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    acceptance: Acceptance | None = None
    acceptance_malformed: bool = False
    error: bool = False
    empty: bool = False


class _Request(msgspec.Struct):
    model: str | None = None
    temperature: float | None = None
    n: int | None = None
    prompt: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None


class _RawRequest(msgspec.Struct):
    model: msgspec.Raw = ABSENT
    temperature: msgspec.Raw = ABSENT
    n: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    max_output_tokens: msgspec.Raw = ABSENT


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Reply(msgspec.Struct):
    model: str | None = None
    temperature: msgspec.Raw = ABSENT
    choices: msgspec.Raw = ABSENT
    usage: _Usage | None = None
    metrics: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    object: msgspec.Raw = ABSENT
    type: msgspec.Raw = ABSENT
    status: msgspec.Raw = ABSENT
    response: msgspec.Raw = ABSENT
    message: msgspec.Raw = ABSENT


class _Speculation(msgspec.Struct):
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    acceptance_histogram: list[int] | None = None


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


_REQUEST: Final = msgspec.json.Decoder(_Request)
_RAW_REQUEST: Final = msgspec.json.Decoder(_RawRequest)
_REPLY: Final = msgspec.json.Decoder(_Reply)
_METRICS: Final = msgspec.json.Decoder(_Metrics)

_BY_PATH: Final[dict[str, Endpoint]] = {endpoint: endpoint for endpoint in ENDPOINTS}
_EMPTY_LIST: Final = msgspec.Raw(b"[]")
_ERROR: Final = msgspec.Raw(b'"error"')
_FAILED: Final = msgspec.Raw(b'"failed"')


def endpoint_of(method: str, path: str) -> Endpoint | None:
    """The generation endpoint that a request goes to, whatever root path stands before it; None: another one."""
    return _BY_PATH.get(path[path.rfind("/v1/") :]) if method == "POST" else None


def read_request(endpoint: Endpoint, body: bytes) -> RequestFields | None:
    """What ``body`` asks for; None where it is no JSON object."""
    try:
        try:
            fields = _REQUEST.decode(body)
        except msgspec.ValidationError:  # such as a number in a string, which vLLM takes too
            fields = _lenient(_RAW_REQUEST.decode(body))
    except UNREADABLE:
        return None
    asked = fields.temperature
    return RequestFields(
        _short(fields.model),
        asked if asked is None or asked >= 0 else UNKNOWN_TEMPERATURE,
        _choices(endpoint, fields),
        fields.stream is True,
        _max_tokens(endpoint, fields),
    )


def _lenient(raw: _RawRequest) -> _Request:
    """The request as vLLM takes it, field by field; what it would refuse is left out."""
    return _Request(
        name(raw.model),
        temperature(raw.temperature),
        whole(raw.n),
        raw.prompt,
        raw.prompt_embeds,
        flag(raw.stream),
        whole(raw.max_tokens),
        whole(raw.max_completion_tokens),
        whole(raw.max_output_tokens),
    )


def _short(model: str | None) -> str | None:
    return model if model is not None and len(model) <= LONGEST_NAME else None


def _choices(endpoint: Endpoint, fields: _Request) -> int:
    choices = 1 if fields.n is None else fields.n
    if endpoint == COMPLETIONS:
        choices *= prompts(fields.prompt) + prompts(fields.prompt_embeds)
    elif endpoint != CHAT:
        return 1  # neither of the others has more than one
    return choices if 1 <= choices <= _MOST_CHOICES else 1


def _max_tokens(endpoint: Endpoint, fields: _Request) -> int | None:
    if endpoint == RESPONSES:
        return plausible(fields.max_output_tokens)
    if endpoint == CHAT and fields.max_completion_tokens is not None:
        return plausible(fields.max_completion_tokens)  # vLLM lets it win over the older name
    return plausible(fields.max_tokens)


def read_reply(body: bytes | memoryview) -> ReplyFields | None:
    """What a whole reply or the data of one stream event says; None where it is no JSON object."""
    try:
        fields = _REPLY.decode(body)
        if _is_object(fields.response):
            return _reply(_REPLY.decode(fields.response), failed=_says_error(fields))
        if _is_object(fields.message):  # `message_start`: its count of output tokens is no final one
            return msgspec.structs.replace(_reply(_REPLY.decode(fields.message), failed=False), completion_tokens=None)
    except UNREADABLE:
        return None
    return _reply(fields, failed=_says_error(fields))


def _is_object(raw: msgspec.Raw) -> bool:
    return len(raw) > 0 and bytes(memoryview(raw)[:1]) == b"{"


def _reply(fields: _Reply, *, failed: bool) -> ReplyFields:
    prompt_tokens, completion_tokens = _usage(fields.usage)
    acceptance, malformed = _acceptance(fields.metrics)
    echoed = temperature(fields.temperature) if fields.temperature else None
    return ReplyFields(
        _short(fields.model),
        None if echoed is UNKNOWN_TEMPERATURE else echoed,
        prompt_tokens,
        completion_tokens,
        acceptance,
        malformed,
        failed or _says_error(fields),
        fields.choices == _EMPTY_LIST,
    )


def _says_error(fields: _Reply) -> bool:
    """Whether a reply or event reports a failure, in the words of any endpoint and of vLLM before 0.10 too."""
    return (
        is_given(fields.error)
        or fields.object == _ERROR
        or (len(fields.type) > 0 and fields.type == _ERROR)
        or (len(fields.status) > 0 and fields.status == _FAILED)
    )


def _usage(usage: _Usage | None) -> tuple[int | None, int | None]:
    """Prompt and completion tokens; None where they are missing or can't be right."""
    if usage is None:
        return None, None
    prompt_tokens, completion_tokens = usage.prompt_tokens, usage.completion_tokens
    if prompt_tokens is None and usage.input_tokens is not None:
        # `/v1/messages` takes cached tokens off the input's; here they are put back.
        prompt_tokens = usage.input_tokens
        prompt_tokens += (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    if completion_tokens is None:
        completion_tokens = usage.output_tokens
    return plausible(prompt_tokens), plausible(completion_tokens)


def _acceptance(raw: msgspec.Raw) -> tuple[Acceptance | None, bool]:
    """The reply's own speculation numbers, and whether there were some that can't be right."""
    if not is_given(raw):
        return None, False
    try:
        numbers = _METRICS.decode(raw).speculative_decoding
    except UNREADABLE:
        return None, True
    if numbers is None:
        return None, False
    acceptance = (
        numbers.num_spec_steps,
        numbers.num_draft_tokens,
        numbers.num_accepted_draft_tokens,
        tuple(numbers.acceptance_histogram or ()),
    )
    return (acceptance, False) if adds_up(acceptance) else (None, True)


def adds_up(acceptance: Acceptance) -> bool:
    """Whether vLLM's own sums hold: the histogram's steps and tokens, and no more accepted than drafted."""
    steps, drafted, accepted, histogram = acceptance
    if not 0 <= accepted <= drafted <= LARGEST_COUNT or not 0 <= steps <= LARGEST_COUNT or (drafted and not steps):
        return False
    if not histogram:
        return True
    return (
        len(histogram) <= LONGEST_HISTOGRAM
        and min(histogram) >= 0
        and sum(histogram) == steps
        and sum(map(mul, histogram, range(len(histogram)))) == accepted
    )
