"""How many tokens to speculate, from the acceptance rate and how it falls from position to position."""

from collections.abc import Sequence


def tokens_advice(acceptance: float, position_rates: Sequence[float], *, fewer: float, more: float) -> str | None:
    """What to change about the number of speculative tokens; None if it fits.

    ``position_rates[p]`` is the acceptance rate at draft position p, out of all drafts; empty if unknown. Below an
    acceptance rate of ``fewer`` the advice is fewer tokens, above ``more`` it is more.
    """
    text = f"Acceptance {acceptance:.2f}: speculate"
    if acceptance > more:
        return f"{text} more tokens, as long as latency under load allows."
    if acceptance >= fewer:
        return None
    worth = sum(1 for rate in position_rates if rate >= fewer)  # rates fall from position to position
    if worth == len(position_rates):
        return f"{text} fewer tokens."
    at = f"the next one is accepted only {position_rates[worth]:.0%} of the time"
    return f"{text} fewer tokens: {worth} instead of {len(position_rates)}; {at}."
