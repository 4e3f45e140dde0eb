"""Recordings with one request a line, each with vLLM's own numbers, as if a plug-in had sent them.

A line of ``requests.jsonl`` has ``temperature`` (None: vLLM's default applied), ``start`` and ``end`` (Unix seconds),
``chunks`` (of streams: seconds from ``start`` to each event), ``usage`` and ``speculative_decoding``.
"""

import json
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sidecar.engine.names import Counter
from sidecar.engine.snapshot import PageSnapshot
from sidecar.recording.heard import Heard
from sidecar.requests.messages import (
    Endings,
    FinishedRequest,
    Hello,
    Outcome,
    PluginState,
    TemperatureTotals,
    Tick,
    Totals,
)

_DEFAULT: Final = 1.0  # vLLM's temperature for requests that name none
_CHAT: Final = "/chat/completions"
_COUNTERS: Final = (Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)
_OUTCOMES: Final = {"completed": Outcome.LENGTH, "aborted": Outcome.ABORTED, "error": Outcome.ERROR}


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One line; ``events`` are the times of the request's tokens, as far as they are known."""

    finished: FinishedRequest
    events: tuple[float, ...]
    end: float

    @classmethod
    def read(cls, text: str) -> Self:
        """Reads a line; raises what a wrong one makes Python raise."""
        line: dict[str, Any] = json.loads(text)
        start, end, usage = float(line["start"]), float(line["end"]), line.get("usage") or {}
        chunks = [start + float(offset) for offset in line.get("chunks") or ()]
        if str(line["path"]).endswith(_CHAT):
            chunks = chunks[1:]  # the role has its own event, before any token
        numbers = line.get("speculative_decoding") or {}
        temperature = line.get("temperature")
        finished = FinishedRequest(
            temperature=math.ceil(round(100 * (_DEFAULT if temperature is None else float(temperature)), 6)),
            drafts=int(numbers.get("num_spec_steps", 0)),
            draft_tokens=int(numbers.get("num_draft_tokens", 0)),
            accepted_tokens=int(numbers.get("num_accepted_draft_tokens", 0)),
            lengths=tuple(int(steps) for steps in numbers.get("acceptance_histogram") or ()),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            cached_tokens=None,
            output_tokens=int(usage.get("completion_tokens") or 0),
            arrival=start,
            first_token=chunks[0] if chunks else None,
            last_token=chunks[-1] if chunks else None,
            outcome=_OUTCOMES[line.get("outcome", "completed")],
        )
        return cls(finished, tuple(chunks) or (end,), end)

    def share(self, at: float) -> float:
        """How much of it had been generated at a time, from 0 to 1."""
        return bisect_right(self.events, at) / len(self.events)


def as_heard(requests: Sequence[RecordedRequest], pages: Sequence[tuple[float, PageSnapshot]]) -> Iterator[Heard]:
    """A tick before each page and each request at its end; totals begin where vLLM's counters stood at the first."""
    engines = [engine for _, page in pages[:1] for engine in page.engines[:1]]
    if not engines:
        return
    begun, engine = pages[0][0], int(engines[0].key.engine or 0)
    base = Totals(*(int(engines[0].counters.get(one, 0)) for one in _COUNTERS))
    yield Heard(begun, 1, hello=_hello(engine, begun))
    ending = deque(sorted(requests, key=lambda one: one.end))
    for at, _ in pages:
        while ending and ending[0].end <= at:
            yield Heard(ending[0].end, 1, request=ending.popleft().finished)
        yield Heard(at, 1, tick=_tick(requests, base, at))


def _hello(engine: int, begun: float) -> Hello:
    who = "recording"
    state = PluginState.OBSERVING
    return Hello(plugin=who, vllm=None, model=None, engine=engine, start=who, started=begun, state=state)


def _tick(requests: Sequence[RecordedRequest], base: Totals, at: float) -> Tick:
    rows: dict[int, list[int]] = {}
    depth = max([1, *(len(one.finished.lengths) for one in requests)]) - 1
    for one in requests:
        if share := one.share(at):
            row = rows.setdefault(one.finished.temperature, [0] * (7 + 2 * depth))
            endings = (int(one.end <= at and one.finished.outcome is outcome) for outcome in Outcome)
            more = (*endings, *(int(share * number) for number in _counts(one.finished, depth)))
            row[:] = map(int.__add__, row, more)
    temperature = tuple(
        TemperatureTotals(
            key, Endings(*row[:4]), row[4], row[5], row[6], tuple(row[7 : 7 + depth]), tuple(row[7 + depth :])
        )
        for key, row in rows.items()
    )
    total = (sum(column) for column in zip(base, *(row[4:7] for row in rows.values()), strict=True))
    return Tick(at=at, lost=0, total=Totals(*total), temperature=temperature)


def _counts(one: FinishedRequest, depth: int) -> list[int]:
    """Drafts, draft tokens, accepted tokens, and draft and accepted tokens at each position."""
    accepted_at = [sum(one.lengths[position:]) for position in range(1, depth + 1)]
    drafted_at = [one.drafts if position < len(one.lengths) else 0 for position in range(1, depth + 1)]
    return [one.drafts, one.draft_tokens, one.accepted_tokens, *drafted_at, *accepted_at]
