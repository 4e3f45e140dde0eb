"""How many tokens to speculate, from the acceptance rate and how it falls from position to position."""

from collections.abc import Sequence

from sidecar.analysis.draft_length import extrapolated


def tokens_advice(
    acceptance: float, position_rates: Sequence[float], *, fewer: float, more: float, alone: bool = False
) -> str | None:
    """What to change about the number of speculative tokens; None if it fits.

    ``position_rates[p]`` is the acceptance rate at draft position p, out of all drafts; empty if unknown. Below an
    acceptance rate of ``fewer`` the advice is fewer tokens, above ``more`` it is more. ``alone``: it is about one
    temperature, whose engine serves others too, so nothing is to be set.
    """
    text = f"Acceptance {acceptance:.2f}: speculate"
    if alone:
        text = f"At this temperature alone, an acceptance of {acceptance:.2f} suggests"
    if acceptance < fewer:
        return _fewer(f"{text} fewer tokens", position_rates, fewer)
    if acceptance > more:
        return _more(f"{text} more tokens", position_rates, fewer)
    return None


def _fewer(text: str, rates: Sequence[float], worthwhile: float) -> str:
    if not rates:
        return f"{text}."
    worth = sum(1 for rate in rates if rate >= worthwhile)  # rates fall from position to position
    if worth == 0:
        return f"{text}, or none: even the first one is accepted only {rates[0]:.0%} of the time."
    if worth == len(rates):
        return f"{text}."
    return f"{text}: {worth} instead of {len(rates)}; the next one is accepted only {rates[worth]:.0%} of the time."


def _more(text: str, rates: Sequence[float], worthwhile: float) -> str | None:
    if not rates or not 0 < rates[-1] < 1:
        return f"{text}."
    beyond = extrapolated(rates)[len(rates) :]
    count = len(rates) + sum(rate >= worthwhile for rate in beyond)  # they fall from position to position
    if count == len(rates):
        return None
    return f"{text}: up to {count} instead of {len(rates)}, as long as latency under load allows."
