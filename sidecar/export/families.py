"""Samples by metric, between the state and the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidecar.analysis.histogram import Histogram
from sidecar.export.metrics import Metric

Labels = tuple[str, ...]  # values, in the order of the metric's label names


@dataclass(frozen=True, slots=True)
class Family:
    """One metric's samples: ``values[i]`` has the label values ``labels[i]``.

    A histogram's sample is a row of ``len(edges) + 3`` values: the cumulative counts by ``edges`` and +Inf, the count,
    the sum. Other metrics have one value per sample and no edges.
    """

    metric: Metric
    label_names: tuple[str, ...]
    labels: list[Labels] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    edges: tuple[float, ...] = ()


class Families:
    """Collects samples in the order in which they come."""

    def __init__(self, scope_names: tuple[str, ...] = ()) -> None:
        """``scope_names`` are label names that precede the metric's own on every series."""
        self._scope_names = scope_names
        self._families: dict[str, Family] = {}
        self.scope: Labels = ()  # the values of the scope's labels for samples added from now on

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """Adds a counter's or gauge's sample; None means absent and adds nothing."""
        if value is not None:
            family = self._family(metric)
            family.labels.append(self.scope + labels)
            family.values.append(value)

    def add_each(self, metric: Metric, values: Mapping[str, float]) -> None:
        """Adds a sample for each value of the metric's one label."""
        for label, value in values.items():
            self.add(metric, value, label)

    def add_histogram(self, metric: Metric, histogram: Histogram, *labels: str) -> None:
        """Adds a histogram's sample; all of one metric have the same edges."""
        family = self._family(metric, histogram.edges)
        family.labels.append(self.scope + labels)
        counts = histogram.cumulative()
        family.values.extend((*counts, counts[-1], histogram.sum))

    def add_positions(self, metric: Metric, accepted: Sequence[float], most: int, *labels: str) -> None:
        """Adds a value for each draft position; those past ``most`` go under position ``other`` together."""
        for position, value in enumerate(accepted[:most]):
            self.add(metric, value, *labels, str(position))
        if len(accepted) > most:
            self.add(metric, sum(accepted[most:]), *labels, "other")

    def all(self) -> Sequence[Family]:
        """The families that have samples."""
        return list(self._families.values())

    def _family(self, metric: Metric, edges: tuple[float, ...] = ()) -> Family:
        family = self._families.get(metric.name)
        if family is None:
            family = Family(metric, self._scope_names + metric.labels, edges=edges)
            self._families[metric.name] = family
        return family
