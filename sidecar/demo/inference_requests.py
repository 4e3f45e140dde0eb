"""Request bodies of chat and text completions, validated as vLLM validates them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from sidecar.demo.blocks import block_hashes
from sidecar.demo.generation import Prompt, Sampling
from sidecar.demo.options import SimulatorOptions

_BYTES_PER_TOKEN = 4  # a rough tokenizer: equal prefixes of text give equal tokens
_TEMPLATE = b"<|start|>%s<|end|>\n"  # the chat template around each message's role


class BadRequest(Exception):
    """A request answered with an OpenAI error body."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.kind = "NotFoundError" if status == 404 else "BadRequestError"


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _RequestFields(msgspec.Struct):
    """The fields of a completion request that matter here; others are ignored."""

    model: str | None = None
    messages: list[Any] | None = None
    prompt: Any = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    ignore_eos: bool | None = None


_decode_fields = msgspec.json.Decoder(_RequestFields).decode


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A valid request. ``choices`` is ``n`` times the number of prompts."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    n: int
    stream: bool
    include_usage: bool  # a stream ends with a usage event
    continuous_usage: bool  # every event of a stream carries usage

    @property
    def choices(self) -> int:
        """The number of completions."""
        return self.n * len(self.prompts)

    @property
    def prompt_tokens(self) -> int:
        """The sum over prompts, each counted once whatever ``n``."""
        return sum(prompt.tokens for prompt in self.prompts)


def parse_request(raw: bytes, *, chat: bool, options: SimulatorOptions) -> InferenceRequest:
    """Raises ``BadRequest`` with vLLM's message if it is known, never with text of the request."""
    try:
        body = _decode_fields(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec's validation errors name the field and the types; a syntax error names its position.
        raise BadRequest(str(error) if isinstance(error, msgspec.DecodeError) else "invalid JSON") from None
    if body.model is not None and body.model != options.model_name:
        raise BadRequest(f"The model `{body.model}` does not exist.", param="model", status=404)
    if chat:
        prompts: tuple[Prompt, ...] = (_prompt(_chat_tokens(body.messages), options),)
    else:
        prompts = tuple(_prompt(tokens, options) for tokens in _prompt_tokens(body.prompt))
    sampling = _sampling(body, max(prompt.tokens for prompt in prompts), chat=chat, options=options)
    asked = body.stream_options or _StreamOptions()
    request = InferenceRequest(
        prompts=prompts,
        sampling=sampling,
        n=_checked_n(body, sampling.temperature),
        stream=bool(body.stream),
        include_usage=options.force_include_usage or bool(asked.include_usage),
        continuous_usage=options.force_include_usage or bool(asked.include_usage and asked.continuous_usage_stats),
    )
    if request.choices > options.max_choices:
        raise BadRequest(f"at most {options.max_choices} choices a request, got {request.choices}.")
    return request


def _sampling(body: _RequestFields, prompt_tokens: int, *, chat: bool, options: SimulatorOptions) -> Sampling:
    temperature = options.default_temperature if body.temperature is None else body.temperature
    if temperature < 0:
        raise _out_of_range("temperature", "non-negative", temperature)
    room = options.max_model_len - prompt_tokens
    if room < 1:
        raise BadRequest(
            f"This model's maximum context length is {options.max_model_len} tokens. However, your request has "
            f"{prompt_tokens} input tokens. Please reduce the length of the input messages."
        )
    asked = body.max_tokens
    if chat and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    if asked is None:
        asked = room if chat else 16  # text completions have OpenAI's default
    if asked < 1:
        raise _out_of_range("max_tokens", "at least 1", asked)
    return Sampling(temperature, min(asked, room), bool(body.ignore_eos))


def _checked_n(body: _RequestFields, temperature: float) -> int:
    n = 1 if body.n is None else body.n
    if n < 1:
        raise _out_of_range("n", "at least 1", n)
    if n > 1 and temperature < 1e-5:  # vLLM's own bound for greedy sampling
        raise BadRequest(f"n must be 1 when using greedy sampling, got {n}.")
    return n


def _out_of_range(name: str, bound: str, value: float) -> BadRequest:
    return BadRequest(f"{name} must be {bound}, got {value}. (parameter={name}, value={value})", param=name)


def _chat_tokens(messages: list[Any] | None) -> Iterable[object]:
    if not messages:
        raise BadRequest("messages: at least one is needed", param="messages")
    text = b""
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequest("messages: each needs a role", param="messages")
        content = message.get("content")
        # Content in parts (text, images) counts as the JSON it is.
        encoded = content.encode() if isinstance(content, str) else msgspec.json.encode(content)
        text += _TEMPLATE % message["role"].encode() + encoded
    return _text_tokens(text)


def _prompt_tokens(prompt: Any) -> list[Sequence[object]]:
    """A text, a list of texts, a list of token numbers or a list of such lists."""
    if isinstance(prompt, str):
        return [_text_tokens(prompt.encode())]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, str) for item in prompt):
            return [_text_tokens(item.encode()) for item in cast("list[str]", prompt)]
        if all(isinstance(item, int) for item in prompt):
            return [prompt]
        if all(isinstance(item, list) and item for item in prompt):
            return [tuple(map(str, item)) for item in prompt]
    raise BadRequest("prompt: a text, token numbers, or a list of either is needed", param="prompt")


def _text_tokens(text: bytes) -> Sequence[object]:
    return [text[start : start + _BYTES_PER_TOKEN] for start in range(0, max(len(text), 1), _BYTES_PER_TOKEN)]


def _prompt(tokens: Iterable[object], options: SimulatorOptions) -> Prompt:
    listed = list(tokens)
    # A prompt that is too long is refused later, so its tail needs no hashes.
    return Prompt(len(listed), block_hashes(listed[: options.max_model_len], options.block_size))
