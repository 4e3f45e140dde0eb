"""The last hour as small lines in the page, and as JSON."""

from collections.abc import Callable
from html import escape
from math import log2
from typing import Any, Final

from sidecar.analysis.history import MINUTE, MINUTES, History, Line, Quantity
from sidecar.export.declaration import ReportView
from sidecar.wording.numbers import latency, percent

_HEIGHT: Final = 20
_SAID: Final[dict[Quantity, Callable[[float], str]]] = {
    Quantity.SPEEDUP: lambda value: f"{value:.2f}",
    Quantity.ACCEPTANCE: percent,
    Quantity.KV_CACHE: percent,
    Quantity.GAP: latency,
    Quantity.FIRST_TOKEN: latency,
    Quantity.WAITING: lambda value: f"{value:,.0f}",
}
_SHARES: Final = frozenset({Quantity.ACCEPTANCE, Quantity.KV_CACHE})


def hour_line(history: History, line: Line) -> str:
    """A line of the last hour; empty while less than two minutes of it are known.

    A speedup is drawn by its logarithm from 0.5 to 2 around a mark at 1, a share from 0 to 1, and
    all others from 0 to their highest.
    """
    values = history.values(line)
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""

    say = _SAID[line.quantity]
    label = (
        f"{line.quantity.replace('_', ' ')}, the last hour: from {say(min(known))} to"
        f" {say(max(known))}, latest {say(known[-1])}"
    )
    highest = max(known) or 1.0
    path = ""
    is_drawn = False
    for place, value in enumerate(values):
        if value is not None:
            y = _HEIGHT - 1 - round(_share(value, line.quantity, highest) * (_HEIGHT - 2))
            path += f"{'L' if is_drawn else 'M'}{place} {y}"
            path += "" if is_drawn else "h0"  # a single minute is a dot
        is_drawn = value is not None

    middle = _HEIGHT // 2
    one = f'<path class="one" d="M0 {middle}H{MINUTES - 1}"/>'
    return (
        f'<svg class="hour" viewBox="0 0 {MINUTES - 1} {_HEIGHT}" preserveAspectRatio="none"'
        f' height="{_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'{one if line.quantity is Quantity.SPEEDUP else ""}<path d="{path}"/></svg>'
    )


def _share(value: float, quantity: Quantity, highest: float) -> float:
    """How far up the line is, from 0 to 1."""
    if quantity is Quantity.SPEEDUP:
        return (1 + log2(min(max(value, 0.5), 2.0))) / 2
    return min(max(value if quantity in _SHARES else value / highest, 0.0), 1.0)


def hour(shown: ReportView) -> dict[str, Any]:
    """The last hour as JSON: a value a minute, null where nothing was known."""
    history = shown.history
    return {
        "latest_minute": history.latest_minute,
        "seconds": MINUTE,
        "series": [
            {**line._asdict(), "quantity": str(line.quantity), "values": history.values(line)}
            for line in history.lines
        ],
    }
