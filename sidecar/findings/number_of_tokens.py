"""``too_many_tokens`` and ``too_few_tokens``: another number of draft tokens would be better."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.report import ModelReport
from sidecar.findings.explanation import Explanation, speculation_of
from sidecar.findings.finding import Finding
from sidecar.findings.kind import FindingKind, Place
from sidecar.findings.load import LOAD
from sidecar.findings.long_contexts import LONG_CONTEXTS
from sidecar.findings.paste import changed_config, verification
from sidecar.findings.room import is_short_of_room
from sidecar.requests.messages import Speculation
from sidecar.settings.groups import Thresholds
from sidecar.wording.advice import schedule_sentence, tokens_sentence

_FEWER: Final = "too_many_tokens"
_MORE: Final = "too_few_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOfTokens(Finding):
    """The better number of draft tokens, by time if that is known, else by acceptance."""

    tokens: TokensAdvice

    @property
    def is_sure(self) -> bool:
        """Whether fewer tokens, and some, save time by the steps that were measured."""
        tokens = self.tokens
        return tokens.direction is Direction.FEWER and tokens.best_seconds is not None


def too_many_tokens(model: ModelReport, _: Thresholds) -> Iterator[NumberOfTokens]:
    """The model's advice on the number of tokens, if it asks for fewer."""
    tokens = _advised_tokens(model)
    if tokens is not None and tokens.direction is not Direction.MORE:
        yield NumberOfTokens(code=_FEWER, tokens=tokens, cost=_cost(tokens))


def too_few_tokens(model: ModelReport, _: Thresholds) -> Iterator[NumberOfTokens]:
    """The model's advice on the number of tokens, if it asks for more.

    Not where repetition loops matter: these are easy to draft, so they ask for more than other text
    can use. Nor while requests wait for room, which more draft tokens would take.
    """
    has_loops = model.judgement.evidence.loops is not None
    if has_loops or is_short_of_room(model):
        return

    tokens = _advised_tokens(model)
    if tokens is not None and tokens.direction is Direction.MORE:
        yield NumberOfTokens(code=_MORE, tokens=tokens, cost=_cost(tokens))


def _advised_tokens(model: ModelReport) -> TokensAdvice | None:
    advice = model.advice
    return None if advice is None else advice.tokens


def _cost(tokens: TokensAdvice) -> float:
    if tokens.best_seconds is None or tokens.now_seconds is None:
        return 0.0
    return 1 - tokens.best_seconds / tokens.now_seconds


# -------------------------------------------------------------------------------------------------
# In words
# -------------------------------------------------------------------------------------------------

_BY_TIME: Final = (
    "These times follow from the acceptance rate by position and the measured step times."
)
_BY_ACCEPTANCE: Final = (
    "How much time it saves is known once there is a speedup, which needs a baseline."
)
_BY_SPEEDUP: Final = "The speedup after the change tells how much time it saves."


def _number_of_tokens(finding: NumberOfTokens, model: ModelReport) -> Explanation:
    advice = model.advice or Advice()
    expect = _BY_TIME
    if finding.tokens.best_seconds is None:
        expect = _BY_ACCEPTANCE if model.plain_steps is None else _BY_SPEEDUP

    return Explanation(
        code=finding.code,
        what=tokens_sentence(advice),
        remedy=f"{_change(finding.tokens)} {schedule_sentence(advice)}".strip(),
        expect=expect,
        verify=verification(model),
        config=_config(finding.tokens, speculation_of(model)),
    )


def _config(tokens: TokensAdvice, speculation: Speculation) -> str:
    if not tokens.best:  # unknown, or none
        return ""
    return changed_config(speculation, num_speculative_tokens=tokens.best)


def _change(tokens: TokensAdvice) -> str:
    if tokens.best is None:
        verb = "Raise" if tokens.direction is Direction.MORE else "Lower"
        return f"{verb} num_speculative_tokens in --speculative-config step by step."
    if tokens.best == 0:
        return "Remove --speculative-config, or use a draft model that accepts more."
    return f'Set `"num_speculative_tokens": {tokens.best}` in --speculative-config.'


_SAME_LOSS: Final = (LOAD, LONG_CONTEXTS)
TOO_MANY_TOKENS: Final = FindingKind(
    code=_FEWER,
    gate=too_many_tokens,
    place=Place.NUMBER,
    unless=_SAME_LOSS,
    explain=_number_of_tokens,
    why="the last draft tokens cost more than they gain",
    remedy="lower num_speculative_tokens",
    runbook="SpecDecodeAcceptanceLow",
)
TOO_FEW_TOKENS: Final = FindingKind(
    code=_MORE,
    gate=too_few_tokens,
    place=Place.NUMBER,
    unless=_SAME_LOSS,
    explain=_number_of_tokens,
    why="one more draft token would gain time",
    remedy="raise num_speculative_tokens",
    runbook="SpecDecodeBreakEven",
)
