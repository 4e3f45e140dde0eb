"""Comparisons as an HTML page: both sides' times over load, the change with its error, acceptance by position."""

from collections.abc import Iterator, Sequence

from sidecar.commands.charts import Chart, Point, Series, page
from sidecar.commands.compare.comparison import TPOT_P50, Comparison
from sidecar.commands.compare.render import text, verdict
from sidecar.commands.sweep.html import lines, milliseconds, positions
from sidecar.commands.sweep.results import SweepResult

Compared = tuple[Comparison, SweepResult]


def html(before: SweepResult, found: Sequence[Compared]) -> str:
    """The whole page; each comparison comes with the result that is compared with ``before``."""
    said = [line for comparison, _ in found for line in (*verdict(comparison), *comparison.notes)]
    charts = [chart for comparison, after in found for chart in _charts(before, after, comparison)]
    tables = [line for comparison, _ in found for line in (*text(comparison), "")]
    return page("specdec-sidecar compare", said, charts, tables)


def _charts(before: SweepResult, after: SweepResult, comparison: Comparison) -> Iterator[Chart]:
    names = comparison.before, comparison.after
    for is_open, x_title in ((False, "requests at once"), (True, "requests per second")):
        sides = [[level for level in result.levels if (level.at_once is None) == is_open] for result in (before, after)]
        yield Chart(
            title=f"TPOT at the median: {names[0]} and {names[1]}",
            x_title=x_title,
            y_title="milliseconds",
            series=(
                *lines(sides[0], lambda one: milliseconds(one.speed.tpot.p50), f"{names[0]}, "),
                *lines(sides[1], lambda one: milliseconds(one.speed.tpot.p50), f"{names[1]}, ", 1),
            ),
        )
    yield Chart(
        title=f"TPOT of {names[0]} over that of {names[1]} (above 1 the second is faster)",
        x_title="load",
        y_title="ratio",
        series=tuple(_ratios(comparison)),
        mark=1.0,
    )
    yield positions([(f"{names[0]}, ", before), (f"{names[1]}, ", after)])


def _ratios(comparison: Comparison) -> Iterator[Series]:
    """Only points with an error; a point without one would look like a claim."""
    known = [one for one in comparison.differences if one.metric is TPOT_P50 and one.change is not None]
    for colour, workload in enumerate(dict.fromkeys(one.level.workload for one in known)):
        points = []
        for one in known:
            change = one.change
            if one.level.workload == workload and change is not None and change.error is not None and change.value > -1:
                ratio = 1 / (1 + change.value)
                points.append(Point(str(one.level.load), ratio, change.error * ratio * ratio))
        yield Series(workload.name, tuple(points), colour)
