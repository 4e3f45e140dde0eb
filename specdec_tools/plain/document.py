"""The file that a baseline writes, as the settings read it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sidecar.settings.baselines import PlainStepTimes, StepLaw

_DIGITS: Final = 6


def plain_steps(times: PlainStepTimes, until: float) -> dict[str, Any]:
    """A model's plain step times, measured ``until`` then (Unix seconds); without what is empty."""
    fields: Mapping[str, Any] = {
        "running": _rounded(times.running, 2),
        **_law(times),
        "context": round(times.context, 1),
        "contexts": _rounded(times.context_range, 1),
        "by_tokens": times.by_tokens or None,
        "chunk_tokens": times.chunk_tokens and round(times.chunk_tokens, 1),
        "rounds": [_law(law) for law in times.rounds],
        "drift": round(times.drift, 4) or None,
        "first_token_seconds": _rounded(times.first_token_seconds),
        "accelerator": times.accelerator,
        "machine_load": None if times.machine_load is None else round(times.machine_load, 2),
        "measured": datetime.fromtimestamp(until, UTC).isoformat(timespec="seconds"),
    }
    return _given(fields)


def _law(law: StepLaw) -> dict[str, Any]:
    return _given(
        {
            "seconds": _significant(law.seconds),
            "context_seconds": _significant(law.context_seconds),
            "prefill_seconds": law.prefill_seconds and _significant([law.prefill_seconds])[0],
            "attention_seconds": _significant([law.attention_seconds])[0] or None,
            "hidden_tokens": law.hidden_tokens or None,
        }
    )


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is empty."""
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _significant(values: Sequence[float]) -> list[float]:
    """With as many digits as the differences between rounds need, however small they are."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _rounded(values: Sequence[float], digits: int = _DIGITS) -> list[float]:
    return [round(value, digits) for value in values]
