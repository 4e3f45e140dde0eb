"""What a server gives and takes beside another that got the same requests: tokens, first tokens, cache and room."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, hypot
from typing import Final

from sidecar.commands.load.metrics import Interval, estimate, relative_change
from sidecar.commands.load.sweep_result import LevelMeasurement

_LEAST_SHOWN: Final = 0.0005  # a smaller share is shown as 0.0 %
Sides = Sequence[Interval | None]  # before and after


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """After against before, None if unknown. Seconds are differences, so a gain is below 0.

    ``gain_from`` is the number of output tokens from which on a request gains, with its range; None if it gains or
    loses at any length, or if that is not clear. ``room`` and ``requests`` (a second) are after / before - 1. Hits and
    preemptions are unknown where vLLM also served other clients.
    """

    token_seconds: Interval | None
    first_token_seconds: Interval | None
    gain_from: tuple[int, int, int] | None
    hits: Sides
    room: float | None
    preemptions: tuple[float | None, float | None]
    requests: Interval | None


def balance(
    sides: Mapping[str, Sides], before: LevelMeasurement, after: LevelMeasurement, confidence: float
) -> Balance:
    """The balance of a level; ``sides`` has its metrics with their errors, by name."""
    token, first = _difference(*sides["TPOT P50"]), _difference(*sides["TTFT P50"])
    capacity, previous = after.capacity_tokens, before.capacity_tokens
    return Balance(
        token_seconds=token,
        first_token_seconds=first,
        gain_from=_gain_from(token, first) if token is not None and first is not None else None,
        hits=(_hits(before, confidence), _hits(after, confidence)),
        room=capacity / previous - 1 if capacity and previous else None,
        preemptions=(_preemptions(before), _preemptions(after)),
        requests=relative_change(*sides["requests/s"]),
    )


def _difference(before: Interval | None, after: Interval | None) -> Interval | None:
    if before is None or after is None:
        return None
    known = before.error is not None and after.error is not None
    return Interval(after.value - before.value, hypot(before.error or 0, after.error or 0) if known else None)


def _hits(level: LevelMeasurement, confidence: float) -> Interval | None:
    cached = () if level.others else level.cached
    hits, queries = map(sum, zip((0.0, 0.0), *cached, strict=True))
    parts = (found / asked if asked else None for found, asked in cached)
    return estimate(hits / queries if queries else None, parts, confidence)


def _preemptions(level: LevelMeasurement) -> float | None:
    return None if level.others else level.preemptions


def _is_clear(change: Interval) -> bool:
    return change.error is not None and abs(change.value) > change.error


def _gain_from(token: Interval, first: Interval) -> tuple[int, int, int] | None:
    """A request of n tokens takes the time to the first, and n - 1 times that per token."""
    if not (_is_clear(token) and _is_clear(first) and token.value < 0 < first.value):
        return None
    cost, saved, up, off = first.value, -token.value, first.error or 0, token.error or 0
    one, low, high = (1 + ceil((cost + sign * up) / (saved - sign * off)) for sign in (0, -1, 1))
    return one, low, high


def sentence(found: Balance) -> str:
    """The balance in words, each number with its error where that is known."""
    times = (
        (found.token_seconds, "per token", "per token"),
        (found.first_token_seconds, "to the first token", "in time to first token"),
    )
    text = ", ".join(_time(change, *words) for change, *words in times if change is not None)
    if found.gain_from is not None:
        one, low, high = found.gain_from
        text += f": pays off from {one} output tokens" + (f" ({low} to {high})" if low < high else "")
    return "; ".join(filter(None, (text, *_rest(found))))


def _time(change: Interval, to_what: str, in_what: str) -> str:
    is_less, size = change.value < 0, _ms(abs(change.value))
    if change.error is None:
        return f"{'-' if is_less else '+'}{size} ms {to_what} (error unknown)"
    size += f" ± {_ms(change.error)} ms"
    if not _is_clear(change):
        return f"no clear difference {in_what} ({'-' * is_less}{size})"
    return f"{'saves' if is_less else 'adds'} {size} {to_what}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2g}" if seconds < 0.01 else f"{1000 * seconds:.0f}"


def _rest(found: Balance) -> Iterator[str]:
    before, after = found.hits
    if before is not None and after is not None:
        yield f"prefix-cache hits {_share(after)} instead of {_share(before)}"
    if found.room is not None:
        is_same = abs(found.room) < _LEAST_SHOWN
        yield "the same room" if is_same else f"{abs(found.room):.1%} {'more' if found.room > 0 else 'less'} room"
    if None not in found.preemptions and any(found.preemptions):
        yield "{1:,.0f} preemptions instead of {0:,.0f}".format(*found.preemptions)
    if (change := found.requests) is None:
        return
    if change.error is None:
        yield f"{change.value:+.1%} requests a second (error unknown)"
    elif not _is_clear(change):
        yield f"no clear difference in requests a second ({_share(change)})"
    else:
        size, more = _share(Interval(abs(change.value), change.error)), "more" if change.value > 0 else "fewer"
        yield f"{size} {more} requests a second"


def _share(value: Interval) -> str:
    return f"{value.value:.1%}" + (f" ± {value.error:.1%}" if value.error else "")
