"""The checklist: what speaks for and against speculation, before it is turned on.

Its thresholds are rules of thumb (docs/measure.md): they decide what to try, not whether it pays.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sidecar.analysis.checklist.candidates import Candidate, candidates
from sidecar.analysis.checklist.traffic import MOST, Traffic
from sidecar.analysis.engine.polled_load import PolledLoad
from sidecar.engine.methods import rejects_parameters
from sidecar.requests.messages import Hello

LEAST_POLLS: Final = 20  # busy polls below which nothing is said on the load


class Condition(StrEnum):
    """What a line of the checklist is about, in the order in which they are shown."""

    TEMPERATURES = "temperatures"
    OUTPUTS = "outputs"
    FIRST_TOKENS = "first_tokens"
    PROMPTS = "prompts"
    STRUCTURED = "structured_output"
    SAMPLING = "sampling"
    PARAMETERS = "refused_parameters"
    LOAD = "load"
    QUEUE = "queue"
    KV_CACHE = "kv_cache"


class Stance(StrEnum):
    """What a line says."""

    FOR = "for"
    AGAINST = "against"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"  # too few requests or polls, or vLLM does not show it


class Readiness(StrEnum):
    """What all lines say together."""

    TRY = "try"
    UNDECIDED = "undecided"
    LEAVE_OFF = "leave_off"
    INSUFFICIENT_DATA = "insufficient_data"


@dataclass(frozen=True, slots=True)
class Thumb:
    """A rule of thumb.

    At ``pays`` and beyond, away from ``loses``, a value speaks for speculation; at ``loses`` and
    beyond, against it. Between the two it leaves a line undecided. No value is at an infinite one.
    """

    pays: float
    loses: float

    def stance(self, value: float | None) -> Stance:
        """What a value says; None if it is not known."""
        if value is None:
            return Stance.UNKNOWN

        if self.pays < self.loses:
            does_pay = value <= self.pays
            does_lose = value >= self.loses
        else:
            does_pay = value >= self.pays
            does_lose = value <= self.loses

        if does_pay:
            return Stance.FOR
        return Stance.AGAINST if does_lose else Stance.UNDECIDED


THUMBS: Final = {
    Condition.OUTPUTS: Thumb(50, 20),  # tokens, median
    Condition.FIRST_TOKENS: Thumb(0.4, 0.6),  # share of the requests, like the next four
    Condition.PROMPTS: Thumb(0.1, 0.5),
    # A drafter knows no grammar and none of these parameters, but what is left to choose from is
    # easier to guess. Measured, either can win (docs/measurements/why.md).
    Condition.STRUCTURED: Thumb(0.2, math.inf),
    Condition.SAMPLING: Thumb(0.2, math.inf),
    Condition.PARAMETERS: Thumb(0.0, 0.01),
    Condition.LOAD: Thumb(8, 32),  # requests running on an engine
    Condition.QUEUE: Thumb(0.1, 0.3),  # share of the busy polls
    Condition.KV_CACHE: Thumb(0.7, 0.9),  # usage that 95 % of them are below
}
# Draft tokens of a model, by what the load says: verification takes compute.
_TOKENS: Final = {
    Stance.FOR: 3,
    Stance.UNDECIDED: 2,
    Stance.AGAINST: 1,
    Stance.UNKNOWN: 3,
}
# One of them is reason enough to leave speculation off for now.
_BLOCKING: Final = frozenset(
    {Condition.FIRST_TOKENS, Condition.PARAMETERS, Condition.QUEUE, Condition.KV_CACHE}
)
_BY_REQUEST: Final = frozenset(Condition) - {Condition.LOAD, Condition.QUEUE, Condition.KV_CACHE}


@dataclass(frozen=True, slots=True)
class Line:
    """One condition, and what this pod's number says of it."""

    condition: Condition
    stance: Stance

    @property
    def blocks(self) -> bool:
        """Whether this alone is a reason to leave speculation off for now."""
        return self.stance is Stance.AGAINST and self.condition in _BLOCKING

    @property
    def may_block(self) -> bool:
        """Whether it could be such a reason, and is not known."""
        return self.stance is Stance.UNKNOWN and self.condition in _BLOCKING


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """Whether speculation would suit a model that does not speculate.

    ``traffic`` is None while no plug-in's numbers count. ``load`` is that of the busiest engine, as
    far as enough busy polls are known. ``least`` is the number of requests below which nothing is
    said on them (``min_requests``). ``vllm`` is the version, as a confirmed plug-in says; None if
    none does. ``candidates`` are what to try first, and empty unless there is something to try.
    """

    lines: tuple[Line, ...]
    verdict: Readiness
    traffic: Traffic | None
    load: PolledLoad
    least: int
    vllm: str | None = None
    candidates: tuple[Candidate, ...] = ()

    def lines_that(self, stance: Stance) -> list[Line]:
        """The lines with this stance."""
        return [line for line in self.lines if line.stance is stance]

    def stance(self, condition: Condition) -> Stance:
        """What the condition's line says."""
        return next(line.stance for line in self.lines if line.condition is condition)


