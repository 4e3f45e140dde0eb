"""Collectors for prometheus_client that hold plain numbers.

prometheus_client's own instruments drop their ``_created`` series once anything in the process calls
``disable_created_metrics()``, as an exporter does; these keep them, like the real page.
"""

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import Metric, ProcessCollector
from prometheus_client.registry import Collector

from sidecar.demo.families import FamilySpec


class Values(Collector):
    """A counter or gauge family: one number for each value of its label (or for ``None``)."""

    def __init__(self, spec: FamilySpec, labels: dict[str, str], created: float) -> None:
        self._spec = spec
        self._created = created
        self.values: dict[str | None, float] = dict.fromkeys(spec.values or (None,), 0.0)
        self._labels = {
            value: labels if spec.label is None or value is None else {**labels, spec.label: value}
            for value in self.values
        }

    def describe(self) -> Iterable[Metric]:
        """The family without samples: what a registry needs to know its names."""
        return [Metric(self._spec.name, self._spec.help, self._spec.kind)]

    def collect(self) -> Iterator[Metric]:
        """The family as it stands."""
        spec = self._spec
        metric = Metric(spec.name, spec.help, spec.kind)
        counter = spec.kind == "counter"
        for value, number in self.values.items():
            metric.add_sample(f"{spec.name}_total" if counter else spec.name, self._labels[value], number)
            if counter:
                metric.add_sample(f"{spec.name}_created", self._labels[value], self._created)
        yield metric


class Distribution(Collector):
    """A histogram family with one series."""

    def __init__(self, spec: FamilySpec, labels: dict[str, str], created: float) -> None:
        self._spec = spec
        self._labels = labels
        self._created = created
        self._counts = [0] * (len(spec.edges) + 1)
        self._sum = 0.0
        bounds = [*map(repr, spec.edges), "+Inf"]  # as prometheus_client writes floats of this size
        self._le = [{**labels, "le": bound} for bound in bounds]

    def observe(self, number: float) -> None:
        """Count ``number`` in the first bucket whose upper bound is not below it."""
        self._counts[bisect_left(self._spec.edges, number)] += 1
        self._sum += number

    def describe(self) -> Iterable[Metric]:
        """The family without samples: what a registry needs to know its names."""
        return [Metric(self._spec.name, self._spec.help, "histogram")]

    def collect(self) -> Iterator[Metric]:
        """The family as it stands."""
        name = self._spec.name
        metric = Metric(name, self._spec.help, "histogram")
        cumulated = 0
        for count, labels in zip(self._counts, self._le, strict=True):
            cumulated += count
            metric.add_sample(f"{name}_bucket", labels, cumulated)
        metric.add_sample(f"{name}_count", self._labels, cumulated)
        metric.add_sample(f"{name}_sum", self._labels, self._sum)
        metric.add_sample(f"{name}_created", self._labels, self._created)
        yield metric


class SimulatedProcess(Collector):
    """``process_*`` of this process, but as if it had started when the simulated server did.

    ``refresh`` reads /proc and belongs off the event loop; ``collect`` repeats what it found, so nothing before the
    first one. Where there is no /proc there are no such families, as with prometheus_client itself.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._cpu_before = time.process_time()
        self._metrics: list[Metric] = []

    def refresh(self) -> None:
        """Read the numbers anew."""
        metrics = list(ProcessCollector(registry=None).collect())
        for metric in metrics:
            sample = metric.samples[0]
            if metric.name == "process_start_time_seconds":
                metric.samples = [sample._replace(value=self._started)]
            elif metric.name == "process_cpu_seconds":
                metric.samples = [sample._replace(value=max(0.0, sample.value - self._cpu_before))]
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """The families without samples: what a registry needs to know their names."""
        gauges = ("virtual_memory_bytes", "resident_memory_bytes", "start_time_seconds", "open_fds", "max_fds")
        return [
            Metric("process_cpu_seconds", "", "counter"),
            *(Metric(f"process_{name}", "", "gauge") for name in gauges),
        ]

    def collect(self) -> Iterable[Metric]:
        """What ``refresh`` found last."""
        return self._metrics
