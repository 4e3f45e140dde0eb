"""Small charts as SVG: a bar with its thresholds, a distribution, a line over time. Colours come from the style."""

from collections.abc import Sequence

_WIDTH, _HEIGHT = 300, 80


def bar(value: float | None, limits: Sequence[float]) -> str:
    """A share, 0 to 1, with a mark at each limit."""
    fill = "" if value is None else f'<rect class="fill" height="12" width="{value * _WIDTH:.1f}" rx="2"/>'
    marks = "".join(f'<line class="limit" x1="{at * _WIDTH:.1f}" x2="{at * _WIDTH:.1f}" y2="12"/>' for at in limits)
    return (
        f'<svg viewBox="0 0 {_WIDTH} 12" preserveAspectRatio="none" height="12" aria-hidden="true">'
        f'<rect class="track" width="{_WIDTH}" height="12" rx="2"/>{fill}{marks}</svg>'
    )


def distribution(counts: Sequence[int], limit: float) -> str:
    """Requests by acceptance, in equal bins from 0 to 1; bins below ``limit`` stand out."""
    highest = max(counts, default=0)
    if not highest:
        return ""
    width = 100 / len(counts)
    bins = "".join(
        f'<rect class="bin{" low" if (index + 1) / len(counts) <= limit else ""}" x="{index * width + 0.5:.1f}" '
        f'width="{width - 1:.1f}" y="{28 - 28 * count / highest:.1f}" height="{28 * count / highest:.1f}"/>'
        for index, count in enumerate(counts)
    )
    return (
        '<svg viewBox="0 0 100 28" preserveAspectRatio="none" height="28" role="img" '
        f'aria-label="requests by acceptance, 0 to 1">{bins}</svg>'
    )


def over_time(points: Sequence[tuple[float, float | None]], limit: float) -> str:
    """A share over time with a threshold; points without a value interrupt the line."""
    if len(points) < 2:
        return ""
    start, end = points[0][0], points[-1][0]
    pieces: list[str] = []
    pen = "M"
    for at, value in points:
        if value is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{(at - start) / (end - start) * _WIDTH:.1f},{(1 - value) * _HEIGHT:.1f}")
        pen = "L"
    level = (1 - limit) * _HEIGHT
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" height="{_HEIGHT}" aria-hidden="true">'
        f'<line class="limit" x2="{_WIDTH}" y1="{level:.1f}" y2="{level:.1f}"/>'
        f'<path class="line" d="{"".join(pieces)}"/></svg>'
    )
