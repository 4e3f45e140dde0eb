"""How many tokens to speculate: by time per token if that is known, else by acceptance rate (docs/speedup.md).

The step time with k draft tokens is assumed to be S0 + k (S - S0) / K, a line from the plain step to the one measured
with K. This spreads the fixed cost of drafting over the draft tokens, so it slightly favours few of them.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final

from sidecar.analysis.speed.steps import StepCosts

_WORTH: Final = 0.03  # share of the time per token that a change must save
_VARIES: Final = 0.25  # if drafts are on average this far below the number of positions, K varies or they are cut short


def token_seconds(rates: Sequence[float], costs: StepCosts) -> list[float]:
    """The expected seconds per token with 0, 1, 2, … draft tokens.

    ``rates[i]`` is the share of drafts that accept the token at position i, so k tokens give 1 + rates[0] + … +
    rates[k - 1] per step, if every step has a draft.
    """
    lengths = accumulate(rates, initial=1.0)
    return [costs.step(tokens) / length for tokens, length in enumerate(lengths)]


def tokens_advice(acceptance: float, position_rates: Sequence[float], *, fewer: float, more: float) -> str | None:
    """What to change about the number of speculative tokens; None if it fits.

    ``position_rates[p]`` is the acceptance rate at draft position p; empty if unknown. Below an acceptance rate of
    ``fewer`` the advice is fewer tokens, above ``more`` it is more.
    """
    text = f"Acceptance rate {acceptance:.2f}:"
    if acceptance > more:
        return f"{text} speculate more tokens, as long as latency under load allows."
    if acceptance >= fewer:
        return None
    worth = sum(1 for rate in position_rates if rate >= fewer)  # rates fall from position to position
    if worth == len(position_rates):
        return f"{text} speculate fewer tokens."
    at = f"is accepted only {position_rates[worth]:.0%} of the time"
    if worth == 0:
        return f"{text} turn speculation off, or use another draft model: even the first token {at}."
    return f"{text} speculate fewer tokens, {worth} instead of {len(position_rates)}: the next one {at}."


def timed_advice(rates: Sequence[float], costs: StepCosts, *, can_schedule: bool) -> str | None:
    """Advises a smaller number of draft tokens for this load; None if it would gain too little.

    Also None if their number varies: rates out of all drafts, as vLLM's counters give, say nothing about shorter ones.
    ``can_schedule``: vLLM can let their number follow the batch size.
    """
    if not rates or costs.drafted < len(rates) - _VARIES:
        return None
    seconds = token_seconds(rates, costs)
    best, least, now = seconds.index(min(seconds)), _ms(min(seconds)), _ms(seconds[-1])
    if min(seconds) > (1 - _WORTH) * seconds[-1]:
        return None
    if best == 0:
        how = "only at lower loads (num_speculative_tokens_per_batch_size)" if can_schedule else "with fewer requests"
        text = f"At this load a token takes {least} without speculation and {now} with it"
        return f"{text}: speculate {how}, or not at all."
    return (
        f"Set num_speculative_tokens to {best} instead of {len(rates)}: "
        f"about {least} per token instead of {now} at this load."
    )


def schedule(
    rates: Sequence[float], loads: Mapping[int, StepCosts], *, varies: bool = False
) -> list[tuple[int, int, int]]:
    """The best number of draft tokens for ranges of running requests, as vLLM's num_speculative_tokens_per_batch_size.

    ``loads`` has costs by the highest number of running requests that they apply to, ascending. Empty if nothing is
    known or one number is best for all loads. ``varies``: a schedule is in force, and ``rates`` are out of the drafts
    that had a token at the position.
    """
    entries: list[tuple[int, int, int]] = []
    for highest, costs in loads.items():
        if not rates or (not varies and costs.drafted < len(rates) - _VARIES):
            return []
        seconds = token_seconds(rates, costs)
        tokens = seconds.index(min(seconds))
        if entries and entries[-1][2] == tokens:
            entries[-1] = (entries[-1][0], highest, tokens)
        else:
            entries.append((entries[-1][1] + 1 if entries else 1, highest, tokens))
    return entries if len(entries) > 1 else []


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
