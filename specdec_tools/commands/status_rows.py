"""A running sidecar's verdicts as rows for a terminal, with bars in characters."""

from collections.abc import Iterator, Mapping
from math import log2
from typing import Any, Final

from sidecar.analysis.evidence import CONFIDENCE
from specdec_tools.commands.terminal import Paint

_Json = Mapping[str, Any]

_WIDTH: Final = 21  # of a bar, so that 1.0 has a place in the middle
_MIDDLE: Final = _WIDTH // 2
_SCALE: Final = "0.5       1         2"  # above the bars' ends and middle


def verdict_rows(model: _Json, thresholds: _Json, paint: Paint) -> Iterator[str]:
    """All requests, then each temperature with drafts: verdict, bar, number.

    The bar is the speedup with its 95 % interval on an axis from 0.5 to 2 by its logarithm, or
    where no time is known the acceptance rate with the threshold of the rule of thumb.
    """
    speed = model["speed"]
    speedup = None if speed is None else speed["speedup"]
    parts = [("all requests", model, model["judgement"], speedup)]
    parts += [
        (f"T {part['temperature']}", part, part["judgement"], part["speedup"])
        for part in model["temperatures"]
        if part["window"]["draft_tokens"]
    ]
    names = max(len(name) for name, *_ in parts)
    words = max(len(part["words"]) for _, part, *_ in parts)
    limit = thresholds["acceptance_net_negative"]
    if any(known is not None for *_, known in parts):
        yield f"{' ' * (names + words + 6)}{_SCALE}"

    for name, part, judgement, known in parts:
        rate = part[judgement["judged"] or "window"]["rate"]
        accepted = "" if rate is None else f"{rate:.0%} accepted"
        if known is not None:
            bar = axis(known["ratio"], CONFIDENCE * known["error"])
            numbers = f"{known['ratio']:.2f} ± {CONFIDENCE * known['error']:.2f} x  {accepted}"
        else:
            bar = share_bar(rate, limit if judgement["basis"] == "acceptance" else None)
            numbers = accepted
        verdict = paint(part["words"].ljust(words), part["tone"])
        yield f"  {name.ljust(names)}  {verdict}  {paint(bar, part['tone'])}  {numbers}".rstrip()


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
