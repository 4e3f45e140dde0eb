"""Reads recordings that have one request per line, with vLLM's own numbers, as if a plug-in had sent them.

A line of ``requests.jsonl`` has ``path``, ``temperature`` (None: vLLM's default), ``start`` and ``end`` (Unix seconds),
``chunks`` (of streams: seconds from ``start`` to each event), ``usage``, ``speculative_decoding`` and ``outcome``.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final

from sidecar.engine.names import SPECULATION
from sidecar.engine.snapshot import PageSnapshot
from sidecar.recording.heard import Heard
from sidecar.requests.messages import (
    OTHER,
    FinishedRequest,
    Hello,
    HelloState,
    Other,
    ReportEnd,
    ReportPart,
    Row,
)
from sidecar.requests.tally import NOTHING, Outcome, Tally

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
        output_tokens=int(usage.get("completion_tokens") or 0),
        arrival=start,
        first_token=chunks[0] if chunks else None,
        last_token=chunks[-1] if chunks else None,
        outcome=_OUTCOMES[line.get("outcome", "completed")],
    )


def as_heard(requests: Iterable[tuple[float, FinishedRequest]], begun: float, page: PageSnapshot) -> Iterator[Heard]:
    """A report for each request when it ended; what vLLM had counted on the first ``page`` is in a row "other"."""
    for engine in page.engines[:1]:
        drafts, draft_tokens, accepted_tokens = (int(engine.counters.get(counter, 0)) for counter in SPECULATION)
        before = Tally(drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted_tokens)
        who, model, number = "recording", engine.key.model_name, int(engine.key.engine or 0)
        state = HelloState.OBSERVING
        hello = Hello(plugin=who, vllm=None, model=model, engine=number, start=who, started=begun - 1, state=state)
        yield Heard(begun, 1, hello=hello)
        total, rows = before, dict[int | Other, Tally]()
        yield Heard(begun, 1, report=_report(OTHER, before, before))
        for end, request in sorted(requests, key=itemgetter(0)):
            tally, key = _tally(request), request.temperature
            rows[key], total = rows.get(key, NOTHING) + tally, total + tally
            yield Heard(end, 1, report=replace(_report(key, rows[key], total), finished=(request,)))


def _report(key: int | Other, row: Tally, total: Tally) -> ReportPart:
    return ReportPart(temperature=(Row(key=key, since=0.0, counts=row),), end=ReportEnd(total=total, lost=0))


def _tally(request: FinishedRequest) -> Tally:
    """What one request adds to its temperature's row."""
    positions = range(1, len(request.lengths))
    ended = {outcome: int(outcome is request.outcome) for outcome in Outcome}
    return Tally(
        stopped=ended[Outcome.STOPPED],
        length=ended[Outcome.LENGTH],
        aborted=ended[Outcome.ABORTED],
        error=ended[Outcome.ERROR],
        drafts=request.drafts,
        draft_tokens=request.draft_tokens,
        accepted_tokens=request.accepted_tokens,
        drafted_at=(request.drafts,) * len(positions),
        accepted_at=tuple(sum(request.lengths[position:]) for position in positions),
    )
