"""Reads recordings that have one request per line, with vLLM's own numbers, as if a plug-in had sent them.

A line of ``requests.jsonl`` has ``path``, ``temperature`` (None: vLLM's default), ``start`` and ``end`` (Unix seconds),
``chunks`` (of streams: seconds from ``start`` to each event), ``usage``, ``speculative_decoding`` and ``outcome``.
"""

import json
import math
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Final

from sidecar.engine.names import SPECULATION
from sidecar.engine.snapshot import PageSnapshot
from sidecar.recording.heard import Heard
from sidecar.requests.messages import (
    Endings,
    FinishedRequest,
    Hello,
    HelloState,
    Outcome,
    TemperatureTotals,
    Tick,
    Totals,
)

_DEFAULT: Final = 1.0  # vLLM's temperature for requests that set none
_CHAT: Final = "/chat/completions"
_OUTCOMES: Final = {"completed": Outcome.LENGTH, "aborted": Outcome.ABORTED, "error": Outcome.ERROR}


def read_request(text: str) -> tuple[float, FinishedRequest]:
    """Reads a line: when the request ended, and the request; a malformed line raises whatever Python raises for it."""
    line: dict[str, Any] = json.loads(text)
    start, end, usage = float(line["start"]), float(line["end"]), line.get("usage") or {}
    chunks = [start + float(offset) for offset in line.get("chunks") or ()]
    if str(line["path"]).endswith(_CHAT):
        chunks = chunks[1:]  # the role has its own event, before any token
    numbers = line.get("speculative_decoding") or {}
    temperature = line.get("temperature")
    return end, FinishedRequest(
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


def as_heard(requests: Iterable[tuple[float, FinishedRequest]], begun: float, page: PageSnapshot) -> Iterator[Heard]:
    """Each request when it ended, with a tick; the totals start at vLLM's counters on the first ``page``."""
    for engine in page.engines[:1]:
        total = Totals(*(int(engine.counters.get(one, 0)) for one in SPECULATION))
        who, model, number = "recording", engine.key.model_name, int(engine.key.engine or 0)
        state = HelloState.OBSERVING
        hello = Hello(plugin=who, vllm=None, model=model, engine=number, start=who, started=begun, state=state)
        yield Heard(begun, 1, hello=hello)
        rows: dict[int, TemperatureTotals] = {}
        for end, one in sorted(requests, key=itemgetter(0)):
            before = rows.get(one.temperature, TemperatureTotals(one.temperature, Endings(0, 0, 0, 0), 0, 0, 0, (), ()))
            row = rows[one.temperature] = _added(before, one)
            total = Totals(*_sums(total, (one.drafts, one.draft_tokens, one.accepted_tokens)))
            yield Heard(end, 1, tick=Tick(at=end, lost=0, total=total, temperature=(row,)))
            yield Heard(end, 1, request=one)


def _added(row: TemperatureTotals, one: FinishedRequest) -> TemperatureTotals:
    """A temperature's totals with one more request added."""
    positions = range(1, len(one.lengths))
    return TemperatureTotals(
        temperature=row.temperature,
        requests=Endings(*_sums(row.requests, [int(one.outcome is outcome) for outcome in Outcome])),
        drafts=row.drafts + one.drafts,
        draft_tokens=row.draft_tokens + one.draft_tokens,
        accepted_tokens=row.accepted_tokens + one.accepted_tokens,
        drafted_at=_sums(row.drafted_at, [one.drafts] * len(positions)),
        accepted_at=_sums(row.accepted_at, [sum(one.lengths[position:]) for position in positions]),
    )


def _sums(before: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(before, more, fillvalue=0)))
