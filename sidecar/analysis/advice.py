"""How many tokens to speculate: by time per token if that is known, else by acceptance rate.

See docs/speedup.md. The step time with k draft tokens is assumed to be S0 + k (S - S0) / K, a line
from the plain step to the one measured with K. This spreads the fixed cost of drafting over the
draft tokens, so it slightly favours few of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, groupby
from math import ceil
from operator import itemgetter
from typing import Final

from sidecar.analysis.evidence import Acceptance, Evidence
from sidecar.analysis.speed.steps import StepCosts
from sidecar.settings.groups import Thresholds

# if drafts are on average this far below the number of positions, K varies or they are cut short
_VARIES: Final = 0.25
_TOLD_APART: Final = 2  # draft tokens, from which on one's time is not all of drafting's
_NEAR: Final = 2.0  # times the number of running requests, or a part of it, that is a usual swing


def token_seconds(rates: Sequence[float], costs: StepCosts) -> list[float]:
    """The expected seconds per token with 0, 1, 2, … draft tokens.

    ``rates[i]`` is the share of drafts that accept the token at position i, so k tokens give 1 +
    rates[0] + … + rates[k - 1] per step, if every step has a draft. A rate above the one before it
    is of other requests, which had longer drafts under a schedule: in one draft, no token is
    accepted after one that is not.
    """
    lengths = accumulate(accumulate(rates, min), initial=1.0)
    return [costs.step(tokens) / length for tokens, length in enumerate(lengths)]


class Direction(StrEnum):
    """Which way to change the number of draft tokens."""

    MORE = "more"
    FEWER = "fewer"
    NONE = "none"  # do not speculate at this load


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensAdvice:
    """What to change about the number of draft tokens.

    It is ``now``; ``best`` would be better, None if unknown. By time: a token takes
    ``best_seconds`` with ``best``, ``now_seconds`` with ``now`` and ``plain_seconds`` without a
    draft. Otherwise by ``acceptance``, the acceptance rate, and ``next_rate``, that of the first
    position that is not worth drafting, if known.
    """

    direction: Direction
    now: int
    best: int | None = None
    acceptance: float | None = None
    next_rate: float | None = None
    best_seconds: float | None = None
    now_seconds: float | None = None
    plain_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """How many tokens to draft: one number for all loads, and one for each load if that varies.

    ``schedule`` is vLLM's ``num_speculative_tokens_per_batch_size``: first and last number of
    running requests, and draft tokens. ``fitting`` is the number of draft tokens, where by time no
    other one would save what is worthwhile; None where that is not known.
    """

    tokens: TokensAdvice | None = None
    schedule: tuple[tuple[int, int, int], ...] = ()
    can_schedule: bool = False  # whether vLLM is known to follow one with this method
    fitting: int | None = None


def advise(
    evidence: Evidence,
    judged: Acceptance,
    thresholds: Thresholds,
    *,
    wanted: Direction | None,
    before: Advice | None = None,
) -> Advice:
    """Advises by time per token if step times are known, else by acceptance.

    If there is a schedule, advises on that only. The step times are of the recent window, so what
    was accepted in them is, too. ``wanted`` is what the judgement makes of the acceptance rate;
    advice that was given ``before`` stays until it would gain less than half of what is worthwhile.
    """
    if not evidence.is_ruled:
        return Advice()

    loads = evidence.costs_by_load if evidence.can_schedule and evidence.costs is not None else {}
    rates = emitted_rates(judged.position_rates, evidence.emitted_share)
    best = schedule(rates, loads, varies=evidence.has_schedule)
    entries = tuple(_without_flapping(best, evidence.running))
    if evidence.has_schedule:
        return Advice(schedule=entries, can_schedule=evidence.can_schedule)

    tokens = None
    fitting = None
    if evidence.costs is not None:
        was_advised = before is not None and before.tokens is not None
        worthwhile = thresholds.worthwhile / 2 if was_advised else thresholds.worthwhile
        recent = emitted_rates(evidence.window.position_rates, evidence.emitted_share)
        tokens = timed_advice(recent, evidence.costs, worthwhile)
        fitting = len(recent) if fits(recent, evidence.costs, worthwhile) else None

    # by time, fewer tokens would have been advised; or it is known that more would not help
    is_by_time = evidence.costs is not None
    is_refuted = fitting is not None or (is_by_time and wanted is Direction.FEWER)
    if tokens is None and not is_refuted:
        least = thresholds.acceptance_fewer_tokens
        tokens = tokens_advice(judged.rate or 0.0, rates, wanted, least=least)

    return Advice(
        tokens=tokens,
        schedule=entries,
        can_schedule=evidence.can_schedule,
        fitting=None if entries else fitting,
    )


def emitted_rates(rates: Sequence[float], emitted_share: float | None) -> tuple[float, ...]:
    """The acceptance rates by position without the tokens that no request got.

    Where a request stops inside a draft, vLLM also counts the accepted tokens after it. A stop cuts
    off a token the likelier the later its position, so each position loses in proportion to it.
    """
    if emitted_share is None or emitted_share >= 1:
        return tuple(rates)

    weighted = sum(position * rate for position, rate in enumerate(rates, start=1))
    lost = (1 - emitted_share) * sum(rates) / weighted if weighted else 0.0
    return tuple(
        max(rate * (1 - lost * position), 0.0) for position, rate in enumerate(rates, start=1)
    )


def tokens_advice(
    acceptance: float, rates: Sequence[float], wanted: Direction | None, *, least: float
) -> TokensAdvice | None:
    """What to change about the number of speculative tokens; None if it fits.

    ``rates[p]`` is the acceptance rate at draft position p; empty if unknown. A position with less
    than ``least`` is not worth drafting.
    """
    now = len(rates)
    if wanted is Direction.MORE:
        return TokensAdvice(direction=Direction.MORE, now=now, acceptance=acceptance)
    if wanted is None:
        return None

    worth = sum(1 for rate in rates if rate >= least)  # rates fall from position to position
    if worth == now:
        return TokensAdvice(direction=Direction.FEWER, now=now, acceptance=acceptance)

    return TokensAdvice(
        direction=Direction.FEWER if worth else Direction.NONE,
        now=now,
        best=worth,
        acceptance=acceptance,
        next_rate=rates[worth],
    )


def timed_advice(
    rates: Sequence[float], costs: StepCosts, worthwhile: float
) -> TokensAdvice | None:
    """Advises a smaller number of draft tokens for this load; None if it would gain too little.

    ``worthwhile`` is the share of the time per token that it must save.

    Also None if their number varies: rates out of all drafts, as vLLM's counters give, say nothing
    about shorter ones.
    """
    seconds = _comparable(rates, costs)
    if not seconds or min(seconds) > (1 - worthwhile) * seconds[-1]:
        return None

    best = seconds.index(min(seconds))
    return TokensAdvice(
        direction=Direction.FEWER if best else Direction.NONE,
        now=len(rates),
        best=best,
        best_seconds=seconds[best],
        now_seconds=seconds[-1],
        plain_seconds=seconds[0],
    )


def fits(rates: Sequence[float], costs: StepCosts, worthwhile: float) -> bool:
    """Whether no other number of draft tokens would save ``worthwhile`` of the time per token.

    For fewer, the rates tell. A further token is accepted at most as often as the last one, so
    with more a token takes no less than now, or than a draft token's time / that rate. Of one token
    that time has all that drafting costs in any case, so nothing is said of more.
    """
    seconds = _comparable(rates, costs)
    if len(rates) < _TOLD_APART or not seconds:
        return False
    saved = (1 - worthwhile) * seconds[-1]
    each = costs.step(1) - costs.step(0)
    return min(seconds) > saved and each > saved * min(rates)


def _comparable(rates: Sequence[float], costs: StepCosts) -> list[float]:
    """The seconds per token by number of draft tokens; empty if unknown, or if it varies."""
    if not rates or costs.drafted < len(rates) - _VARIES:
        return []
    return token_seconds(rates, costs)


def schedule(
    rates: Sequence[float], loads: Mapping[int, StepCosts], *, varies: bool = False
) -> list[tuple[int, int, int]]:
    """The best number of draft tokens for ranges of running requests.

    It has the form of vLLM's num_speculative_tokens_per_batch_size. ``loads`` has costs by the
    highest number of running requests that they apply to, ascending. Empty if nothing is known or
    one number is best for all loads. ``varies``: a schedule is in force, and ``rates`` are out of
    the drafts that had a token at the position.
    """
    best: dict[int, int] = {}
    for highest, costs in loads.items():
        if not rates or (not varies and costs.drafted < len(rates) - _VARIES):
            return []
        seconds = token_seconds(rates, costs)
        best[highest] = seconds.index(min(seconds))

    entries = []
    first = 1
    for tokens, alike in groupby(best, key=best.__getitem__):
        *_, last = alike
        entries.append((first, last, tokens))
        first = last + 1

    return entries if len(entries) > 1 else []


def _without_flapping(
    entries: Sequence[tuple[int, int, int]], usual: float | None
) -> list[tuple[int, int, int]]:
    """The schedule, drafting one token near the ``usual`` number of running requests, not none.

    vLLM looks the number up at each step, by all requests in it: around the load at which drafting
    ends, it would draft at one step and not at the next, which costs more than either.
    """
    kept: list[tuple[int, int, int]] = []
    for first, last, tokens in entries:
        flaps = tokens == 0 and usual is not None and first / _NEAR <= usual <= first * _NEAR
        if not flaps or usual is None:
            kept.append((first, last, tokens))
            continue

        end = min(ceil(usual * _NEAR), last)
        kept.append((first, end, 1))
        if end < last:
            kept.append((end + 1, last, 0))

    return _joined(kept)


def _joined(entries: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """The entries, those next to each other with the same number as one; empty if one is left."""
    joined = []
    for tokens, alike in groupby(entries, key=itemgetter(2)):
        stretch = list(alike)
        joined.append((stretch[0][0], stretch[-1][1], tokens))
    return joined if len(joined) > 1 else []
