"""One request's steps, drafts and accepted tokens, from its own life and vLLM's counters over it."""

import math
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.attribution.ledger import Slot, accepted_slot, spare_slot
from sidecar.analysis.attribution.method import USUAL_LAG, Method
from sidecar.analysis.attribution.overhang import expected_overhang
from sidecar.analysis.attribution.window import Clock, Windows
from sidecar.requests.record import Outcome, RequestRecord

_ENOUGH_DRAFTS: Final = 20
_ROUNDING: Final = 1 + 1e-9
_TELLING: Final = 0.055  # standard error of a request's acceptance above which it has no ratio of its own
_MOST_DOUBT: Final = 0.1  # of a request's time
_LAST_STEP_ERROR: Final = 1.0  # of the expected overhang


@dataclass(frozen=True, slots=True)
class Life:
    """A finished request, and how far the clocks went in it: since it was ``taken`` up, and since its first token.

    ``ticks`` and ``ticks_from_first`` are by ``Clock``; None where the windows do not cover the time or vLLM
    restarted in it. ``drafted`` is vLLM's mean of draft tokens a draft meanwhile. ``poll`` is the time between the
    polls around its ends, in seconds. ``credible``: it tells of no more tokens than vLLM generated meanwhile.
    ``doubt``: ``Admission``'s about ``taken``, in seconds.
    """

    record: RequestRecord
    bucket: int
    taken: float
    ticks: tuple[float, float] | None = None
    ticks_from_first: tuple[float, float] | None = None
    stay: float = 0.0  # the STEPS clock from start to end
    drafted: float = 1.0
    poll: float = 1.0
    credible: bool = True
    doubt: float = 0.0

    @property
    def after_first(self) -> float | None:
        """Tokens after the first of each choice; None where the tokens are not known."""
        tokens = self.record.completion_tokens
        return None if tokens is None else float(max(tokens - self.record.choices, 0))

    @property
    def doubtful(self) -> bool:
        """Whether it may have been another one that was taken up then; of both together the time is right."""
        return self.doubt > _MOST_DOUBT * (self.record.end - self.record.start)

    @property
    def silent(self) -> bool:
        """Whether no one saw its first token."""
        return self.record.first_token is None


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps after the first, and the standard error of that number; ``doubtful``: good for sums alone."""

    count: float
    error: float
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Usual:
    """What the engine's counters say of all requests together; ``spread`` is that of ``expected_overhang``."""

    spread: float = 1.0
    drafts_per_token: float = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """What a request did.

    ``overhang`` is the part of ``accepted`` that was cut off at its end, ``error`` as in ``AttributedRequest``;
    ``telling``: the request is long enough for a ratio of its own.
    """

    drafts: float
    accepted: float
    overhang: float
    error: float
    telling: bool


def located(life: Life, windows: Windows, drafted: float) -> Life:
    """The life with its clocks read off; ``drafted`` is draft tokens a draft where its own time holds too few."""
    record = life.record
    found = windows.covering(record.start, record.end)
    if found is None or record.end <= record.start or not windows.unbroken(found):
        return Life(record, life.bucket, life.taken, drafted=drafted, doubt=life.doubt)

    def ticks(start: float) -> tuple[float, float]:
        within = windows.covering(start, record.end) or found
        return windows.steps(Clock.STEPS, within, start, record.end), windows.steps(
            Clock.SHARED, within, start, record.end
        )

    first = record.first_token
    tokens, drafts = windows.tokens_per_draft(*found)
    return Life(
        record,
        life.bucket,
        life.taken,
        doubt=life.doubt,
        ticks=ticks(life.taken),
        ticks_from_first=ticks(first) if first is not None and record.start <= first <= record.end else None,
        stay=windows.steps(Clock.STEPS, found, record.start, record.end),
        drafted=max(tokens / drafts, 1.0) if drafts >= _ENOUGH_DRAFTS else drafted,
        credible=(record.completion_tokens or 0) <= windows.generated(*found) * _ROUNDING,
        poll=max(windows.at(index).seconds for index in found),
    )


def steps_of(life: Life, method: Method) -> Steps | None:
    """A request's steps; None where they can't be told."""
    record, tokens = life.record, life.after_first
    if tokens is None or not life.credible:
        return None
    least = tokens / (life.drafted + 1)
    events = record.stream_events - record.choices
    if method.events and record.stream_events > 0 and least - 1 <= events <= tokens + 1:
        return Steps(min(max(float(events), 0.0), tokens), 0.0)
    return _by_clock(life, method, tokens) if record.choices == 1 and life.ticks is not None else None


