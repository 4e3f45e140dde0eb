"""Places panels on Grafana's grid, which is 24 units wide.

Each panel gets an id that outlives changes around it.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import GridPos, Panel

WIDTH = 24
_IDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Column:
    """Panels one above the other, with their heights."""

    width: int
    cells: tuple[tuple[Builder[Panel], int], ...]


Line = Sequence[Column]


@dataclass(frozen=True, slots=True)
class Section:
    """A row with a title and the lines of panels below it; without a title, the top of the page.

    A collapsed section asks nothing of Prometheus until it is opened.
    """

    title: str
    lines: Sequence[Line]
    collapsed: bool = False


def beside(height: int, *panels: tuple[Builder[Panel], int]) -> Line:
    """A line of panels of one height, each with its width."""
    return [Column(width, ((panel, height),)) for panel, width in panels]


def place(page: dashboard.Dashboard, sections: Iterable[Section]) -> None:
    """Puts the sections on the page, one below the other.

    Raises:
        ValueError: a line leaves a hole or is too wide, or two panels would have the same id.
    """
    y = 0
    taken: set[int] = set()

    for section in sections:
        row = dashboard.Row(section.title).collapsed(section.collapsed)
        if section.title:
            row.grid_pos(GridPos(x=0, y=y, w=WIDTH, h=1)).id(_id("row " + section.title, taken))
            y += 1
        panels: list[_Placed] = []
        for line in section.lines:
            panels += _placed(line, y, taken)
            y += _height(line)
        for panel in panels if section.collapsed else ():
            row.with_panel(panel)
        if section.title:
            page.with_row(row)
        for panel in () if section.collapsed else panels:
            page.with_panel(panel)


class _Placed(Builder[Panel]):
    """A panel as it is to stand on the page."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel

    def build(self) -> Panel:
        return self._panel


def _placed(line: Line, y: int, taken: set[int]) -> Iterator[_Placed]:
    x = 0

    for column in line:
        top = y
        for builder, height in column.cells:
            panel = builder.build()
            panel.grid_pos = GridPos(x=x, y=top, w=column.width, h=height)
            panel.id_val = _id(panel.title or "", taken)
            yield _Placed(panel)
            top += height
        x += column.width


def _height(line: Line) -> int:
    heights = {sum(height for _, height in column.cells) for column in line}
    if len(heights) != 1 or sum(column.width for column in line) != WIDTH:
        raise ValueError(f"a line's columns must be equally high and {WIDTH} wide in all: {line}")
    return heights.pop()


def _id(title: str, taken: set[int]) -> int:
    """From the title alone, so that a link to a panel still leads there after others were added."""
    number = zlib.crc32(title.encode()) % _IDS + 1
    if number in taken:
        raise ValueError(f"another panel has the same title or id: {title}")
    taken.add(number)
    return number
