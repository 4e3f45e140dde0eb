"""A running sidecar's verdicts as rows for a terminal, with bars in characters."""

from collections.abc import Iterator, Mapping, Sequence
from math import log2
from typing import Any, Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.judgement import Basis
from sidecar.wording.verdicts import TOO_LITTLE
from specdec_tools.commands.terminal import Paint

_Json = Mapping[str, Any]

_WIDTH: Final = 21  # of a bar, so that 1.0 has a place in the middle
_MIDDLE: Final = _WIDTH // 2
_SCALE: Final = "0.5       1         2"  # above the bars' ends and middle


def verdict_rows(model: _Json, thresholds: _Json, paint: Paint) -> Iterator[str]:
    """All requests, then each temperature with drafts: verdict, bar, numbers.

    The bar is the speedup with its 95 % interval on an axis from 0.5 to 2 by its logarithm, which a
    row without one leaves empty. Where no row has one, it is the acceptance rate with the threshold
    of the rule of thumb.
    """
    speed = model["speed"]
    speedup = None if speed is None else speed["speedup"]
    parts = [("all requests", model, _judged(model, speedup))]
    parts += [
        (f"T {part['temperature']}", part, _judged(part, part["speedup"]))
        for part in model["temperatures"]
        if part["window"]["draft_tokens"]
    ]
    limit = thresholds["acceptance_net_negative"]
    is_timed = any(known is not None for *_, known in parts)
    bars = [_timed(known) if is_timed else (_accepted(part, limit), "") for _, part, known in parts]
    head = f"{_SCALE}  speedup" if is_timed else _mark(parts, limit)

    names = max(len(name) for name, *_ in parts)
    words = max(len(part["words"]) for _, part, _ in parts)
    speeds = max(len(figures) for _, figures in bars)
    if head:
        yield f"{' ' * (names + words + 6)}{head}"
    for (name, part, _), (bar, figures) in zip(parts, bars, strict=True):
        rate = _rate(part)
        numbers = [figures.ljust(speeds)] if is_timed else []
        numbers += [] if rate is None else [f"{rate:.0%} accepted"]
        verdict = paint(part["words"].ljust(words), part["tone"])
        yield "  ".join(
            ("", name.ljust(names), verdict, paint(bar, part["tone"]), *numbers)
        ).rstrip()


def _judged(part: _Json, speedup: _Json | None) -> _Json | None:
    """No speedup where there is too little data to judge it."""
    return None if part["words"] == TOO_LITTLE else speedup


def _rate(part: _Json) -> float | None:
    """The acceptance rate that was judged or, where none was, the recent one."""
    rate: float | None = part[part["judgement"]["judged"] or "window"]["rate"]
    return rate


def _is_ruled(part: _Json) -> bool:
    return bool(part["judgement"]["basis"] == Basis.ACCEPTANCE)


def _mark(parts: Sequence[tuple[str, _Json, _Json | None]], limit: float) -> str:
    """What the mark on bars of acceptance rates is; empty without one."""
    is_marked = any(_is_ruled(part) for _, part, _ in parts)
    return f"rule of thumb: {limit:.0%}" if is_marked else ""


def _timed(speedup: _Json | None) -> tuple[str, str]:
    """A speedup's bar and figures."""
    if speedup is None:
        return " " * _WIDTH, ""
    ratio, margin = (round(each, 2) for each in (speedup["ratio"], CONFIDENCE * speedup["error"]))
    return axis(ratio, margin), f"{ratio:.2f} ± {margin:.2f} x"


def _accepted(part: _Json, limit: float) -> str:
    return share_bar(_rate(part), limit if _is_ruled(part) else None)


def axis(ratio: float, margin: float) -> str:
    """A speedup on an axis with 1.0 in its middle; what lies outside stands at its end."""
    low, at, high = (_place(each) for each in (ratio - margin, ratio, ratio + margin))
    marks = ["·"] * _WIDTH
    marks[low : high + 1] = ["─"] * (high + 1 - low)
    marks[_MIDDLE] = "│"
    marks[at] = "●"
    return "".join(marks)


def _place(ratio: float) -> int:
    bounded = min(max(ratio, 0.5), 2.0)
    return round(_MIDDLE * (1 + log2(bounded)))


def share_bar(rate: float | None, limit: float | None) -> str:
    """An acceptance rate as a bar, with a mark at the ``limit``, if there is one."""
    filled = round((rate or 0.0) * _WIDTH)
    marks = ["█"] * filled + ["░"] * (_WIDTH - filled)
    if limit is not None:
        marks[min(int(limit * _WIDTH), _WIDTH - 1)] = "│"
    return "".join(marks)
