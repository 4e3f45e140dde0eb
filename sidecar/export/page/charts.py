"""Small charts as SVG: a bar with its thresholds, a distribution. Colours come from the style."""

from collections.abc import Sequence

_WIDTH = 300


def bar(value: float | None, limits: Sequence[float]) -> str:
    """A share from 0 to 1 as a bar, with a mark at each limit."""
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