def checklist(
    traffic: Traffic | None, loads: Sequence[PolledLoad], least: int, hello: Hello | None = None
) -> Checklist:
    """The checklist of a model; ``loads`` are its engines', ``hello`` that of a confirmed one."""
    vllm = hello.vllm if hello is not None else None
    load = _busiest(loads)
    known = traffic if traffic is not None and traffic.requests >= least else None
    stances = {**_of_requests(known, vllm), **_of_load(load)}
    lines = tuple(Line(condition, stances[condition]) for condition in Condition)

    verdict = Readiness.INSUFFICIENT_DATA if known is None else _verdict(lines)
    result = Checklist(
        lines=lines,
        verdict=verdict,
        traffic=traffic,
        load=load,
        least=least,
        vllm=vllm,
    )
    if known is None or verdict not in {Readiness.TRY, Readiness.UNDECIDED}:
        return result

    tokens = _TOKENS[stances[Condition.LOAD]]
    return replace(result, candidates=tuple(candidates(known, tokens, hello)))


def _busiest(loads: Sequence[PolledLoad]) -> PolledLoad:
    """The engine with the most requests; a queue and a full cache are those of any engine.

    Without those that have been busy at too few polls.
    """
    known = [load for load in loads if load.busy_polls >= LEAST_POLLS]
    if not known:
        return PolledLoad()

    busiest = max(known, key=lambda load: load.running or 0.0)
    return PolledLoad(
        busy_polls=busiest.busy_polls,
        running=busiest.running,
        most=busiest.most,
        queued=_highest(load.queued for load in known),
        kv_cache_high=_highest(load.kv_cache_high for load in known),
    )


def _highest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _of_requests(traffic: Traffic | None, vllm: str | None) -> dict[Condition, Stance]:
    if traffic is None:
        return dict.fromkeys(_BY_REQUEST, Stance.UNKNOWN)

    median = traffic.output_tokens[0] if traffic.output_tokens is not None else None
    values = {
        Condition.OUTPUTS: median,
        Condition.FIRST_TOKENS: traffic.first_token,
        Condition.PROMPTS: traffic.long_prompts,
        Condition.STRUCTURED: traffic.structured,
        Condition.SAMPLING: traffic.shaped,
        Condition.PARAMETERS: _most_rejected(traffic) if rejects_parameters(vllm) else 0.0,
    }
    return {
        Condition.TEMPERATURES: _of_temperatures(traffic),
        **{condition: THUMBS[condition].stance(value) for condition, value in values.items()},
    }


def _most_rejected(traffic: Traffic) -> float:
    """The share of the requests with the most used one of the parameters that vLLM rejects."""
    return max(traffic.rejected.values(), default=0.0)


def _of_temperatures(traffic: Traffic) -> Stance:
    if traffic.cool >= MOST:
        return Stance.FOR
    return Stance.AGAINST if traffic.hot >= MOST else Stance.UNDECIDED


def _of_load(load: PolledLoad) -> dict[Condition, Stance]:
    values = {
        Condition.LOAD: load.running,
        Condition.QUEUE: load.queued,
        Condition.KV_CACHE: load.kv_cache_high,
    }
    return {condition: THUMBS[condition].stance(value) for condition, value in values.items()}


def _verdict(lines: Sequence[Line]) -> Readiness:
    """A line that blocks decides; otherwise the majority of what is known.

    While one that could block is not known, speculation is not worth a try yet.
    """
    stances = [line.stance for line in lines]
    known = len(stances) - stances.count(Stance.UNKNOWN)
    against = stances.count(Stance.AGAINST)
    if any(line.blocks for line in lines) or 2 * against > known:
        return Readiness.LEAVE_OFF
    if against or 2 * stances.count(Stance.FOR) <= known:
        return Readiness.UNDECIDED
    if any(line.may_block for line in lines):
        return Readiness.INSUFFICIENT_DATA
    return Readiness.TRY
