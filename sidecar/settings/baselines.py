"""What healthy latencies and plain step times are: measured beforehand, by ``specdec-sidecar baseline``."""

from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from sidecar.settings.field_types import Duration, ModelName, json_text
from sidecar.settings.groups import Group
from sidecar.settings.yaml_file import read_yaml


def _rising(quantiles: dict[str, float]) -> dict[str, float]:
    seconds = [quantiles[name] for name in sorted(quantiles)]
    if seconds != sorted(seconds):
        raise ValueError("a higher quantile is below a lower one; expected p50 <= p90 <= p95 <= p99")
    return quantiles


_Quantiles = Annotated[
    dict[Literal["p50", "p90", "p95", "p99"], Annotated[Duration, Field(ge=0, le=3600)]], AfterValidator(_rising)
]
_Latencies = dict[Literal["ttft", "itl", "tpot", "e2e", "queue"], _Quantiles]


class PlainStepTimes(Group):
    """How long an engine step takes without speculation, by the number of running requests; times in seconds."""

    running: tuple[float, ...] = Field(min_length=1, max_length=16)
    """running requests, ascending"""
    seconds: tuple[float, ...] = Field(max_length=16)
    """step time at each of these loads; interpolated in between"""
    errors: tuple[float, ...] = Field(max_length=16)
    """standard errors of `seconds`"""
    deviations: tuple[Annotated[tuple[float, ...], Field(max_length=16)], ...] = Field((), max_length=16)
    """independent parts of each of `errors`, for what they have in common; if empty, they are fully correlated"""
    prompt_share: float = Field(0.0, ge=0, le=1e6)
    """prompt tokens computed per generated token during the measurement"""
    measured: datetime | None = None
    """when it was measured"""
    gpu: str | None = Field(None, max_length=100)
    """the hardware it ran on"""

    @model_validator(mode="after")
    def _is_a_curve(self) -> Self:
        if not len(self.running) == len(self.seconds) == len(self.errors):
            raise ValueError("running, seconds and errors differ in length")
        if self.deviations and len(self.deviations) != len(self.running):
            raise ValueError("running and deviations differ in length")
        if not all(a < b for a, b in pairwise((0.0, *self.running))):
            raise ValueError("running must rise, from above 0")
        if not all(0 < one <= 3600 for one in self.seconds) or not all(0 <= one <= 3600 for one in self.errors):
            raise ValueError("seconds must be above 0 and errors at least 0, both at most 3600")
        return self


class Measured(Group):
    """What was measured of healthy models: these settings are in no group, or in a file of their own."""

    baseline: Annotated[dict[ModelName, _Latencies], json_text('mapping such as {"MODEL": {"ttft": {"p50": 0.2}}}')] = (
        Field({}, max_length=64)
    )
    """healthy latencies: per model, the phases `ttft`, `itl`, `tpot`, `e2e` and `queue`, each with
    `p50`, `p90`, `p95` and `p99`, all optional; excludes `baseline_file`"""
    plain_steps: Annotated[
        dict[ModelName, PlainStepTimes],
        json_text('mapping such as {"MODEL": {"running": [1], "seconds": [0.02], "errors": [0.001]}}'),
    ] = Field({}, max_length=64)
    """how long a step takes without speculation: per model `running`, `seconds`, `errors` and the conditions of the
    measurement, as `specdec-sidecar baseline` writes them; excludes `baseline_file`"""


def _read(value: object) -> object:
    return read_yaml(Path(value)) if isinstance(value, str) else value


MeasuredFile = Annotated[Measured, BeforeValidator(_read), WithJsonSchema({"format": "path of a file"})]
