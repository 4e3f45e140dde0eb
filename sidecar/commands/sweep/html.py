"""A sweep as a page for people: times and speedup over load, acceptance by position."""

from collections.abc import Iterator, Sequence

from sidecar.commands.charts import Chart, Point, Series, page
from sidecar.commands.sweep.render import text
from sidecar.commands.sweep.results import LevelSummary, SweepResult


def html(result: SweepResult) -> str:
    """The whole page."""
    said = [f"temperature {one.temperature:g}: {one.verdict}: {one.action}" for one in result.temperatures]
    said += [f"mix {','.join(check.mix)} at {check.load}: {check.conclusion}" for check in result.mixes]
    return page(
        f"specdec-sidecar sweep: {result.model or 'no model'}", said, tuple(_charts(result)), list(text(result))
    )


def _charts(result: SweepResult) -> Iterator[Chart]:
    for is_open, x_title in ((False, "requests at once"), (True, "requests a second")):
        levels = [level for level in result.levels if (level.at_once is None) == is_open]
        suffix = ", by rate" if is_open else ", by load"
        yield Chart(
            title=f"TPOT at the median{suffix}",
            x_title=x_title,
            y_title="milliseconds",
            series=(*times(levels, "p50"), *times(levels, "p50", name="baseline, ", baseline=True, style=1)),
        )
        yield Chart(title=f"TPOT at P99{suffix}", x_title=x_title, y_title="milliseconds", series=times(levels, "p99"))
        yield Chart(
            title=f"Speedup{suffix} (above 1 speculation is faster)",
            x_title=x_title,
            y_title="speedup",
            series=_speedups(levels),
            mark=1.0,
        )
    yield positions([("", result)])


def times(
    levels: Sequence[LevelSummary], quantile: str, *, name: str = "", baseline: bool = False, style: int = 0
) -> tuple[Series, ...]:
    """TPOT in milliseconds over load: a line a workload, of this server or of the baseline."""
    found = []
    for colour, workload in enumerate(dict.fromkeys(level.workload_name for level in levels)):
        points = []
        for level in levels:
            speed = level.baseline if baseline else level.speed
            value = None if speed is None else getattr(speed.tpot, quantile)
            if level.workload_name == workload and value is not None:
                points.append(Point(load_label(level), value * 1000))
        found.append(Series(f"{name}{_named(workload)}", tuple(points), colour, style))
    return tuple(found)


def _speedups(levels: Sequence[LevelSummary]) -> tuple[Series, ...]:
    return tuple(
        Series(
            _named(workload),
            tuple(
                Point(load_label(level), level.speedup, level.speedup_error)
                for level in levels
                if level.workload_name == workload and level.speedup is not None
            ),
            colour,
        )
        for colour, workload in enumerate(dict.fromkeys(level.workload_name for level in levels))
    )


def positions(results: Sequence[tuple[str, SweepResult]]) -> Chart:
    """Acceptance by draft position: a line a temperature and result, over all its loads."""
    return Chart(
        title="Acceptance by draft position",
        x_title="draft position",
        y_title="share of steps that accept",
        series=tuple(
            Series(
                f"{name}{_named(f'{one.temperature:g}')}",
                tuple(Point(str(place), rate) for place, rate in enumerate(one.position_rates, 1)),
                colour,
                style,
            )
            for style, (name, result) in enumerate(results)
            for colour, one in enumerate(result.temperatures)
        ),
    )


def load_label(level: LevelSummary) -> str:
    """The load on the horizontal axis."""
    return str(level.at_once) if level.at_once is not None else level.load_name.replace("/s", "")


def _named(workload: str) -> str:
    return f"mix {workload}" if ":" in workload else f"temperature {workload}"
