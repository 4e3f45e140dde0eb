"""The advice on how many tokens to draft, in sentences."""

from typing import Final

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.wording.numbers import counted, percent

THEN_RESTART: Final = "Then restart vLLM."  # after what was pasted
_IN_STEPS: Final = "in steps that prefill nothing"


def schedule_sentence(advice: Advice) -> str:
    """How many tokens to draft at each load; empty if one number is best for all."""
    if not advice.schedule:
        return ""
    entries = [list(entry) for entry in advice.schedule]
    flaps = ""
    if any(tokens == 0 for *_, tokens in advice.schedule):
        flaps = (
            " Keep the load at which it reaches 0 away from the usual one: there vLLM would draft"
            " at one step and not at the next, which halved the throughput in vLLM issue 49548."
        )
    return (
        f'To follow the load, set `"num_speculative_tokens_per_batch_size": {entries}`. vLLM'
        " ignores it with data parallelism, and gives up full CUDA graphs for it on model"
        f" runner V1.{flaps}"
    )


def tokens_sentence(advice: Advice) -> str:
    """How many tokens to draft at every load; empty if there is nothing to change."""
    tokens = advice.tokens
    if tokens is None:
        return ""
    return _by_acceptance(tokens) if tokens.best_seconds is None else _by_time(tokens, advice)


def _by_acceptance(tokens: TokensAdvice) -> str:
    text = f"Acceptance rate {percent(tokens.acceptance)}:"
    if tokens.direction is Direction.MORE:
        return f"{text} speculate more tokens, as long as latency under load allows."
    if tokens.next_rate is None:
        return f"{text} speculate fewer tokens."

    at = f"is accepted only {percent(tokens.next_rate)} of the time"
    if tokens.direction is Direction.NONE:
        return (
            f"{text} turn speculation off, or use another draft model: even the first token {at}."
        )

    return (
        f"{text} speculate fewer tokens, {tokens.best} instead of {tokens.now}: draft token"
        f" {(tokens.best or 0) + 1} {at}."
    )


def _by_time(tokens: TokensAdvice, advice: Advice) -> str:
    best = f"{1000 * (tokens.best_seconds or 0):.3g} ms"
    now = f"{1000 * (tokens.now_seconds or 0):.3g} ms"
    plain = ""
    if tokens.plain_seconds is not None:
        plain = f"; {1000 * tokens.plain_seconds:.3g} ms without speculation"

    if tokens.direction is Direction.NONE:
        how = "only at lower loads (num_speculative_tokens_per_batch_size)"
        how = how if advice.can_schedule else "with fewer requests"
        text = f"about {best} per token without speculation and {now} with it at this load"
        return f"{_IN_STEPS[:1].upper()}{_IN_STEPS[1:]}, {text}: speculate {how}, or not at all."

    return (
        f"{counted(tokens.best or 0, 'draft token')} instead of {tokens.now}: {_IN_STEPS}, about"
        f" {best} per token instead of {now} at this load{plain}."
    )


def fitting_sentence(advice: Advice | None) -> str:
    """That the number of draft tokens is right; empty where that is not known."""
    if advice is None or advice.fitting is None:
        return ""
    return (
        f"num_speculative_tokens {advice.fitting} fits: by the measured step times, neither fewer"
        " nor more would save time worth a change at this load."
    )
