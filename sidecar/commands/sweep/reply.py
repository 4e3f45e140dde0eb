"""Reads a streamed reply of chat or text completions: when its tokens came, and the numbers that vLLM adds."""

import time
from collections.abc import AsyncIterable
from typing import Any, Final

from pydantic import AliasPath, BaseModel, Field

from sidecar.commands.sweep.sample import Sample

_DATA: Final = b"data:"
_METRICS: Final = ("metrics", "speculative_decoding")


class BadReply(Exception):
    """The reply's status is not 200, it is not a stream, or it contains an error."""


class _Event(BaseModel):
    """The parts of an event that are read; the last events have the number of tokens and vLLM's own acceptance."""

    object: str = ""
    error: Any = None
    choices: tuple[Any, ...] = ()
    delta: dict[str, Any] = Field({}, validation_alias=AliasPath("choices", 0, "delta"))
    tokens: int | None = Field(None, validation_alias=AliasPath("usage", "completion_tokens"))
    drafts: int | None = Field(None, validation_alias=AliasPath(*_METRICS, "num_spec_steps"))
    draft_tokens: int = Field(0, validation_alias=AliasPath(*_METRICS, "num_draft_tokens"))
    accepted_tokens: int = Field(0, validation_alias=AliasPath(*_METRICS, "num_accepted_draft_tokens"))
    histogram: tuple[int, ...] = Field((), validation_alias=AliasPath(*_METRICS, "acceptance_histogram"))

    @property
    def has_tokens(self) -> bool:
        """Whether it carries generated tokens: the first event of a chat has only a role."""
        return bool(self.choices) and ("role" not in self.delta or bool(self.delta.get("content")))


async def read_reply(lines: AsyncIterable[bytes], temperature: float, begun: float) -> Sample:
    """Reads the reply to a request that was sent at ``begun``, in monotonic seconds.

    Raises:
        BadReply: it is not a stream, or contains an error.
        ValueError: an event is not JSON, or not from an OpenAI-style server.
    """
    first: float | None = None
    tokens: int | None = None
    accepted = last = None
    async for line in lines:
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        last = _Event() if data == b"[DONE]" else _Event.model_validate_json(data)
        if last.error is not None or last.object == "error":
            raise BadReply("an error in the stream")
        if first is None and last.has_tokens:
            first = time.monotonic()
        tokens = tokens if last.tokens is None else last.tokens
        accepted = accepted if last.drafts is None else last
    if last is None:
        raise BadReply("no stream")
    end, found = time.monotonic(), accepted or last
    return Sample(
        temperature=temperature,
        ttft=None if first is None else first - begun,
        tpot=None if first is None or tokens is None or tokens < 2 else (end - first) / (tokens - 1),
        duration=end - begun,
        tokens=tokens,
        drafts=found.drafts,
        draft_tokens=found.draft_tokens,
        accepted_tokens=found.accepted_tokens,
        histogram=found.histogram,
    )
