"""A report as text, as Markdown and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sidecar.commands.report.report import Engine, Report, Row, Times
from sidecar.commands.tables import aligned, count, markdown, milliseconds, ratio, share

_TIMES: Final = ("TTFT P50", "P99", "TPOT P50", "P99")
_HEADER: Final = (
    *("temperature", "verdict", "speedup", "acceptance", "P10", "P50", "P90"),
    *("of attributed drafts", "requests", "attribution"),
    *_TIMES,
)
_ENGINES: Final = ("engine", "acceptance", *_TIMES)

_Table = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]


def text(report: Report) -> Iterator[str]:
    """For a terminal."""
    return _lines(report, aligned, "", "  ")


def as_markdown(report: Report) -> Iterator[str]:
    """For a ticket."""
    return _lines(report, markdown, "### ", "- ")


def _lines(report: Report, table: _Table, heading: str, item: str) -> Iterator[str]:
    yield f"{heading}Speculative decoding by temperature"
    yield ""
    yield f"{report.origin}; over {report.period}; times in milliseconds"
    for model in report.models:
        yield ""
        yield from () if model.answer is None else (model.answer,)
        yield f"model {model.name}: coverage {ratio(model.coverage)}, residual {ratio(model.residual)}"
        if model.rows:
            yield ""
            yield from table(_HEADER, [_row(row) for row in model.rows])
        found = [f"{item}temperature {row.temperature}: {row.advice}" for row in model.rows if row.advice]
        yield from ("", *found) if found else ()
    if report.engines:
        yield ""
        yield from table(_ENGINES, [_engine(engine) for engine in report.engines])
    marks = report.thresholds
    yield ""
    yield f"net_negative is acceptance below {marks['net_negative']:g}, net_positive from {marks['break_even']:g} on"
    yield from ("", *(f"{item}{note}" for note in report.notes)) if report.notes else ()


def _row(row: Row) -> tuple[str, ...]:
    return (
        row.temperature,
        row.verdict,
        ratio(row.speedup),
        ratio(row.acceptance),
        ratio(row.p10),
        ratio(row.p50),
        ratio(row.p90),
        share(row.share),
        count(row.requests),
        row.attribution or "-",
        *_times(row.ttft),
        *_times(row.tpot),
    )


def _engine(engine: Engine) -> tuple[str, ...]:
    return (engine.name, ratio(engine.acceptance), *_times(engine.ttft), *_times(engine.tpot))


def _times(times: Times) -> tuple[str, str]:
    return milliseconds(times.p50, times.p50_below), milliseconds(times.p99, times.p99_below)
