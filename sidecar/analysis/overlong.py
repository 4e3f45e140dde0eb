"""While any request of an engine was longer than its draft's longest length.

Model runner V1 then accepts no draft token of any request in the batch (vLLM's
``_input_fits_in_drafter``; vllm 58080).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sidecar.requests.messages import FinishedRequest, Hello

_MOST: Final = 256  # requests that are counted, and spans of an engine, which rather merge

Span = tuple[float, float]  # from, to, in Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlong:
    """Of the window's finished requests, those longer than the draft's ``longest`` in tokens.

    At most 256 ``requests`` are counted. At least one ran for ``share`` of the window, as a mean
    over the engines. Both are lower bounds: requests that still run are not known.
    """

    requests: int
    longest: int
    share: float


def longest_length(hello: Hello) -> int | None:
    """The tokens that a request may have without stopping the drafts of its batch.

    None if it never does, as on model runner V2, or if that is not known.
    """
    speculation = hello.speculation
    if speculation is None or hello.configuration.model_runner_v2 is not False:
        return None

    longest = speculation.draft_max_model_len
    at_most = hello.configuration.max_model_len
    if longest is None or (at_most is not None and longest >= at_most):
        return None
    return max(longest - speculation.num_speculative_tokens, 0)


class OverlongRequests:
    """The spans of one model's requests that were too long, over the sliding window."""

    def __init__(self, window: float) -> None:
        """``window`` is in seconds."""
        self._window = window
        self._since: float | None = None  # the first poll
        self._seconds = 0.0  # of the window, as far as it is known
        self._longest: int | None = None
        self._ended: deque[float] = deque(maxlen=_MOST)  # when each request ended
        self._spans: dict[str, list[Span]] = {}  # by engine, in order and without overlaps

    def finished(
        self, engine: str, longest: int | None, requests: Iterable[FinishedRequest]
    ) -> None:
        """Takes in an engine's finished requests; ``longest`` is of ``longest_length``."""
        if longest is None:
            return

        self._longest = longest
        spans = self._spans.setdefault(engine, [])
        for request in requests:
            span = _too_long(request, longest)
            if span is not None:
                self._ended.append(span[1])
                spans[:] = _merged([*spans, span])[-_MOST:]

    def mark(self, at: float) -> None:
        """Drops what is older than the window at ``at``, a good poll's time."""
        self._since = at if self._since is None else min(self._since, at)
        begin = max(at - self._window, self._since)
        self._seconds = at - begin
        self._ended = deque((ended for ended in self._ended if ended > begin), maxlen=_MOST)
        for spans in self._spans.values():
            spans[:] = [(max(start, begin), end) for start, end in spans if end > begin]

    def found(self, engines: int) -> Overlong | None:
        """What is known of the window, with so many engines; None if no request was too long."""
        if self._longest is None or not self._ended or not self._seconds:
            return None

        seconds = sum(end - start for spans in self._spans.values() for start, end in spans)
        share = seconds / (self._seconds * engines)
        return Overlong(requests=len(self._ended), longest=self._longest, share=min(share, 1.0))


def _too_long(request: FinishedRequest, longest: int) -> Span | None:
    """When a request had more than ``longest`` tokens; None if it never did, or that is unknown."""
    begin, end, output = request.first_token, request.last_token, request.output_tokens
    if begin is None or end is None or not output or end <= begin:
        return None

    before = longest - request.prompt_tokens  # output tokens
    if output <= before:
        return None
    return begin + (end - begin) * max(before, 0) / output, end


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
