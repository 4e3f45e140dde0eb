"""What follows from a comparison: a sentence on acceptance, on time, and on the price.

Where the time is not decided, also how many more rounds have an even chance to decide it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from sidecar.wording.numbers import counted, latency, milliseconds, percent
from specdec_tools.measuring.metrics import METRICS, Interval
from specdec_tools.measuring.sweep_result import SweepLevel

ACCEPTED: Final = ("acceptance", "length")
TPOT: Final = "TPOT P50"
TTFT: Final = "TTFT P50"
_PRICES: Final = {
    TTFT: "time to first token",
    "requests/s": "requests a second",
    "cache hit ratio": "prefix-cache hits",
    "preemptions/request": "preemptions per request",
}
_MOST_ROUNDS: Final = 1000  # beyond that, rounds decide nothing that matters

Effect = Literal["faster", "slower", "higher", "lower"]


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric at one level: seconds, ratios, tokens or requests per second, or counts.

    ``before`` and ``after`` are None if not measured. ``change`` is after / before - 1, without an
    error if there are too few requests, None if the two cannot be compared. ``difference`` is after
    minus before, None without an error. ``effect`` is None unless the change is larger than its
    error, and than a drift of the machine could explain, and the difference larger than its own: a
    ratio hides how uncertain a large number is that it divides by.
    """

    level: SweepLevel
    metric: str
    before: Interval | None
    after: Interval | None
    change: Interval | None
    difference: Interval | None
    effect: Effect | None


def conclusions(changes: Sequence[MetricChange], more_rounds: Mapping[str, int]) -> Iterator[str]:
    """The sentences, each over all levels."""
    by_metric: dict[str, list[MetricChange]] = {}
    for one in changes:
        by_metric.setdefault(one.metric, []).append(one)

    yield f"acceptance: {_acceptance(by_metric)}"
    yield f"time: {_over_levels(by_metric[TPOT], _time_per_token)}"
    yield f"price: {_price(by_metric)}"
    for level, rounds in more_rounds.items():
        yield _undecided(level, rounds)


def rounds_needed(
    changes: Sequence[MetricChange], rounds: int, smallest: float
) -> Mapping[str, int]:
    """By level, how many more rounds decide, by an even chance, whether a token takes less time.

    The error falls with the square root of their number. A change above ``smallest`` is decided
    once its error is below it, and that of the difference below that, a smaller one once
    ``smallest`` can be ruled out. The change that more rounds find is as likely larger as smaller:
    hence the even chance. A level that is decided is absent, and so is one whose error is unknown.
    """
    needed = {}
    for one in changes:
        if one.metric != TPOT or one.effect is not None:
            continue
        if one.change is None or one.change.error is None:
            continue

        size = abs(one.change.value)
        target = size if size > smallest else smallest - size
        more = more_rounds(rounds, one.change, target)
        if size > smallest:
            more = max(more, rounds_for_difference(one, rounds))
        needed[str(one.level)] = more

    return {level: more for level, more in needed.items() if more > 0}


def more_rounds(rounds: int, interval: Interval, target: float) -> int:
    """How many rounds beyond these shrink its error to ``target``; 0 if it is small enough.

    At most ``_MOST_ROUNDS`` in total: see ``is_out_of_reach``.
    """
    error = interval.error or 0.0
    if error <= target:
        return 0

    left = target - interval.lasting
    scatter = error - interval.lasting
    total = rounds * (scatter / left) ** 2 if left > 0 else float(_MOST_ROUNDS)
    return max(min(ceil(total), _MOST_ROUNDS) - rounds, 0)


def rounds_for_difference(one: MetricChange, rounds: int) -> int:
    """How many more rounds would make the difference clear; 0 if it is, or has no error."""
    if one.difference is None or one.difference.error is None:
        return 0
    return more_rounds(rounds, one.difference, abs(one.difference.value))


