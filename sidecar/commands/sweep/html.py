"""A sweep as an HTML page: times and speedup over load, acceptance by position."""

from collections.abc import Callable, Iterator, Sequence

from sidecar.commands.charts import Chart, Point, Series, page
from sidecar.commands.sweep.render import text, verdicts
from sidecar.commands.sweep.results import LevelSummary, SweepResult


def html(result: SweepResult) -> str:
    """The whole page."""
    said = [*verdicts(result)]
    said += [f"{check.workload.name} at {check.load}: {check.conclusion}" for check in result.mixes]
    return page(
        f"specdec-sidecar sweep: {result.model or 'no model'}", said, tuple(_charts(result)), list(text(result))
    )


def _charts(result: SweepResult) -> Iterator[Chart]:
    for is_open, x_title in ((False, "requests at once"), (True, "requests per second")):
        levels = [level for level in result.levels if (level.at_once is None) == is_open]
        suffix = ", by rate" if is_open else ", by load"
        yield Chart(
            title=f"TPOT at the median{suffix}",
            x_title=x_title,
            y_title="milliseconds",
            series=(
                *lines(levels, lambda one: milliseconds(one.speed.tpot.p50)),
                *lines(
                    levels, lambda one: milliseconds(one.baseline.tpot.p50 if one.baseline else None), "baseline, ", 1
                ),
            ),
        )
        yield Chart(
            title=f"TPOT at P99{suffix}",
            x_title=x_title,
            y_title="milliseconds",
            series=lines(levels, lambda one: milliseconds(one.speed.tpot.p99)),
        )
        yield Chart(
            title=f"Speedup{suffix} (above 1 speculation is faster)",
            x_title=x_title,
            y_title="speedup",
            series=lines(levels, lambda one: one.speedup, error=lambda one: one.speedup_error),
            mark=1.0,
        )
    yield positions([("", result)])


_Value = Callable[[LevelSummary], float | None]


def lines(
    levels: Sequence[LevelSummary], value: _Value, name: str = "", style: int = 0, error: _Value = lambda _: None
) -> tuple[Series, ...]:
    """A line over load for each workload; ``name`` is put before the workload's."""
    return tuple(
        Series(
            f"{name}{workload.name}",
            tuple(
                Point(str(one.at_once or one.level.load).replace("/s", ""), found, error(one))
                for one in levels
                if one.level.workload == workload and (found := value(one)) is not None
            ),
            colour,
            style,
        )
        for colour, workload in enumerate(dict.fromkeys(one.level.workload for one in levels))
    )


def milliseconds(seconds: float | None) -> float | None:
    """Names for the axes."""
    return None if seconds is None else seconds * 1000


def positions(results: Sequence[tuple[str, SweepResult]]) -> Chart:
    """Acceptance by draft position: one line per temperature and result, over all its loads."""
    return Chart(
        title="Acceptance by draft position",
        x_title="draft position",
        y_title="share of steps that accept",
        series=tuple(
            Series(
                f"{name}temperature {one.temperature:g}",
                tuple(Point(str(place), rate) for place, rate in enumerate(one.position_rates, 1)),
                colour,
                style,
            )
            for style, (name, result) in enumerate(results)
            for colour, one in enumerate(result.temperatures)
        ),
    )
