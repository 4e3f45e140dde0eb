"""Findings on the number of draft tokens and on the load, in words."""

from typing import Final

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.findings.load import Load
from sidecar.analysis.findings.long_contexts import LongContexts
from sidecar.analysis.findings.number_of_tokens import (
    NumberOfTokens,
    TooFewTokens,
    TooManyTokens,
)
from sidecar.analysis.report import ModelReport
from sidecar.requests.messages import Speculation
from sidecar.wording.findings.explanation import Explanation, Words, speculation_of
from sidecar.wording.findings.paste import changed_config, verification
from sidecar.wording.notes import schedule_sentence, tokens_sentence

_BY_TIME: Final = (
    "The time per token follows from the acceptance rate by position and the measured step times."
)
_BY_ACCEPTANCE: Final = (
    "How much time it saves is known once there is a speedup, which needs a baseline."
)


def _number_of_tokens(finding: NumberOfTokens, model: ModelReport) -> Explanation:
    advice = model.advice or Advice()
    is_by_time = finding.tokens.best_seconds is not None

    return Explanation(
        code=finding.code,
        what=tokens_sentence(advice),
        remedy=f"{_change(finding.tokens)} {schedule_sentence(advice)}".strip(),
        expect=_BY_TIME if is_by_time else _BY_ACCEPTANCE,
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


TOO_MANY_TOKENS: Final = Words(
    kind=TooManyTokens,
    explain=_number_of_tokens,
    why="the last draft tokens cost more than they gain",
    remedy="lower num_speculative_tokens",
    runbook="SpecDecodeAcceptanceLow",
)
TOO_FEW_TOKENS: Final = Words(
    kind=TooFewTokens,
    explain=_number_of_tokens,
    why="one more draft token would gain time",
    remedy="raise num_speculative_tokens",
    runbook="SpecDecodeBreakEven",
)


def _load(finding: Load, model: ModelReport) -> Explanation:
    speedup = f"{finding.speedup:.2f} ± {CONFIDENCE * finding.error:.2f}"
    schedule = schedule_sentence(model.advice or Advice())

    return Explanation(
        code=finding.code,
        what=(
            f"With {finding.running:.0f} requests running, decoding is {speedup} times as fast as"
            f" without speculation. With {finding.fewer} it is {finding.speedup_at_fewer:.2f} times"
            " as fast."
        ),
        remedy=schedule or "Add pods, so that fewer requests run on each.",
        expect=(
            "At low load, verification uses compute that would be idle. At high load it takes it"
            " from other requests."
        ),
        verify=verification(model),
        config=_scheduled(model.advice, speculation_of(model)),
    )


def _scheduled(advice: Advice | None, speculation: Speculation) -> str:
    if advice is None or not advice.schedule:
        return ""
    entries = [list(entry) for entry in advice.schedule]
    return changed_config(speculation, num_speculative_tokens_per_batch_size=entries)


LOAD: Final = Words(
    kind=Load,
    explain=_load,
    why="pays only at a lower load",
    remedy="schedule draft tokens by batch size, or add pods",
    runbook="SpecDecodeSlowerThanPlain",
)


def _long_contexts(finding: LongContexts, model: ModelReport) -> Explanation:
    speedup = f"{finding.speedup:.2f} ± {CONFIDENCE * finding.error:.2f}"
    what = (
        f"With contexts of {finding.context} tokens, decoding is {speedup} times as fast as without"
        f" speculation. With {finding.shorter} it is {finding.speedup_at_shorter:.2f} times as"
        " fast."
    )
    expect = (
        "A step takes longer the more tokens it attends to, and verifying draft tokens lengthens it"
        " more than plain decoding."
    )
    if not finding.is_advice:
        why = f"{expect} Nothing to change: such contexts are too small a part."
        return Explanation.fact(finding.code, what, why)

    return Explanation(
        code=finding.code,
        what=what,
        remedy=(
            "Speculate fewer tokens. Only if that does not help, route requests with such contexts"
            " to pods that do not speculate."
        ),
        expect=expect,
        verify=verification(model),
    )


LONG_CONTEXTS: Final = Words(
    kind=LongContexts,
    explain=_long_contexts,
    why="pays only with shorter contexts",
    remedy="speculate fewer tokens",
    runbook="SpecDecodeSlowerThanPlain",
)

WORDS: Final = (TOO_MANY_TOKENS, TOO_FEW_TOKENS, LOAD, LONG_CONTEXTS)
