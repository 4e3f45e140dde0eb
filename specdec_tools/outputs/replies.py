"""Asks a server for outputs as token ids. Nothing of them is logged or kept longer than needed."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from sidecar.errors import MeasurementError
from specdec_tools.measuring.client import Client

_Asked = TypeVar("_Asked")
_Result = TypeVar("_Result")

Tokens = tuple[int, ...]
END: Final = -1
"""In the place of a token: the output ended."""
_ID: Final = "token_id:"
_LIKELY: Final = 20  # tokens whose log-probabilities are asked for, vLLM's most by default
_AT_ONCE: Final = 16  # outputs of one request


@dataclass(frozen=True, slots=True)
class GreedyReply:
    """An output, and at each position the log-probability of the likeliest tokens, if asked for."""

    tokens: Tokens
    likely: tuple[Mapping[int, float], ...] = ()


class _Logprob(BaseModel):
    token: str
    logprob: float


class _ChatPosition(BaseModel):
    top_logprobs: list[_Logprob]


class _Logprobs(BaseModel):
    """Both endpoints' forms: a completion's list, and a chat's ``content``."""

    top_logprobs: list[dict[str, float] | None] = []
    content: list[_ChatPosition] = []


class _Choice(BaseModel):
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None


class _Reply(BaseModel):
    choices: list[_Choice]
    usage: _Usage | None = None


async def greedy_replies(
    client: Client,
    prompts: Sequence[str],
    max_tokens: int,
    concurrency: int,
    *,
    with_likely: bool = False,
) -> list[GreedyReply]:
    """The greedy outputs of all prompts.

    Raises:
        MeasurementError: a request fails, or its reply has no token ids or log-probabilities.
    """
    chat = {"logprobs": True, "top_logprobs": _LIKELY}
    likely = chat if client.is_chat else {"logprobs": _LIKELY}
    fields: dict[str, Any] = {"temperature": 0.0, "max_tokens": max_tokens}
    if with_likely:
        fields |= {**likely, "return_tokens_as_token_ids": True}

    async def ask(prompt: str) -> GreedyReply:
        (choice,) = (await _ask(client, prompt, fields)).choices
        return GreedyReply(_tokens(choice, max_tokens), tuple(_likely(client, choice)))

    return await _in_flight(concurrency, ask, prompts)


async def sampled_replies(
    client: Client,
    prompts: Sequence[str],
    fields: Mapping[str, Any],
    *,
    samples: int,
    max_tokens: int,
    concurrency: int,
) -> list[list[Tokens]]:
    """So many sampled outputs of each prompt, without what follows their first ``max_tokens``.

    Raises:
        MeasurementError: a request fails, or its reply has no token ids.
    """
    at_once = min(_AT_ONCE, concurrency)
    # One token more, so that no position that is compared is an output's last.
    asked_tokens = max_tokens + 1

    async def ask(part: tuple[str, int]) -> list[Tokens]:
        prompt, number = part
        asked = {**fields, "n": number, "max_tokens": asked_tokens}
        reply = await _ask(client, prompt, asked)
        return [_tokens(choice, asked_tokens)[:max_tokens] for choice in reply.choices]

    numbers = [min(at_once, samples - begun) for begun in range(0, samples, at_once)]
    parts = [(prompt, number) for prompt in prompts for number in numbers]
    found = await _in_flight(max(1, concurrency // at_once), ask, parts)

    each = len(numbers)
    by_prompt = []
    for start in range(0, len(found), each):
        outputs = chain.from_iterable(found[start : start + each])
        by_prompt.append(list(outputs))
    return by_prompt


async def context_tokens(
    client: Client, prompts: Sequence[str], concurrency: int
) -> list[int | None]:
    """The tokens of each prompt as the server counts them, its template's included.

    Raises:
        MeasurementError: a request fails.
    """

    async def ask(prompt: str) -> int | None:
        reply = await _ask(client, prompt, {"temperature": 0.0, "max_tokens": 1})
        return None if reply.usage is None else reply.usage.prompt_tokens

    return await _in_flight(concurrency, ask, prompts)


async def _in_flight(
    concurrency: int, ask: Callable[[_Asked], Awaitable[_Result]], parts: Sequence[_Asked]
) -> list[_Result]:
    """The results in order, with so many in the making; the first error cancels the rest."""
    results: dict[int, _Result] = {}
    places = iter(range(len(parts)))

    async def work() -> None:
        for place in places:
            results[place] = await ask(parts[place])

    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(parts))):
                group.create_task(work())
    except* MeasurementError as errors:
        # Not raised here: up to Python 3.11.3, what `except*` raises comes out in a group.
        failed = errors.exceptions[0]

    if failed is not None:
        raise failed
    return [results[place] for place in range(len(parts))]


async def _ask(client: Client, prompt: str, fields: Mapping[str, Any]) -> _Reply:
    reply = await client.complete(prompt, {**fields, "return_token_ids": True})
    if reply is None:
        asked = " for log-probabilities" if "logprobs" in fields else ""
        raise MeasurementError(f"{client.name}: a request{asked} failed: {client.last_fault}")
    try:
        return _Reply.model_validate(reply)
    except ValidationError:
        raise MeasurementError(
            f"{client.name}: the reply has no token ids (return_token_ids); is this a recent vLLM?"
        ) from None


def _tokens(choice: _Choice, asked: int) -> Tokens:
    """The output's tokens, and ``END`` if it ended before it had as many as asked for."""
    ended = (END,) if len(choice.token_ids) < asked else ()
    return (*choice.token_ids, *ended)


def _likely(client: Client, choice: _Choice) -> list[Mapping[int, float]]:
    found = choice.logprobs or _Logprobs()
    positions: list[Mapping[str, float]] = [one or {} for one in found.top_logprobs]
    if client.is_chat:
        positions = [{one.token: one.logprob for one in at.top_logprobs} for at in found.content]

    try:
        return [_by_id(likely) for likely in positions]
    except ValueError:
        raise MeasurementError(
            f"{client.name}: log-probabilities without token ids (return_tokens_as_token_ids)"
        ) from None


def _by_id(likely: Mapping[str, float]) -> dict[int, float]:
    """Log-probabilities by the ids of their tokens, which vLLM writes as ``token_id:7``."""
    return {int(token.removeprefix(_ID)): logprob for token, logprob in likely.items()}
