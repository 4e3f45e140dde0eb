"""Words for the law of plain steps that a baseline measured: its values, errors and misses."""

from collections.abc import Iterator, Sequence
from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.speed.plain import PlainTime, PlainWork, prefill_time, step_time
from sidecar.settings.baselines import PlainStepTimes
from sidecar.wording.numbers import aligned, counted
from specdec_tools.plain.law import Miss

_SHOWN: Final = 5  # misses
_FURTHER: Final = 1000.0  # tokens of context


def law_lines(times: PlainStepTimes) -> Iterator[str]:
    """The law as a table by load, then what prefill adds; ± is two standard errors."""
    header = (
        "running",
        f"step at {times.context:,.0f} tokens, ms",
        f"at {_FURTHER:,.0f} more, ms" if times.context_seconds else "",
    )
    rows = [
        (
            f"{load:.1f}",
            _milliseconds(step_time(times, load)),
            _milliseconds(step_time(times, load, times.context + _FURTHER))
            if times.context_seconds
            else "",
        )
        for load in times.running
    ]
    yield from aligned(header, rows)
    if times.prefill_seconds is not None:
        yield _prefill(times)


def _prefill(times: PlainStepTimes) -> str:
    work = PlainWork(
        steps=1, at_once=1, decodes=times.running[0], mixed=1, tokens=_FURTHER, context=_FURTHER / 2
    )
    parts = [
        f"a new prompt of {_FURTHER:,.0f} tokens adds {_milliseconds(prefill_time(times, work))} ms"
    ]
    if times.hidden_tokens:
        parts.append(f"{times.hidden_tokens:,.0f} tokens of a step take no time")
    if times.by_tokens:
        parts.append("a prompt's tokens fill a step as requests do, as in a mixture of experts")
    return "; ".join(parts)


def _milliseconds(time: PlainTime) -> str:
    return f"{1000 * time.seconds:.3g} ± {1000 * CONFIDENCE * time.error:.2g}"


def miss_lines(misses: Sequence[Miss]) -> Iterator[str]:
    """The mean steps that the law misses most; ``misses`` has the furthest first."""
    for miss in misses[:_SHOWN]:
        kind = "with prompts" if miss.is_mixed else "without prompts"
        running = counted(miss.wanted, "request")
        yield (
            f"off by {100 * miss.off:+.1f} %: steps {kind}, {running} at once,"
            f" {miss.context:,.0f} tokens of context"
        )
