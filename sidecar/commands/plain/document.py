"""The file that a baseline writes, as the settings read it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.settings.baselines import PlainStepTimes

_DIGITS: Final = 6
_FINE_DIGITS: Final = 12  # of seconds per token of context, and of their errors
_FINEST_DIGITS: Final = 16  # of seconds per prompt token and token that it attends to


def plain_steps(times: PlainStepTimes, until: float) -> dict[str, Any]:
    """A model's plain step times, measured ``until`` then (Unix seconds); without what is empty."""
    fields: Mapping[str, Any] = {
        "running": _rounded(times.running, 2),
        "seconds": _rounded(times.seconds),
        "errors": _rounded(times.errors),
        "deviations": [_rounded(row) for row in times.deviations],
        "contexts": _rounded(times.contexts, 1),
        "context_ranges": [_rounded(row, 1) for row in times.context_ranges],
        "slopes": _rounded(times.slopes, _FINE_DIGITS),
        "slope_errors": _rounded(times.slope_errors, _FINE_DIGITS),
        "prefill_tokens": [_rounded(row, 1) for row in times.prefill_tokens],
        "prefill_seconds": [_rounded(row) for row in times.prefill_seconds],
        "prefill_errors": [_rounded(row) for row in times.prefill_errors],
        "attention_seconds": round(times.attention_seconds, _FINEST_DIGITS) or None,
        "attention_error": round(times.attention_error, _FINEST_DIGITS) or None,
        "chunk_tokens": times.chunk_tokens and round(times.chunk_tokens, 1),
        "drift": round(times.drift, 4),
        "prompt_share": round(times.prompt_share, 3),
        "first_token_seconds": _rounded(times.first_token_seconds),
        "source": times.source,
        "machine_load": None if times.machine_load is None else round(times.machine_load, 2),
        "measured": datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds"),
    }

    return {name: value for name, value in fields.items() if value not in (None, [])}


def _rounded(values: Sequence[float], digits: int = _DIGITS) -> list[float]:
    return [round(value, digits) for value in values]
