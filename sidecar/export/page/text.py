"""Numbers as people read them."""

from sidecar.analysis.acceptance import Acceptance


def percent(value: float | None) -> str:
    """A share."""
    return "no data" if value is None else f"{value:.0%}"


def by_position(acceptance: Acceptance, part: str) -> str:
    """The acceptance rate at each draft position, out of ``part``, as a sentence; empty if unknown."""
    rates = ", ".join(map(percent, acceptance.position_rates))
    return f"Accepted at each position, {part}: {rates}. " if rates else ""


def latency(seconds: float) -> str:
    """In milliseconds below a second."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def milliseconds(seconds: float) -> str:
    """A time per token."""
    found = seconds * 1000
    return f"{found:.2g} ms" if found < 10 else f"{found:.0f} ms"


def span(seconds: float) -> str:
    """The length of a window."""
    return counted(round(seconds), "second") if seconds < 100 else counted(round(seconds / 60), "minute")


def duration(seconds: float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def counted(count: float, what: str) -> str:
    """A number and a noun."""
    return f"{count:,.0f} {what}{'' if count == 1 else 's'}"
