"""Healthy latencies and plain step times, measured by ``specdec-sidecar baseline`` beforehand."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise, zip_longest
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
_Latencies = dict[Literal["ttft", "itl", "tpot", "e2e", "queue"], _Quantiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStepTimes:
    """How long an engine step takes without speculation: by load, context and prefill.

    Everything is in seconds and in the order of ``running``, the loads measured; between the loads
    it is interpolated. A step that prefills nothing takes ``seconds`` where the requests that
    decode hold ``contexts`` tokens on average, and ``slopes`` more for each further token. A step
    that prefills ``prefill_tokens[j][k]`` tokens takes ``prefill_seconds[j][k]`` more.

    Errors are standard errors. Those of different fields and loads are independent, but for
    ``drift``, the relative error that all of ``seconds`` share: that of the machine's speed.

    Constructing it checks nothing; ``problem`` does.
    """

    # The loads measured, in running requests: 1 to 16, ascending from above 0.
    running: tuple[float, ...]
    seconds: tuple[float, ...]
    errors: tuple[float, ...]  # of ``seconds``, without ``drift``
    # Independent parts of each error; empty: errors fully correlated.
    deviations: tuple[tuple[float, ...], ...] = ()

    # Empty in files of versions that did not measure it: then nothing is known of any context.
    contexts: tuple[float, ...] = ()
    # The shortest and the longest context measured; empty: only ``contexts``.
    context_ranges: tuple[tuple[float, float], ...] = ()
    slopes: tuple[float, ...] = ()  # empty: one context was measured, so it is unknown
    slope_errors: tuple[float, ...] = ()

    # Ascending from above 0; empty: not measured.
    prefill_tokens: tuple[tuple[float, ...], ...] = ()
    prefill_seconds: tuple[tuple[float, ...], ...] = ()
    prefill_errors: tuple[tuple[float, ...], ...] = ()
    # Without what the tokens of prompts attend to: seconds for each of them and for each token to
    # which it attends; 0: ``prefill_seconds`` include it.
    attention_seconds: float = 0.0
    attention_error: float = 0.0
    # The most tokens that a step prefills: longer prompts take several; None: unknown.
    chunk_tokens: float | None = None

    drift: float = 0.0
    prompt_share: float = 0.0  # prompt tokens computed per generated token during the measurement
    # Mean time to first token at each load; empty if unknown.
    first_token_seconds: tuple[float, ...] = ()
    measured: datetime | None = None  # when
    source: Literal["page", "plugin"] | None = None  # where the step times come from
    # Processes that were ready to run per core before the measurement, on the machine it ran on.
    machine_load: float | None = None

    def problem(self) -> str | None:
        """Why these times cannot be used; None if they can."""
        return next(self._problems(), None)

    def _problems(self) -> Iterator[str]:
        yield from self._load_problems()
        yield from self._context_problems()
        yield from self._prefill_problems()
        if not 0 <= self.drift <= 1:
            yield "drift must be from 0 to 1"

    def _load_problems(self) -> Iterator[str]:
        loads = len(self.running)
        if not 1 <= loads <= 16:
            yield "expected 1 to 16 numbers of running requests"
        if not loads == len(self.seconds) == len(self.errors):
            yield "running, seconds and errors differ in length"
        for name in _BY_LOAD:
            if len(getattr(self, name)) not in {0, loads}:
                yield f"running and {name} differ in length"

        if any(len(parts) > 16 for parts in self.deviations):
            yield "expected at most 16 deviations for each load"
        if not _rises(self.running):
            yield "running must rise, from above 0"
        are_seconds_possible = all(0 < time <= _LONGEST for time in self.seconds)
        if not are_seconds_possible or not _are_times(self.errors):
            yield "seconds must be above 0 and errors at least 0, both at most 3600"

        if not _are_times(self.first_token_seconds):
            yield "first_token_seconds must be from 0 to 3600"
        if not 0 <= self.prompt_share <= 1e6:
            yield "prompt_share must be from 0 to 1000000"

    def _context_problems(self) -> Iterator[str]:
        if not all(0 < tokens <= _MOST_TOKENS for tokens in self.contexts):
            yield "contexts must be above 0 and at most 1e9"
        if not all(0 < low <= high <= _MOST_TOKENS for low, high in self.context_ranges):
            yield "context_ranges must be from above 0, ascending"

        if self.slopes and not self.contexts:
            yield "slopes without contexts"
        if len(self.slopes) != len(self.slope_errors):
            yield "slopes and slope_errors differ in length"
        are_slopes_possible = all(abs(slope) <= 1 for slope in self.slopes)
        are_errors_possible = all(0 <= error <= 1 for error in self.slope_errors)
        if not are_slopes_possible or not are_errors_possible:
            yield "slopes must be from -1 to 1, slope_errors from 0 to 1"

    def _prefill_problems(self) -> Iterator[str]:
        measured = (self.prefill_tokens, self.prefill_seconds, self.prefill_errors)
        for tokens, seconds, errors in zip_longest(*measured, fillvalue=()):
            if not len(tokens) == len(seconds) == len(errors) <= 4:
                yield "prefill_tokens, prefill_seconds and prefill_errors differ in length"

        if not all(_rises(tokens) for tokens in self.prefill_tokens):
            yield "prefill_tokens must rise, from above 0"
        if not all(map(_are_times, (*self.prefill_seconds, *self.prefill_errors))):
            yield "prefill_seconds and prefill_errors must be from 0 to 3600"
        if not all(0 <= one <= 1 for one in (self.attention_seconds, self.attention_error)):
            yield "attention_seconds and attention_error must be from 0 to 1"
        if self.chunk_tokens is not None and not self.chunk_tokens > 0:
            yield "chunk_tokens must be above 0"


def _rises(values: Iterable[float]) -> bool:
    """Whether the values rise from above 0, and are finite."""
    return all(low < high for low, high in pairwise((0.0, *values, inf)))


def _are_times(seconds: Iterable[float]) -> bool:
    return all(0 <= one <= _LONGEST for one in seconds)


_LONGEST: Final = 3600  # seconds
_MOST_TOKENS: Final = 1e9
_BY_LOAD: Final = (
    "deviations",
    "first_token_seconds",
    "contexts",
    "context_ranges",
    "slopes",
    "slope_errors",
    "prefill_tokens",
    "prefill_seconds",
    "prefill_errors",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainCache:
    """The KV cache without speculation; each is None if it was not measured.

    ``capacity_tokens`` is that of one engine, the ratios are those of all engines of a model
    together.
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
    """Without keys that have no value, as in a ``Group``."""
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
    plain_steps: Annotated[
        dict[
            ModelName, Annotated[PlainStepTimes, BeforeValidator(_given), AfterValidator(_usable)]
        ],
        json_text(
            'mapping such as {"MODEL": {"running": [1], "seconds": [0.02], "errors": [0.001]}}'
        ),
    ] = Field({}, max_length=64)
    """how long a step takes without speculation: per model `running`, `seconds`, `errors` and the
    conditions of the measurement, as `specdec-sidecar baseline` writes them; excludes
    `baseline_file`"""
    plain_cache: Annotated[
        dict[ModelName, PlainCache], json_text('mapping such as {"MODEL": {"hit_ratio": 0.8}}')
    ] = Field({}, max_length=64)
    """the KV cache without speculation: per model `hit_ratio`, `capacity_tokens` (of one engine)
    and `preemptions_ratio`, all optional, as `specdec-sidecar baseline` writes them; excludes
    `baseline_file`"""

    plain_endings: Annotated[
        dict[ModelName, Annotated[dict[_Temperature, PlainEndings], Field(max_length=256)]],
        json_text('mapping such as {"MODEL": {"0.7": {"normal": 180, "loop": 2}}}'),
    ] = Field({}, max_length=64)
    """how outputs end without speculation: per model and temperature the finished requests,
    `normal`, `loop` and `empty`, as `specdec-sidecar baseline` writes them; excludes
    `baseline_file`"""

    def latencies(self, model: str) -> dict[str, dict[float, float]]:
        """A model's healthy latencies in seconds, by phase and quantile."""
        phases = self.baseline.get(model, {})
        return {phase: _by_share(quantiles.items()) for phase, quantiles in phases.items()}

    def others(self, model: str) -> list[str]:
        """The models that were measured, if this one is not among them."""
        models = {*self.baseline, *self.plain_steps, *self.plain_cache, *self.plain_endings}
        return [] if model in models else sorted(models)


def _by_share(quantiles: Iterable[tuple[str, float]]) -> dict[float, float]:
    """``p99`` is 0.99, and so on."""
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
