"""Numbers in a form that is easy to read."""

from sidecar.analysis.acceptance import Acceptance


def percent(value: float | None) -> str:
    """A share from 0 to 1 in percent."""
    return "no data" if value is None else f"{value:.0%}"


def by_position(acceptance: Acceptance, part: str) -> str:
    """The acceptance rate at each draft position, out of ``part``, as a sentence; empty if unknown."""
    rates = ", ".join(map(percent, acceptance.position_rates))
    return f"Acceptance rate by position, {part}: {rates}. " if rates else ""


def latency(seconds: float) -> str:
    """Seconds, or milliseconds below one second."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1000:.2g} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(count: float, what: str) -> str:
    """A number and a noun."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"
