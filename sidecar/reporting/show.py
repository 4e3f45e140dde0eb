"""A report as text, as Markdown and as JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from sidecar.reporting.table import aligned, count, markdown, milliseconds, ratio, share
from sidecar.reporting.ticket import Engine, ModelTable, Row, Ticket, Times

_HEADER: Final = (
    *("temperature", "verdict", "acceptance", "P10", "P50", "P90", "of attributed drafts", "requests", "attribution"),
    *("TTFT P50", "P99", "TPOT P50", "P99"),
)
_ENGINES: Final = ("engine", "acceptance", "TTFT P50", "P99", "TPOT P50", "P99")

_Table = Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]


def text(ticket: Ticket) -> Iterator[str]:
    """For a terminal."""
    return _lines(ticket, aligned, "", "  ")


def as_markdown(ticket: Ticket) -> Iterator[str]:
    """For a ticket."""
    return _lines(ticket, markdown, "### ", "- ")


def as_json(ticket: Ticket) -> dict[str, Any]:
    """Plain JSON values: times in seconds, ratios 0 to 1."""
    return asdict(ticket)


def _lines(ticket: Ticket, table: _Table, heading: str, item: str) -> Iterator[str]:
    yield f"{heading}Speculative decoding by temperature"
    yield ""
    yield f"{ticket.origin}; over {ticket.period}; times in milliseconds"
    for model in ticket.models:
        yield ""
        yield _about(model)
        if model.rows:
            yield ""
            yield from table(_HEADER, [_row(row) for row in model.rows])
        found = [f"{item}temperature {row.temperature}: {row.advice}" for row in model.rows if row.advice]
        yield from ("", *found) if found else ()
    if ticket.engines:
        yield ""
        yield from table(_ENGINES, [_engine(engine) for engine in ticket.engines])
    marks = ticket.thresholds
    yield ""
    yield f"net_negative is acceptance below {marks['net_negative']:g}, net_positive from {marks['break_even']:g} on"
    yield from ("", *(f"{item}{note}" for note in ticket.notes)) if ticket.notes else ()


def _about(model: ModelTable) -> str:
    return f"model {model.name}: coverage {ratio(model.coverage)}, residual {ratio(model.residual)}"


def _row(row: Row) -> tuple[str, ...]:
    return (
        row.temperature,
        row.verdict,
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
