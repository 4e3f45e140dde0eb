"""Which way of counting a request's steps is right for this engine: worked out from what the closed windows hold.

Two identities of vLLM's own counters carry it, whatever part of the traffic is seen. Each request in a step gives one
token more than it accepted, so *emitted* = generation tokens - accepted tokens = steps summed over requests, the first
one included. And where every step drafts, drafts = those steps less one a request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.attribution.ledger import Count, Ledger, Slot
from sidecar.analysis.attribution.window import Clock

_ENOUGH_DRAFTS: Final = 100
_ENOUGH_REQUESTS: Final = 8
_ENOUGH_WITHOUT_STREAMS: Final = 40
_FEW_STREAMS: Final = 3
# Steps, as recordings have it: the one under way at arrival; next to none where a request was waited for, since its
# place is given on before the client of the last one hears of its end; less than none where what was emitted is
# shared by all in flight, waiting or not, since the overhang is not emitted.
_USUAL_WAIT: Final = 1.1
_USUAL_WAIT_QUEUED: Final = 0.2
_USUAL_WAIT_SHARED: Final = -0.9
_TRUST_IN_USUAL: Final = 5  # requests that this is worth
USUAL_LAG: Final = 0.7  # steps: the first event comes that much after its step was counted (recordings)
_EVERY_STEP: Final = (0.96, 0.98)  # share of steps that draft, below and above which the answer changes
# Steps are taken as even from poll to poll. Where they change from one poll interval to the next, they do within one.
_UNEVEN: Final = 0.4  # of that change (recordings)
_LONG_WAIT: Final = 4.0  # steps: more is a queue
_SHORT_WAIT: Final = 2.5  # steps: less is none, even where few requests are seen
_LONG_WAIT_SHARE: Final = 0.08  # of the time that requests are there for
_SEEN: Final = 0.97  # share of the tokens from which on all traffic counts as seen
_MOSTLY_SEEN: Final = 0.9
_PARTLY_SEEN: Final = 0.7  # with less, what differs in the traffic that is not seen is most of any difference


@dataclass(frozen=True, slots=True)
class Method:
    """How steps and drafts are counted.

    ``clock_error``: how far a clock is off within a poll interval, in steps. ``events``: a streamed event is a step.
    ``wait``: steps from being taken up to the one that gives the first token, without that one; ``wait_error``: how
    far single requests are off it. ``every_step``: each step after the first one drafts. ``limit``: how many requests
    run at once; None where none has to wait.
    """

    clock: Clock = Clock.STEPS
    clock_error: float = 0.0
    events: bool = True
    wait: float = _USUAL_WAIT
    wait_error: float = 0.0
    every_step: bool = True
    limit: int | None = None


def usual_wait(method: Method) -> float:
    """``Method.wait`` where nothing is known yet."""
    if method.clock is Clock.SHARED:
        return _USUAL_WAIT_SHARED
    return _USUAL_WAIT if method.limit is None else _USUAL_WAIT_QUEUED


def enough(sums: Sequence[float], counts: Sequence[float]) -> bool:
    """Whether the closed windows hold enough to choose on."""
    requests, streams = sums[Slot.REQUESTS], sums[Slot.EVENT_REQUESTS]
    # Where a few are streamed, some more will be: they show what the steps are worth.
    told = streams == 0 or streams >= _ENOUGH_REQUESTS or requests >= _ENOUGH_WITHOUT_STREAMS
    return told and requests >= _ENOUGH_REQUESTS and counts[Count.DRAFTS] >= _ENOUGH_DRAFTS


def seen_share(sums: Sequence[float], counts: Sequence[float]) -> float:
    """The part of the generated tokens that went to requests whose tokens are known, 0 to 1."""
    generated = counts[Count.GENERATED]
    share = sums[Slot.TOKENS] / generated if generated > 0 else 0.0
    return 1.0 if share > _SEEN else share


def coverage(counts: Sequence[float], drafts: float) -> float | None:
    """Attributed ``drafts`` as a part of those counted, 0 to 1; None where none were counted."""
    counted = counts[Count.DRAFTS]
    return min(drafts / counted, 1.0) if counted > 0 else None


def residual(sums: Sequence[float], counts: Sequence[float], drafts: float) -> float | None:
    """How far attributed sums are off the counters' growth, as a part of it; None without growth.

    The larger of the two for ``drafts`` and for accepted tokens, both against the part of the traffic that is seen.
    None, too, where much is not, or some and nothing is inferred: what is not seen may accept more or less.
    """
    seen = seen_share(sums, counts)
    if seen < _PARTLY_SEEN or (seen < 1 and not sums[Slot.STEPS]):
        return None
    counted, accepted = counts[Count.DRAFTS] * seen, counts[Count.ACCEPTED] * seen
    if counted <= 0 or accepted <= 0:
        return None
    found = sums[Slot.TOKENS] - sums[Slot.EMITTED]
    return max(abs(drafts - counted) / counted, abs(found - accepted) / accepted)


def holds(method: Method, share: float) -> bool:
    """Whether a method's numbers are right where ``share`` of the generated tokens went to requests that are seen.

    Those in flight share the clock and wait for each other, which needs all of them. Whose drafts they are where not
    every step drafts comes out of many polls' sums, which bear some that is unseen. (Recordings with a part of their
    requests left out: otherwise buckets were off by up to 0.6.)
    """
    if share > _MOSTLY_SEEN:
        return True
    alone = method.clock is Clock.STEPS and method.limit is None and method.wait < _SHORT_WAIT
    return alone and (method.every_step or share > _PARTLY_SEEN)


def differs(one: Method, other: Method) -> bool:
    """Whether sums collected under one method mean nothing under the other."""
    return one.limit != other.limit or one.clock is not other.clock or one.events != other.events


def choose(ledger: Ledger, now: Method, *, counted_once: bool = True) -> Method:
    """The method that the closed windows speak for; ``now`` is the one in use.

    ``counted_once``: vLLM's step count is that of one API server.
    """
    sums, counts = ledger.sums, ledger.counts
    if not enough(sums, counts):
        return now
    steps = counts[Count.STEPS] > 0 and counted_once
    method = replace(_counting(sums, counts, now, steps=steps), every_step=_every_step(sums, counts, now))
    wait, error = _wait(sums, counts, usual_wait(method))
    method = replace(method, clock_error=_clock_error(counts), wait=wait, wait_error=error)
    return replace(method, limit=_limit(ledger, method))


def _counting(sums: Sequence[float], counts: Sequence[float], now: Method, *, steps: bool) -> Method:
    """Whether events are steps, and which clock is right: where two of the three agree, they are."""
    told = sums[Slot.EVENT_REQUESTS] >= _ENOUGH_REQUESTS
    if told and steps and _agrees(sums, Slot.EVENT_STEPS, 1.04):
        return replace(now, clock=Clock.STEPS, events=True)
    if told and _agrees(sums, Slot.EVENT_SHARED, 1.12):
        return replace(now, clock=Clock.SHARED, events=True)
    clock = Clock.STEPS if steps and not _overcounted(sums, counts) else Clock.SHARED
    return replace(now, clock=clock, events=now.events and not told)


def _agrees(sums: Sequence[float], slot: Slot, most: float) -> bool:
    """Whether a clock counts as many steps as there are events: merged events are fewer, by more than ``most``.

    A clock may fall behind by much more: the step that gives the first token is a long one, so that the poll interval
    around it holds fewer steps before than it holds after.
    """
    events, requests = sums[Slot.EVENTS], sums[Slot.EVENT_REQUESTS]
    ticks = sums[slot] + USUAL_LAG * requests
    return 0.75 * events - 0.5 * requests <= ticks <= most * events + 0.5 * requests


def _overcounted(sums: Sequence[float], counts: Sequence[float]) -> bool:
    """Whether vLLM counts more steps than there were: its requests were there for longer than they can have waited.

    Not where much is unseen: what was emitted for the requests that are seen is then not known well enough.
    """
    seen = seen_share(sums, counts)
    if seen <= _MOSTLY_SEEN:
        return False
    emitted = counts[Count.EMITTED] * seen
    waited = sums[Slot.STAY] - emitted - _USUAL_WAIT * sums[Slot.REQUESTS]
    return waited > 0.2 * emitted and counts[Count.FULL] < 0.5 * counts[Count.BUSY]


def _every_step(sums: Sequence[float], counts: Sequence[float], now: Method) -> bool:
    share = seen_share(sums, counts)
    firsts = sums[Slot.REQUESTS] / share if share > 0 else 0.0
    # A request's first step drafts nothing, and its last one emits about one token less than it verified.
    steps = counts[Count.EMITTED] - 0.5 * min(firsts, counts[Count.EMITTED] / 2)
    return counts[Count.DRAFTS] > _EVERY_STEP[0 if now.every_step else 1] * steps


def _wait(sums: Sequence[float], counts: Sequence[float], usual: float) -> tuple[float, float]:
    """``Method.wait`` and ``wait_error``: from requests whose steps are known, else from the sums."""
    waited, requests, error = sums[Slot.WITNESSED], sums[Slot.WITNESSES], 0.0
    if requests >= _ENOUGH_REQUESTS:
        error = math.sqrt(max(sums[Slot.WITNESSED_SQUARES] / requests - (waited / requests) ** 2, 0.0))
    else:
        requests = sums[Slot.SILENT_REQUESTS]
        others = sums[Slot.EMITTED] - sums[Slot.SILENT_EMITTED]
        emitted = counts[Count.EMITTED] * seen_share(sums, counts) - others + sums[Slot.SILENT_OVERHANG]
        waited = sums[Slot.SILENT] - emitted
        # What was emitted for the requests that are seen is a guess: good enough to tell a queue, no more.
        if seen_share(sums, counts) <= _MOSTLY_SEEN and waited < _SHORT_WAIT * requests:
            requests = waited = 0.0
    return (waited + _TRUST_IN_USUAL * usual) / (requests + _TRUST_IN_USUAL), error


def _clock_error(counts: Sequence[float]) -> float:
    return _UNEVEN * counts[Count.CHANGED] / counts[Count.NEIGHBOURS] if counts[Count.NEIGHBOURS] > 0 else 0.0


def _limit(ledger: Ledger, method: Method) -> int | None:
    """How many requests run at once, where others have to wait for them."""
    counts = ledger.counts
    if method.clock is Clock.SHARED or ledger.arrivals <= 0:
        return None
    if ledger.sums[Slot.EVENT_REQUESTS] >= _FEW_STREAMS and not _agrees(ledger.sums, Slot.EVENT_STEPS, 1.04):
        return None  # more steps than there were look like requests that wait
    full = counts[Count.FULL] / max(counts[Count.BUSY], 1.0)
    # A wait that is short, or a small part of a request's life, is the prefill; its mean will do.
    if method.limit is None:
        queued = full > 0.5 and _waits(ledger, 1.0) and seen_share(ledger.sums, counts) > _MOSTLY_SEEN
    else:
        queued = full > 0.3 and _waits(ledger, 0.5)
    return max(round(ledger.most_running), 1) if queued else None


def _waits(ledger: Ledger, strictness: float) -> bool:
    long = ledger.waiting > strictness * _LONG_WAIT * ledger.arrivals
    return long and ledger.waiting > strictness * _LONG_WAIT_SHARE * ledger.stayed
