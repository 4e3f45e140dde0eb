"""The kinds of nodes in the report tree that metrics belong to."""

from collections.abc import Iterator, Mapping
from typing import Final

from sidecar.analysis.report import EngineReport, ModelReport, Report, TemperatureReport
from sidecar.analysis.speed.speedup import LoadReport
from sidecar.analysis.split.tallies import GroupReport
from sidecar.engine.merge import OTHER
from sidecar.export.declaration import Labels, Level, Shown
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainStepTimes

Baseline = tuple[Mapping[str, Mapping[float, float]], PlainStepTimes | None]


def _engines(shown: Shown) -> Iterator[tuple[Labels, EngineReport]]:
    return ((engine.key, engine) for model in shown.report.models for engine in model.engines)


def _single_engines(shown: Shown) -> Iterator[tuple[Labels, EngineReport]]:
    return ((key, engine) for key, engine in _engines(shown) if key != OTHER)


def _loads(shown: Shown) -> Iterator[tuple[Labels, LoadReport]]:
    return (((*key, load.running), load) for key, engine in _single_engines(shown) for load in engine.loads)


def _temperatures(shown: Shown) -> Iterator[tuple[Labels, TemperatureReport]]:
    return (((model.model_name, one.temperature), one) for model in shown.report.models for one in model.temperatures)


def _groups(shown: Shown) -> Iterator[tuple[Labels, GroupReport]]:
    return (((model.model_name, one.by, one.group), one) for model in shown.report.models for one in model.groups)


def _baselines(shown: Shown) -> Iterator[tuple[Labels, Baseline]]:
    """Of the models that vLLM serves: one file may have those of a whole cluster."""
    settings = shown.settings
    for model in shown.report.models:
        name = model.model_name
        yield (name,), (settings.baselines.get(name, {}), settings.plain_step_times.get(name))


SETTINGS: Final[Level[Settings]] = Level((), lambda shown: [((), shown.settings)])
REPORT: Final[Level[Report]] = Level((), lambda shown: [((), shown.report)])
MODEL: Final[Level[ModelReport]] = Level(
    ("model_name",), lambda shown: (((model.model_name,), model) for model in shown.report.models)
)
ENGINE: Final = Level(("model_name", "engine"), _engines)
SINGLE_ENGINE: Final = Level(("model_name", "engine"), _single_engines)  # for what merged engines do not have
LOAD: Final = Level(("model_name", "engine", "running"), _loads)
TEMPERATURE: Final = Level(("model_name", "temperature"), _temperatures)
BASELINE: Final = Level(("model_name",), _baselines)
GROUP: Final = Level(("model_name", "by", "group"), _groups)
