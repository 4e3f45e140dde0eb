"""Healthy latencies and plain step times, measured by ``specdec-sidecar baseline`` beforehand."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sidecar.settings.field_types import Duration, Group, ModelName, Share, from_text, json_text
from sidecar.settings.files import read_yaml


def _rising(quantiles: dict[str, float]) -> dict[str, float]:
    seconds = [quantiles[name] for name in sorted(quantiles)]
    if seconds != sorted(seconds):
        raise ValueError(
            "a higher quantile is below a lower one; expected p50 <= p90 <= p95 <= p99"
        )
    return quantiles


_Quantiles = Annotated[
    dict[Literal["p50", "p90", "p95", "p99"], Annotated[Duration, Field(ge=0, le=3600)]],
    AfterValidator(_rising),
]
_Phase = Literal["ttft", "itl", "tpot", "e2e", "queue"]
_Latencies = dict[_Phase, _Quantiles]


@dataclass(frozen=True, slots=True)
class PlainLatency:
    """One phase's healthy latency: seconds by quantile.

    ``is_exact``: they are from the requests' own times. Otherwise each is only known to lie in a
    bucket of vLLM's histogram.
    """

    quantiles: Mapping[float, float]
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLaw:
    """How long a plain engine step takes, by what it computes; docs/speedup.md states the law.

    A tuple has one value per load, in the order of ``PlainStepTimes.running``.
    """

    # Seconds of a step that prefills nothing and whose requests hold ``context`` tokens each.
    seconds: tuple[float, ...]
    # Seconds for each further token that each of them holds; empty: one context was measured.
    context_seconds: tuple[float, ...] = ()
    # Seconds for each prompt token beyond the hidden ones; None: no prompts were measured.
    prefill_seconds: float | None = None
    # Seconds for each prompt token and each token to which it attends.
    attention_seconds: float = 0.0
    hidden_tokens: float = 0.0  # tokens of a step, of requests and prompts, that take no extra time

    def problems(self, loads: int) -> Iterator[str]:
        """What is wrong with the law, given the number of loads."""
        if len(self.seconds) != loads or len(self.context_seconds) not in {0, loads}:
            yield "running, seconds and context_seconds differ in length"
        if not all(0 < time <= _LONGEST for time in self.seconds):
            yield "seconds must be above 0 and at most 3600"
        each = (*self.context_seconds, self.prefill_seconds or 0.0, self.attention_seconds)
        if not all(abs(one) <= 1 for one in each):
            yield "context_seconds, prefill_seconds and attention_seconds must be from -1 to 1"
        if not 0 <= self.hidden_tokens <= _MOST_TOKENS:
            yield "hidden_tokens must be from 0 to 1e9"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStepTimes(StepLaw):
    """The law of one model's plain steps, and how certain it is.

    ``rounds`` has, for each round of the measurement, the law by all the other rounds: the errors
    follow from how much these differ. ``drift`` is a relative error that all times share as well.

    Constructing it checks nothing; ``problem`` does.
    """

    # The loads measured, in requests that decode: 1 to 16 of them, ascending, above 0.
    running: tuple[float, ...]
    context: float  # tokens that each of these requests holds in a step that takes ``seconds``
    # The shortest and the longest context measured; None: only ``context``.
    contexts: tuple[float, float] | None = None
    # Whether all tokens of a step count for its level, not only one for each request that decodes:
    # in a mixture of experts, each token reads weights of its own.
    by_tokens: bool = False
    # The most tokens that one step prefills: longer prompts take several steps; None: unknown.
    chunk_tokens: float | None = None

    rounds: tuple[StepLaw, ...] = ()
    drift: float = 0.0
    # Mean time to first token at each load; empty if unknown.
    first_token_seconds: tuple[float, ...] = ()
    measured: datetime | None = None  # the time of the measurement
    # Processes per core that were ready to run on the machine, just before the measurement.
    machine_load: float | None = None
    # The model of the accelerator, by its driver; None: unknown.
    accelerator: Annotated[str, Field(max_length=256)] | None = None

    def is_of_another(self, accelerator: str | None) -> bool:
        """Whether they are known to have been measured on another accelerator than this one."""
        both = {self.accelerator, accelerator}
        return len(both) == 2 and None not in both

    @property
    def context_range(self) -> tuple[float, float]:
        """The shortest and the longest context measured."""
        return self.contexts or (self.context, self.context)

    def problem(self) -> str | None:
        """Why these times cannot be used; None if they can."""
        return next(self._problems(), None)

    def _problems(self) -> Iterator[str]:
        loads = len(self.running)
        if not 1 <= loads <= 16:
            yield "expected 1 to 16 numbers of running requests"
        if not _rises(self.running):
            yield "running must rise, from above 0"
        if len(self.rounds) > _MOST_ROUNDS:
            yield f"expected at most {_MOST_ROUNDS} rounds"
        for law in (self, *self.rounds):
            yield from law.problems(loads)

        if len(self.first_token_seconds) not in {0, loads}:
            yield "running and first_token_seconds differ in length"
        if not all(0 <= one <= _LONGEST for one in self.first_token_seconds):
            yield "first_token_seconds must be from 0 to 3600"
        yield from self._other_problems()

    def _other_problems(self) -> Iterator[str]:
        low, high = self.context_range
        if not (0 < low <= high <= _MOST_TOKENS and 0 < self.context <= _MOST_TOKENS):
            yield "context and contexts must be above 0 and at most 1e9, contexts ascending"
        if self.chunk_tokens is not None and not self.chunk_tokens > 0:
            yield "chunk_tokens must be above 0"
        if not 0 <= self.drift <= 1:
            yield "drift must be from 0 to 1"


def _rises(values: Iterable[float]) -> bool:
    """Whether the values rise from above 0, and are finite."""
    return all(low < high for low, high in pairwise((0.0, *values, inf)))


_LONGEST: Final = 3600  # seconds
_MOST_TOKENS: Final = 1e9
_MOST_ROUNDS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCache:
    """The KV cache without speculation; each is None if it was not measured.

    ``capacity_tokens`` is that of one engine; the ratios are of all engines of a model together.
    """

    hit_ratio: Share | None = None  # of the prefix cache: tokens found / looked up
    capacity_tokens: Annotated[int, Field(ge=1, le=10**15)] | None = None
    preemptions_ratio: Annotated[float, Field(ge=0, le=1e6)] | None = None  # preemptions / requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainEndings:
    """How outputs end without speculation: finished requests, by ending."""

    normal: Annotated[int, Field(ge=0, le=10**12)] = 0
    loop: Annotated[int, Field(ge=0, le=10**12)] = 0
    empty: Annotated[int, Field(ge=0, le=10**12)] = 0

    @property
    def by_ending(self) -> dict[Literal["normal", "loop", "empty"], int]:
        """The requests with each ending."""
        return {"normal": self.normal, "loop": self.loop, "empty": self.empty}


_Temperature = Annotated[float, Field(ge=0, le=10_000)]


def _given(values: object) -> object:
    """The values without keys that have none, as in a ``Group``."""
    if not isinstance(values, dict):
        return values
    return {key: value for key, value in values.items() if value is not None}


def _usable(times: PlainStepTimes) -> PlainStepTimes:
    if (problem := times.problem()) is not None:
        raise ValueError(problem)
    return times


class Measured(Group):
    """What was measured of healthy models; these settings are in no group, or in their own file."""

    baseline: Annotated[
        dict[ModelName, _Latencies], json_text('mapping such as {"MODEL": {"ttft": {"p50": 0.2}}}')
    ] = Field({}, max_length=64)
    """healthy latencies: per model, the phases `ttft`, `itl`, `tpot`, `e2e` and `queue`, each with
    `p50`, `p90`, `p95` and `p99`, all optional; excludes `baseline_file`"""
    baseline_by_request: Annotated[
        dict[ModelName, Annotated[tuple[_Phase, ...], Field(max_length=8)]],
        json_text('mapping such as {"MODEL": ["ttft", "tpot"]}'),
    ] = Field({}, max_length=64)
    """per model, the phases whose `baseline` is from the requests' own times; the others are only
    as exact as vLLM's buckets; excludes `baseline_file`"""
    plain_steps: Annotated[
        dict[
            ModelName, Annotated[PlainStepTimes, BeforeValidator(_given), AfterValidator(_usable)]
        ],
        json_text('mapping such as {"MODEL": {"running": [1], "seconds": [0.02], "context": 500}}'),
    ] = Field({}, max_length=64)
    """how long a step takes without speculation: per model, `running`, `seconds`, `context` and the
    rest of the measurement, as `specdec-sidecar baseline` writes them; excludes `baseline_file`"""
    plain_cache: Annotated[
        dict[ModelName, PlainCache], json_text('mapping such as {"MODEL": {"hit_ratio": 0.8}}')
    ] = Field({}, max_length=64)
    """the KV cache without speculation: per model, `hit_ratio`, `capacity_tokens` (of one engine)
    and `preemptions_ratio`, all optional, as `specdec-sidecar baseline` writes them; excludes
    `baseline_file`"""
    plain_endings: Annotated[
        dict[ModelName, Annotated[dict[_Temperature, PlainEndings], Field(max_length=256)]],
        json_text('mapping such as {"MODEL": {"0.7": {"normal": 180, "loop": 2}}}'),
    ] = Field({}, max_length=64)
    """how outputs end without speculation: per model and temperature, the finished requests by
    ending, `normal`, `loop` and `empty`, as `specdec-sidecar baseline` writes them; excludes
    `baseline_file`"""

    def latencies(self, model: str) -> dict[str, PlainLatency]:
        """A model's healthy latencies by phase."""
        exact = self.baseline_by_request.get(model, ())
        return {
            phase: PlainLatency(_by_share(quantiles.items()), phase in exact)
            for phase, quantiles in self.baseline.get(model, {}).items()
        }

    def others(self, model: str) -> list[str]:
        """The models that were measured if this one was not among them, otherwise none."""
        models = {*self.baseline, *self.plain_steps, *self.plain_cache, *self.plain_endings}
        return [] if model in models else sorted(models)


def _by_share(quantiles: Iterable[tuple[str, float]]) -> dict[float, float]:
    """The same by share: ``p99`` becomes 0.99."""
    return {int(name.removeprefix("p")) / 100: seconds for name, seconds in quantiles}


def _read_measured(path: str) -> dict[str, Any]:
    remedy = "`specdec-sidecar baseline --out FILE` writes a baseline"
    try:
        values = read_yaml(Path(path))
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from None
    # It may be another program's, or a sweep's.
    if values and not values.keys() & Measured.model_fields.keys():
        raise ValueError(f"not a baseline; {remedy}")
    return values


MeasuredFile = Annotated[
    Measured,
    from_text(_read_measured),
    WithJsonSchema({"type": "string", "format": "path of a file"}),
]