def _by_clock(life: Life, method: Method, tokens: float) -> Steps | None:
    polls = 0.7 + 1.3 * life.poll + (0.5 if method.limit is not None else 0.0)
    error = max(polls, method.clock_error, method.wait_error)
    if life.ticks is None or (error > tokens / 2 and tokens > 0):
        return None  # the polls are too far apart for a request this short
    if life.ticks_from_first is not None and method.clock is Clock.STEPS:
        return Steps(life.ticks_from_first[Clock.STEPS] + USUAL_LAG, error)
    return Steps(life.ticks[method.clock] - method.wait - 1, error, life.doubtful)


def bounded(count: float, life: Life) -> float:
    """A number of steps brought to what the request's tokens allow."""
    tokens = life.after_first or 0.0
    return min(max(count, tokens / (life.drafted + 1)), tokens)


def work_of(life: Life, steps: Steps, share: float, usual: Usual) -> Work:
    """A request's drafts and accepted tokens; ``share`` of the steps that need not have drafted did draft."""
    tokens, most = life.after_first or 0.0, life.drafted
    base = max(tokens - steps.count, 0.0)
    overhang = 0.0
    drafts = _drafts(base, steps.count, share, most)
    if life.record.outcome is Outcome.COMPLETED and drafts > 0:
        mean, drafting = base / drafts, min(drafts / steps.count, 1.0)
        overhang = life.record.choices * expected_overhang(mean, most, drafting, usual.spread)
    accepted = base + overhang
    drafts = _drafts(accepted, steps.count, share, most)
    accepted = min(accepted, most * drafts)
    if drafts <= 0:
        return Work(0.0, 0.0, 0.0, 0.0, telling=False)
    # Where a step more is counted, a token less was accepted, and drafts change with both.
    rate = accepted / (most * drafts)
    error = steps.error * (1 - rate + rate * share * (most + 1))
    # The usual number of drafts, not the one found: that would pick the requests whose drafts were overestimated.
    expected = most * max(tokens * usual.drafts_per_token, 1.0)
    telling = math.hypot(error, overhang * _LAST_STEP_ERROR) <= _TELLING * expected
    return Work(drafts, accepted, accepted - base, error, telling)


def _drafts(accepted: float, steps: float, share: float, most: float) -> float:
    needed = min(accepted / most, steps)
    return needed + share * (steps - needed)


def amounts_of(life: Life, steps: Steps, work: Work, method: Method) -> dict[int, float]:
    """What an inferred request brings into the ledger."""
    record = life.record
    emitted = (record.completion_tokens or 0) - work.accepted
    needed = min(work.accepted / life.drafted, steps.count)
    amounts: dict[int, float] = {
        Slot.REQUESTS: float(record.choices),
        Slot.TOKENS: float(record.completion_tokens or 0),
        Slot.EMITTED: emitted,
        Slot.STEPS: steps.count,
        Slot.STAY: life.stay,
        spare_slot(life.bucket): steps.count - needed,
        accepted_slot(life.bucket): work.accepted,
    }
    if life.ticks is None or record.choices != 1:
        return amounts
    ticks = life.ticks[method.clock]
    if life.silent:
        silent: dict[int, float] = {Slot.SILENT: ticks, Slot.SILENT_REQUESTS: 1.0, Slot.SILENT_EMITTED: emitted}
        return amounts | silent | {Slot.SILENT_OVERHANG: work.overhang}
    if record.stream_events > 0 and life.ticks_from_first is not None:
        amounts |= {
            Slot.EVENTS: float(record.stream_events - 1),
            Slot.EVENT_REQUESTS: 1.0,
            Slot.EVENT_STEPS: life.ticks_from_first[Clock.STEPS],
            Slot.EVENT_SHARED: life.ticks_from_first[Clock.SHARED],
        }
        if method.events:
            amounts |= _witness(ticks - steps.count - 1)
    return amounts


def amounts_known(life: Life, method: Method) -> dict[int, float]:
    """What a request with vLLM's own numbers brings into the ledger."""
    record, known = life.record, life.record.acceptance
    if known is None:
        return {}
    tokens = record.completion_tokens
    amounts: dict[int, float] = {
        Slot.REQUESTS: float(record.choices),
        Slot.TOKENS: float(known.drafts + known.accepted_tokens + 1 if tokens is None else tokens),
        Slot.EMITTED: float(known.drafts + 1 if tokens is None else tokens - known.accepted_tokens),
        Slot.KNOWN_DRAFTS: float(known.drafts),
        Slot.KNOWN_ACCEPTED: float(known.accepted_tokens),
        Slot.STAY: life.stay,
    }
    if method.every_step and life.ticks is not None and record.choices == 1:
        ticks = life.ticks[method.clock]
        amounts |= _witness(ticks - known.drafts - 1)
    return amounts


def _witness(wait: float) -> dict[int, float]:
    return {Slot.WITNESSED: wait, Slot.WITNESSED_SQUARES: wait * wait, Slot.WITNESSES: 1.0}