def is_out_of_reach(rounds: int) -> bool:
    """Whether so many more rounds are too many to advise."""
    return rounds >= _MOST_ROUNDS // 2


def _undecided(level: str, rounds: int) -> str:
    if is_out_of_reach(rounds):
        return (
            f"time at {level} is not decided, and the difference is too small for this machine,"
            " or these two, to show it"
        )
    return f"time at {level} is not decided: {even_chance(rounds)}"


def even_chance(rounds: int) -> str:
    """What so many more rounds promise."""
    verb = "decides" if rounds == 1 else "decide"
    return f"an even chance that {counted(rounds, 'more round')} {verb} it"


def _acceptance(by_metric: Mapping[str, Sequence[MetricChange]]) -> str:
    rates = by_metric["acceptance"]
    if all(one.before is None and one.after is None for one in rates):
        return "neither of the two drafts"
    if all(one.before is None or one.after is None for one in rates):
        return "only one of the two drafts"
    if all(one.change is None for one in rates):  # another number of draft tokens
        return _over_levels(by_metric["length"], _tokens_per_step)
    return _over_levels(rates, _accepted)


def _over_levels(changes: Sequence[MetricChange], sentence: Callable[[MetricChange], str]) -> str:
    """A metric's sentence at each level."""
    return "; ".join(f"{sentence(one)} at {one.level}" for one in changes)


def _accepted(one: MetricChange) -> str:
    return _moved(one, percent)


def _tokens_per_step(one: MetricChange) -> str:
    return _moved(one, METRICS["length"].shown, " tokens per step")


def _time_per_token(one: MetricChange) -> str:
    if one.difference is None:
        return _moved(one, _milliseconds, " per token")
    size = f"{latency(abs(one.difference.value))} ± {latency(one.difference.error or 0.0)}"
    if one.effect is None:
        sign = "-" if one.difference.value < 0 else ""
        return f"no clear difference per token ({sign}{size})"
    verb = "saves" if one.effect == "faster" else "costs"
    return f"{verb} {size} per token ({_moved(one, _milliseconds)})"


def _milliseconds(seconds: float | None) -> str:
    """As exact as in the table, so that a change follows from the numbers beside it."""
    return "-" if seconds is None else f"{milliseconds(seconds)} ms"


def _moved(one: MetricChange, show: Callable[[float | None], str], unit: str = "") -> str:
    if one.before is None and one.after is None:
        return "not measured"

    before = show(one.before.value if one.before is not None else None)
    after = show(one.after.value if one.after is not None else None)
    if one.effect is not None:
        change = f" ({one.change.value:+.0%})" if one.change is not None else ""
        return f"{before} became {after}{unit}{change}"

    return f"{_why_unclear(one)} ({before} and {after}{unit})"


def _why_unclear(one: MetricChange) -> str:
    """What keeps a metric that at least one side has from being a change."""
    if one.before is None or one.after is None:
        return "measured on one side only"
    if one.difference is not None:
        return "no clear difference"
    return "not compared" if one.change is None else "not tested"


def _price(by_metric: Mapping[str, Sequence[MetricChange]]) -> str:
    """What became clearly worse, or that nothing did."""
    worse = []
    tested = []
    is_compared = False
    for metric, name in _PRICES.items():
        changes = by_metric.get(metric, ())
        if any(one.change is not None for one in changes):
            is_compared = True
        if any(one.difference is not None for one in changes):
            tested.append(name)

        show = _milliseconds if metric == TTFT else METRICS[metric].shown
        worse += [
            f"{name}: {_moved(one, show)} at {one.level}" for one in changes if _is_worse(one)
        ]

    if worse:
        return "; ".join(worse)
    if tested:
        return f"no clear loss in {', '.join(tested)}"
    return "not tested" if is_compared else "not compared"


def _is_worse(one: MetricChange) -> bool:
    more_is_worse = one.metric == "preemptions/request"
    if more_is_worse:
        return one.effect == "higher"
    return one.effect in {"slower", "lower"}
