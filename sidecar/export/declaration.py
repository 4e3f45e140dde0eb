"""How a metric is declared: name, help, labels, and an expression that reads its value.

The report is a tree. A level of the tree defines the labels that its metrics share, and lists its
nodes. A metric adds how a node's value is read, as a function that mypy checks against the tree. A
value is a number, a distribution, a mapping from the values of additional labels to numbers, or
None if it is absent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Generic, Literal, TypeVar

from sidecar.analysis.distributions import Distribution
from sidecar.analysis.history import History
from sidecar.analysis.report import EngineReport, ModelReport, Report, TemperatureReport
from sidecar.analysis.series import engines_with_histograms, shown_positions
from sidecar.analysis.speed.speedup import LoadReport
from sidecar.analysis.split.plugin_state import PluginEngineReport, PluginState
from sidecar.analysis.split.tallies import GroupReport
from sidecar.engine.merge import OTHER_ENGINES
from sidecar.settings import Settings

LabelValues = tuple[str, ...]  # in the order of the label names
# A mapping's keys are strings or tuples of these: StrEnums, too, so mypy cannot name them.
ByLabel = Mapping[Any, float | None]
Value = float | ByLabel | None
Kind = Literal["counter", "gauge", "histogram"]  # as in ``# TYPE``
Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class ReportView:
    """What a page of metrics is made from."""

    report: Report
    settings: Settings
    history: History = field(default_factory=History)


Sample = tuple[LabelValues, float | Distribution]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    ``name`` includes a counter's ``_total``, ``samples`` yields its samples on a page.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    kind: Kind
    samples: Callable[[ReportView], Iterator[Sample]]


@dataclass(frozen=True, slots=True)
class Level(Generic[Node]):
    """A kind of node in the tree.

    ``nodes`` yields each node with the values of ``labels`` that identify it. A metric's own
    ``labels`` are those whose values are the keys of the mapping that ``value`` returns.
    """

    labels: tuple[str, ...]
    nodes: Callable[[ReportView], Iterable[tuple[LabelValues, Node]]]

    def gauge(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        value: Callable[[Node], Value],
    ) -> Metric:
        """A gauge for each node."""
        return self._metric(f"specdec_{name}", documentation, labels, "gauge", value)

    def counter(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        *,
        value: Callable[[Node], Value],
    ) -> Metric:
        """Like ``gauge``, but a counter; ``name`` is without ``_total``."""
        return self._metric(f"specdec_{name}_total", documentation, labels, "counter", value)

    def histogram(
        self, name: str, documentation: str, *, value: Callable[[Node], Distribution | None]
    ) -> Metric:
        """A histogram for each node."""
        return self._metric(f"specdec_{name}", documentation, (), "histogram", value)

    def by_position(
        self, name: str, documentation: str, *, value: Callable[[Node], Sequence[float]]
    ) -> Metric:
        """A counter for each draft position, from 0; those past the limit are summed: ``other``.

        Where none is within the limit there is no such sum either: it would be of all positions.
        """

        def samples(shown: ReportView) -> Iterator[Sample]:
            most = shown_positions(shown.settings, len(list(_engines(shown))))
            for outer, node in self.nodes(shown):
                counts = value(node)
                for position, count in enumerate(counts[:most]):
                    yield (*outer, str(position)), count
                if 0 < most < len(counts):
                    yield (*outer, "other"), sum(counts[most:])

        labels = (*self.labels, "position")
        return Metric(f"specdec_{name}_total", documentation, labels, "counter", samples)

    def _metric(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        kind: Kind,
        value: Callable[[Node], Value | Distribution],
    ) -> Metric:
        def samples(shown: ReportView) -> Iterator[Sample]:
            for outer, node in self.nodes(shown):
                for inner, item in _by_label(value(node)):
                    yield (*outer, *inner), item

        return Metric(name, documentation, (*self.labels, *labels), kind, samples)


def _by_label(value: Value | Distribution) -> Iterator[Sample]:
    """The values that are known, each with those of the metric's own labels."""
    if value is None:
        return
    # isinstance(value, Mapping) would cache every other type in hundreds of abstract classes.
    if isinstance(value, float | int | Distribution):
        yield (), value
        return

    for key, item in value.items():
        if item is not None:
            yield (key,) if isinstance(key, str) else key, item


def _engines(shown: ReportView) -> Iterator[tuple[LabelValues, EngineReport]]:
    for model in shown.report.models:
        for engine in model.engines:
            yield engine.key, engine


def _single_engines(shown: ReportView) -> Iterator[tuple[LabelValues, EngineReport]]:
    for key, engine in _engines(shown):
        if key != OTHER_ENGINES:
            yield key, engine


def _engines_with_histograms(shown: ReportView) -> Iterator[tuple[LabelValues, EngineReport]]:
    most = engines_with_histograms(len(list(_engines(shown))))
    return islice(_single_engines(shown), most)


def _plugins(shown: ReportView) -> Iterator[tuple[LabelValues, PluginEngineReport]]:
    """One for each engine: of several senders the one that most needs attention.

    Bounded as engines are, whoever is connected: those past the limit are ``other`` together.
    """
    by_engine: dict[str, list[PluginEngineReport]] = {}
    for one in shown.report.plugin.engines:
        is_within = one.engine in by_engine or len(by_engine) < shown.settings.limits.engines
        name = one.engine if is_within else OTHER_ENGINES.engine
        by_engine.setdefault(name, []).append(one)

    states = list(PluginState)
    for engine, reports in by_engine.items():
        yield (engine,), min(reports, key=lambda one: states.index(one.state))


def _models(shown: ReportView) -> Iterator[tuple[LabelValues, ModelReport]]:
    for model in shown.report.models:
        yield (model.model_name,), model


def _loads(shown: ReportView) -> Iterator[tuple[LabelValues, LoadReport]]:
    for key, engine in _single_engines(shown):
        for load in engine.loads:
            yield (*key, load.running), load


def _temperatures(shown: ReportView) -> Iterator[tuple[LabelValues, TemperatureReport]]:
    for model in shown.report.models:
        for part in model.temperatures:
            yield (model.model_name, part.temperature), part


def _groups(shown: ReportView) -> Iterator[tuple[LabelValues, GroupReport]]:
    for model in shown.report.models:
        for group in model.groups:
            yield (model.model_name, group.by, group.group), group


SETTINGS: Final[Level[Settings]] = Level((), lambda shown: [((), shown.settings)])
REPORT: Final[Level[Report]] = Level((), lambda shown: [((), shown.report)])
PLUGIN: Final[Level[PluginEngineReport]] = Level(("engine",), _plugins)
MODEL: Final[Level[ModelReport]] = Level(("model_name",), _models)
ENGINE: Final = Level(("model_name", "engine"), _engines)
# For what merged engines do not have.
SINGLE_ENGINE: Final = Level(("model_name", "engine"), _single_engines)
HISTOGRAM_ENGINE: Final = Level(("model_name", "engine"), _engines_with_histograms)
LOAD: Final[Level[LoadReport]] = Level(("model_name", "engine", "running"), _loads)
TEMPERATURE: Final[Level[TemperatureReport]] = Level(("model_name", "temperature"), _temperatures)
GROUP: Final[Level[GroupReport]] = Level(("model_name", "by", "group"), _groups)
