"""The checklist: what speaks for and against speculation, before it is turned on.

The limits are rules of thumb (docs/measure.md), so they decide what to try, not whether it pays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.analysis.checklist.candidates import Candidate, candidates
from sidecar.analysis.checklist.traffic import Traffic
from sidecar.analysis.engine.polled_load import PolledLoad

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
class Limits:
    """Between which a value leaves a line undecided.

    At ``pays`` and beyond, away from ``loses``, it speaks for speculation; at ``loses`` and beyond,
    against it.
    """

    pays: float
    loses: float

    def stance(self, value: float | None) -> Stance:
        """What a value says; None if it is not known."""
        if value is None:
            return Stance.UNKNOWN

        sign = 1.0 if self.pays < self.loses else -1.0
        if sign * value <= sign * self.pays:
            return Stance.FOR
        return Stance.AGAINST if sign * value >= sign * self.loses else Stance.UNDECIDED


MOST: Final = 0.6
"""The share of cool requests that speaks for speculation, and of hot ones against it."""
LIMITS: Final = {
    Condition.OUTPUTS: Limits(50, 20),  # tokens, median
    Condition.FIRST_TOKENS: Limits(0.4, 0.6),  # share of the requests, like the next three
    Condition.PROMPTS: Limits(0.1, 0.5),
    Condition.STRUCTURED: Limits(0.2, 0.6),
    Condition.SAMPLING: Limits(0.2, 0.6),
    Condition.LOAD: Limits(8, 32),  # requests running on an engine
    Condition.QUEUE: Limits(0.1, 0.3),  # share of the polls
    Condition.KV_CACHE: Limits(0.7, 0.9),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """Whether speculation would suit a model that does not speculate.

    ``traffic`` is None while no plug-in's numbers count. ``load`` is that of the busiest engine.
    ``least`` is the number of requests below which nothing is said on them (``min_requests``).
    ``candidates`` are what to try first, and empty unless there is something to try.
    """

    lines: tuple[Line, ...]
    verdict: Readiness
    traffic: Traffic | None
    load: PolledLoad
    least: int
    candidates: tuple[Candidate, ...] = ()

    def lines_that(self, stance: Stance) -> list[Line]:
        """The lines with this stance."""
        return [line for line in self.lines if line.stance is stance]


def checklist(traffic: Traffic | None, loads: Sequence[PolledLoad], least: int) -> Checklist:
    """The checklist of a model; ``loads`` are its engines'."""
    load = _busiest(loads)
    known = traffic if traffic is not None and traffic.requests >= least else None
    stances = {**_of_requests(known), **_of_load(load)}
    lines = tuple(Line(condition, stances[condition]) for condition in Condition)

    verdict = Readiness.INSUFFICIENT_DATA if known is None else _verdict(lines)
    is_worth_trying = verdict in {Readiness.TRY, Readiness.UNDECIDED}
    return Checklist(
        lines=lines,
        verdict=verdict,
        traffic=traffic,
        load=load,
        least=least,
        candidates=tuple(candidates(known, load)) if known and is_worth_trying else (),
    )


def _busiest(loads: Sequence[PolledLoad]) -> PolledLoad:
    """The engine with the most requests; a queue and a full cache are those of any engine."""
    if not loads:
        return PolledLoad()

    busiest = max(loads, key=lambda load: load.running or 0.0)
    return PolledLoad(
        busy_polls=busiest.busy_polls,
        running=busiest.running,
        most=busiest.most,
        queued=_highest(load.queued for load in loads),
        kv_cache_high=_highest(load.kv_cache_high for load in loads),
    )


def _highest(values: Iterator[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _of_requests(traffic: Traffic | None) -> dict[Condition, Stance]:
    if traffic is None:
        return dict.fromkeys(_BY_REQUEST, Stance.UNKNOWN)

    median = traffic.output_tokens[0] if traffic.output_tokens is not None else None
    values = {
        Condition.OUTPUTS: median,
        Condition.FIRST_TOKENS: traffic.first_token,
        Condition.PROMPTS: traffic.long_prompts,
        Condition.STRUCTURED: traffic.structured,
        Condition.SAMPLING: traffic.shaped,
    }
    return {
        Condition.TEMPERATURES: _of_temperatures(traffic),
        Condition.PARAMETERS: Stance.AGAINST if traffic.rejected else Stance.FOR,
        **{condition: LIMITS[condition].stance(value) for condition, value in values.items()},
    }


def _of_temperatures(traffic: Traffic) -> Stance:
    if traffic.cool >= MOST:
        return Stance.FOR
    return Stance.AGAINST if traffic.hot >= MOST else Stance.UNDECIDED


def _of_load(load: PolledLoad) -> dict[Condition, Stance]:
    is_enough = load.busy_polls >= LEAST_POLLS
    values = {
        Condition.LOAD: load.running,
        Condition.QUEUE: load.queued,
        Condition.KV_CACHE: load.kv_cache_high,
    }
    return {
        condition: LIMITS[condition].stance(value if is_enough else None)
        for condition, value in values.items()
    }


def _verdict(lines: Sequence[Line]) -> Readiness:
    """A line that blocks decides; otherwise the majority of what is known."""
    stances = [line.stance for line in lines]
    known = len(stances) - stances.count(Stance.UNKNOWN)
    against = stances.count(Stance.AGAINST)
    if any(line.blocks for line in lines) or 2 * against > known:
        return Readiness.LEAVE_OFF
    if not against and 2 * stances.count(Stance.FOR) > known:
        return Readiness.TRY
    return Readiness.UNDECIDED
