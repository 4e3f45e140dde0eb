"""How a metric is declared: name, type, help and labels, and where the report has its value.

The report is a tree. A level of the tree defines the labels that its metrics share, and lists its
nodes. A metric adds where a node has its value: its place, such as ``speed.speedup.ratio``, or a
function. A value is a number, a distribution, a mapping from the values of additional labels to
numbers, or None if it is absent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from sidecar.analysis.distributions import Distribution
from sidecar.analysis.engine.engines import shown_positions
from sidecar.analysis.report import EngineReport, ModelReport, Report, TemperatureReport
from sidecar.analysis.speed.speedup import LoadReport
from sidecar.analysis.split.tallies import GroupReport
from sidecar.engine.merge import OTHER
from sidecar.settings import Settings

Labels = tuple[str, ...]  # values, in the order of the label names
# A mapping's keys are strings or tuples of these.
Values = float | Distribution | None | Mapping[Any, float | None]
Kind = Literal["counter", "gauge", "histogram"]  # as in ``# TYPE``
Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page of metrics is made from."""

    report: Report
    settings: Settings


Sample = tuple[Labels, float | Distribution]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    ``name`` includes a counter's ``_total``, ``samples`` yields its samples on a page.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    samples: Callable[[Shown], Iterator[Sample]]
    help: str = ""


@dataclass(frozen=True, slots=True)
class Level(Generic[Node]):
    """A kind of node in the tree.

    ``nodes`` yields each node with the values of ``labels`` that identify it.
    """

    labels: tuple[str, ...]
    nodes: Callable[[Shown], Iterable[tuple[Labels, Node]]]

    def gauge(self, name: str, value: str | Callable[[Node], Values], *labels: str) -> Metric:
        """A gauge for each node.

        ``labels`` are the labels whose values are the keys of ``value``'s mapping.
        """
        return self._metric(f"specdec_{name}", "gauge", value, labels)

    def counter(self, name: str, value: str | Callable[[Node], Values], *labels: str) -> Metric:
        """Like ``gauge``, but a counter; ``name`` is without ``_total``."""
        return self._metric(f"specdec_{name}_total", "counter", value, labels)

    def histogram(self, name: str, value: str | Callable[[Node], Distribution | None]) -> Metric:
        """A histogram for each node."""
        return self._metric(f"specdec_{name}", "histogram", value, ())

    def by_position(self, name: str, place: str) -> Metric:
        """A counter for each draft position, from 0; those past the limit are summed: ``other``."""
        read = _reader(place)

        def samples(shown: Shown) -> Iterator[Sample]:
            engines = sum(len(model.engines) for model in shown.report.models)
            most = shown_positions(shown.settings, engines)
            for labels, node in self.nodes(shown):
                counts: Sequence[float] = read(node)
                for position, count in enumerate(counts[:most]):
                    yield (*labels, str(position)), count
                if len(counts) > most:
                    yield (*labels, "other"), sum(counts[most:])

        return Metric(f"specdec_{name}_total", "counter", (*self.labels, "position"), samples)

    def _metric(
        self, name: str, kind: Kind, value: str | Callable[[Node], Values], labels: tuple[str, ...]
    ) -> Metric:
        read = _reader(value) if isinstance(value, str) else value

        def samples(shown: Shown) -> Iterator[Sample]:
            for outer, node in self.nodes(shown):
                values = read(node)
                by_key = values.items() if isinstance(values, Mapping) else [((), values)]
                for inner, item in by_key:
                    if item is not None:
                        yield outer + ((inner,) if isinstance(inner, str) else inner), item

        return Metric(name, kind, self.labels + labels, samples)


def _reader(place: str) -> Callable[[Any], Any]:
    """Reads what a node has at a place in the tree below it.

    That is None where a part of the way there is None.
    """
    names = place.split(".")

    def read(node: Any) -> Any:
        for name in names:
            node = None if node is None else getattr(node, name)
        return node

    return read


def _engines(shown: Shown) -> Iterator[tuple[Labels, EngineReport]]:
    return ((engine.key, engine) for model in shown.report.models for engine in model.engines)


def _single_engines(shown: Shown) -> Iterator[tuple[Labels, EngineReport]]:
    return ((key, engine) for key, engine in _engines(shown) if key != OTHER)


SETTINGS: Final[Level[Settings]] = Level((), lambda shown: [((), shown.settings)])
REPORT: Final[Level[Report]] = Level((), lambda shown: [((), shown.report)])
MODEL: Final[Level[ModelReport]] = Level(
    ("model_name",), lambda shown: (((model.model_name,), model) for model in shown.report.models)
)
ENGINE: Final = Level(("model_name", "engine"), _engines)
# For what merged engines do not have.
SINGLE_ENGINE: Final = Level(("model_name", "engine"), _single_engines)
LOAD: Final[Level[LoadReport]] = Level(
    ("model_name", "engine", "running"),
    lambda shown: (
        ((*key, load.running), load)
        for key, engine in _single_engines(shown)
        for load in engine.loads
    ),
)
TEMPERATURE: Final[Level[TemperatureReport]] = Level(
    ("model_name", "temperature"),
    lambda shown: (
        ((one.model_name, part.temperature), part)
        for one in shown.report.models
        for part in one.temperatures
    ),
)
GROUP: Final[Level[GroupReport]] = Level(
    ("model_name", "by", "group"),
    lambda shown: (
        ((one.model_name, part.by, part.group), part)
        for one in shown.report.models
        for part in one.groups
    ),
)
