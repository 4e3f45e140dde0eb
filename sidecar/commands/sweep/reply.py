"""Reads a streamed reply of chat or text completions: when its tokens came, and what it says of itself."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from sidecar.commands.sweep.sample import Sample

_DATA: Final = b"data:"
_COUNTS: Final = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")


class ReplyReader:
    """Reads one reply line by line; ``clock`` gives seconds. Made when the request is sent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._first: float | None = None
        self._tokens: int | None = None
        self._speculation: Mapping[str, Any] = {}
        self._is_stream = False
        self._failed = False

    def feed(self, line: bytes) -> None:
        """Take the next line.

        Raises:
            ValueError: its data is not JSON.
        """
        if not line.startswith(_DATA):
            return
        self._is_stream = True
        data = line.removeprefix(_DATA).strip()
        event = {} if data == b"[DONE]" else json.loads(data)
        if not isinstance(event, dict) or event.get("error") is not None or event.get("object") == "error":
            self._failed = True
            return
        if self._first is None and _has_tokens(event):
            self._first = self._clock()
        usage, metrics = event.get("usage"), event.get("metrics")
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            self._tokens = usage["completion_tokens"]
        if isinstance(metrics, dict) and isinstance(metrics.get("speculative_decoding"), dict):
            self._speculation = metrics["speculative_decoding"]

    @property
    def fault(self) -> str | None:
        """Why the reply does not count; None if it does."""
        if self._failed:
            return "an error in the stream"
        return None if self._is_stream else "no stream"

    def sample(self, temperature: float) -> Sample:
        """What was measured; the reply has ended."""
        first, end, tokens, speculation = self._first, self._clock(), self._tokens, self._speculation
        known = all(isinstance(speculation.get(name), int) for name in _COUNTS)
        drafts, drafted, accepted = (speculation[name] if known else 0 for name in _COUNTS)
        return Sample(
            temperature=temperature,
            ttft=None if first is None else first - self._begun,
            tpot=None if first is None or tokens is None or tokens < 2 else (end - first) / (tokens - 1),
            duration=end - self._begun,
            tokens=tokens,
            drafts=drafts if known else None,
            draft_tokens=drafted,
            accepted_tokens=accepted,
            histogram=tuple(speculation.get("acceptance_histogram") or ()) if known else (),
        )


def _has_tokens(event: Mapping[str, Any]) -> bool:
    """Whether the event carries generated tokens: chat's first one has a role only."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta")
    return not isinstance(delta, dict) or "role" not in delta or bool(delta.get("content"))
