"""Line charts and the page around them: one HTML file without scripts or fonts that loads nothing from elsewhere."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 560
_HEIGHT: Final = 300
_LEFT: Final = 56
_RIGHT: Final = 16
_TOP: Final = 14
_BOTTOM: Final = 44
_TICKS: Final = 5
# Distinguishable with colour blindness (Okabe and Ito), and by their dashes.
_COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#666666")
_DASHES: Final = ("", "7 4", "2 3", "9 3 2 3")

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --text: #1b1f24; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8ea; --back: #15181c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } p { white-space: pre-wrap; margin: .15rem 0; } h2 { font-size: 1.05rem; margin: 0 0 .3rem; }
.charts { display: grid; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 2rem 1.5rem; }
figure { margin: 0; } svg { width: 100%; height: auto; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--line); stroke-width: 1; } .mark { stroke: var(--text); stroke-dasharray: 4 3; }
ul.legend { list-style: none; padding: 0; margin: .2rem 0 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.legend svg { width: 28px; height: 10px; margin-right: .4rem; }
pre { overflow-x: auto; border-top: 1px solid var(--line); padding-top: 1rem; font-size: 13px; }
"""


@dataclass(frozen=True, slots=True)
class Point:
    """One value over one label of the horizontal axis; ``error`` is half the height of its bar."""

    x: str
    y: float
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One line; ``colour`` and ``style`` (its dashes) determine its look, so that lines of one kind look alike."""

    name: str
    points: tuple[Point, ...]
    colour: int = 0
    style: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over the same labels. ``mark``: a value at which to draw a line, such as a speedup of 1."""

    title: str
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    mark: float | None = None


def page(title: str, summary: Sequence[str], charts: Sequence[Chart], text: Sequence[str]) -> str:
    """The whole file: its summary in words, the charts that have lines, and the tables as text."""
    figures = "\n".join(_figure(chart) for chart in charts if any(series.points for series in chart.series))
    said = "\n".join(f"<p>{escape(line)}</p>" for line in summary)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<style>{_STYLE}</style></head>\n<body><main id="content">\n<h1>{escape(title)}</h1>\n{said}\n'
        f'<div class="charts">\n{figures}\n</div>\n<pre>{escape(chr(10).join(text))}</pre>\n</main></body></html>\n'
    )


def _figure(chart: Chart) -> str:
    labels = tuple(dict.fromkeys(point.x for series in chart.series for point in series.points))
    values = [point.y + (point.error or 0) for series in chart.series for point in series.points]
    step = _step(max([*values, chart.mark or 0]))
    top = step * max(1, math.ceil(max([*values, chart.mark or 0]) / step))
    drawn = [series for series in chart.series if series.points]
    lines = "".join(_series(series, labels, top) for series in drawn)
    legend = "".join(
        '<li><svg viewBox="0 0 28 10" aria-hidden="true"><line x1="0" y1="5" x2="28" y2="5" '
        f"{_stroke(series)}/></svg>{escape(series.name)}</li>"
        for series in drawn
    )
    mark = ""
    if chart.mark is not None:
        y = _y(chart.mark, top)
        mark = f'<line class="mark" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    title = escape(chart.title)
    return (
        f'<figure><h2>{title}</h2><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">'
        f"{''.join(_axes(chart, labels, step, top))}{mark}{lines}</svg>"
        f'<ul class="legend">{legend}</ul></figure>'
    )


def _axes(chart: Chart, labels: Sequence[str], step: float, top: float) -> Iterator[str]:
    for tick in range(round(top / step) + 1):
        y = _y(tick * step, top)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick * step:.4g}</text>'
    for label in labels:
        yield f'<text x="{_x(label, labels):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{escape(label)}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(chart.x_title)}</text>'
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {height})"'
    yield f'<text x="12" y="{height}" text-anchor="middle" {turned}>{escape(chart.y_title)}</text>'


def _series(series: Series, labels: Sequence[str], top: float) -> str:
    stroke = _stroke(series)
    places = [(_x(point.x, labels), _y(point.y, top), point) for point in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    bars = "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_y(point.y - point.error, top):.1f}" '
        f'y2="{_y(point.y + point.error, top):.1f}" {stroke}/>'
        for x, _, point in places
        if point.error is not None
    )
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{_colour(series)}">'
        f"<title>{escape(series.name)}, {escape(point.x)}: {point.y:.4g}</title></circle>"
        for x, y, point in places
    )
    return f'<polyline points="{path}" fill="none" {stroke}/>{bars}{dots}'


def _colour(series: Series) -> str:
    return _COLOURS[series.colour % len(_COLOURS)]


def _stroke(series: Series) -> str:
    dashes = _DASHES[series.style % len(_DASHES)]
    return f'stroke="{_colour(series)}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def _x(label: str, labels: Sequence[str]) -> float:
    room = _WIDTH - _LEFT - _RIGHT
    return _LEFT + room * (labels.index(label) + 0.5) / len(labels)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - max(0.0, value) / top * (_HEIGHT - _TOP - _BOTTOM)


def _step(highest: float) -> float:
    """A round distance between ticks, such that about five reach the highest value."""
    if highest <= 0:
        return 1.0
    raw = highest / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    return power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
