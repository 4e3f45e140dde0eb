"""What a finding means, what to change, what to expect of it, and how to verify it.

``docs/why.md`` says more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Final

from sidecar.analysis.advice import Advice, Direction, Finding, FindingCode, TokensAdvice
from sidecar.analysis.engine.cache import sum_caches
from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.findings import waiting_for_room
from sidecar.analysis.report import EngineReport, ModelReport
from sidecar.engine.methods import drafts_with_a_model
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.notes import schedule_sentence, tokens_sentence
from sidecar.wording.numbers import counted, percent

_VERIFY: Final = (
    "`specdec-sidecar sweep --url URL --prompts FILE --temperatures 0,0.7,1 --rounds 8 --duration"
    " 3h --save before.json`, the same with `--save after.json` after the change and the restart,"
    " then `specdec-sidecar compare before.json after.json`."
)


_BY_GROUP: Final = (
    f"{_VERIFY} For requests of this group, let `sweep` send their parameters with --extra-body."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A finding in words.

    ``what`` is seen, with numbers; ``remedy`` is the change, ``expect`` its likely effect,
    ``verify`` a command.
    """

    code: str = ""
    what: str
    remedy: str
    expect: str
    verify: str = _VERIFY


def explanations(model: ModelReport) -> list[Explanation]:
    """The model's findings in words, the most expensive first."""
    return [_explanation(finding, model) for finding in model.findings]


def _explanation(finding: Finding, model: ModelReport) -> Explanation:
    text, facts = _TEXTS[finding.code], _facts(finding, model)
    if finding.code is FindingCode.STRUCTURED_OUTPUT and finding.error is None:
        text = _FORBIDDEN
    what, remedy, expect = (part.format(**facts) for part in (text.what, text.remedy, text.expect))
    return replace(
        text, code=str(finding.code), what=what.strip(), remedy=remedy.strip(), expect=expect
    )


# ``_facts`` has what is in braces; some of it may be empty.
_NUMBER: Final = Explanation(what="{advice}", remedy="{number} {schedule}", expect="{basis}")
_TEXTS: Final = {
    FindingCode.TOO_MANY_TOKENS: _NUMBER,
    FindingCode.TOO_FEW_TOKENS: _NUMBER,
    FindingCode.GREEDY_DRAFTING: Explanation(
        what=(
            "Requests above temperature 0 accept {compared} at temperature 0{at}. vLLM drafts the"
            " draft model's likeliest token at every temperature, which a request that samples"
            " rejects often."
        ),
        remedy=(
            'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod: the'
            " draft then samples at the request's temperature. The distribution of the output"
            " stays the same{but}."
        ),
        expect=(
            "How much it gains depends on the two models. A draft close to its target went from 39%"
            " to 75% at T 1 in our lab; of published pairs, one accepted 7 to 11% more tokens per"
            " step, a weak one between 3% fewer and 4% more. {memory} Top-k and top-p shape only"
            " the target, so they shrink the gain."
        ),
    ),
    FindingCode.LOAD: Explanation(
        what=(
            "With {running} requests running, decoding is {speedup} times as fast as without"
            " speculation. With {fewer} it is {better} times as fast."
        ),
        remedy="{schedule_or_pods}",
        expect=(
            "At low load, verification uses compute that would be idle. At high load it takes it"
            " from other requests."
        ),
    ),
    FindingCode.LONG_PROMPTS: Explanation(
        what=(
            "Requests with prompts of {where} tokens accept {compared} with other prompt lengths at"
            " the same temperatures."
        ),
        remedy=(
            "Use a draft that was trained on such lengths{longest}, or route these requests to pods"
            " that do not speculate."
        ),
        expect="Heads and small drafts accept less beyond the lengths that they were trained on.",
    ),
    FindingCode.STRUCTURED_OUTPUT: Explanation(
        what=(
            "Requests with structured output accept {compared} without it at the same temperatures."
        ),
        remedy=(
            "Route these requests to pods that do not speculate, or that draft with n-gram or"
            " suffix decoding, which repeats keys and punctuation."
        ),
        expect=(
            "The drafter does not know the grammar, and vLLM drops the draft tokens that the"
            " grammar forbids."
        ),
        verify=_BY_GROUP,
    ),
    FindingCode.ADAPTER: Explanation(
        what="Requests with adapter {where} accept {compared} without it at the same temperatures.",
        remedy=(
            "Train a draft for this adapter, or route its requests to pods that do not speculate."
        ),
        expect="The draft was made for the base model and does not apply the adapter.",
    ),
    FindingCode.SAMPLING: Explanation(
        what="Requests with {parameters} accept {compared} without them at the same temperatures.",
        remedy=(
            "Ask the clients whether they need these parameters, or route these requests to pods"
            " that do not speculate."
        ),
        expect=(
            "These parameters shape the target's distribution alone: the drafter does not see them."
        ),
        verify=_BY_GROUP,
    ),
    FindingCode.ONE_ENGINE: Explanation(
        what=(
            "Requests on engine {where} accept {compared} on the other engines at the same"
            " temperatures and prompt lengths."
        ),
        remedy=(
            "Drain and restart this vLLM. If that does not help, compare the engine's configuration"
            " and GPU with those of the others."
        ),
        expect="The engines of one vLLM load the same draft, so a difference points to a fault.",
    ),
    FindingCode.MISMATCH: Explanation(
        what=(
            "Almost no draft tokens are accepted ({rate}), at any temperature and from the first"
            " position on. High temperatures alone do not cause this."
        ),
        remedy="{match}",
        expect=(
            "A draft that matches has its first token accepted far more often, even at high"
            " temperatures."
        ),
    ),
    FindingCode.NOT_SPECULATING: Explanation(
        what=(
            "{engines} generated {count} tokens and drafted none, although --speculative-config"
            " says {method}."
        ),
        remedy="Look in vLLM's log for what switched drafting off, and restart it.",
        expect="Until then the draft model takes memory and saves no time.",
    ),
    FindingCode.PREFIX_CACHE: Explanation(
        what=(
            "{rate} of the prompt tokens are found in the prefix cache. Up to {other} could be:"
            " with method {method}, vLLM recomputes the last block of each hit, here {where}"
            " tokens."
        ),
        remedy="{keep}",
        expect=(
            "Time to first token falls where prompts are shared; the time per token may rise with"
            " it or fall. vLLM calls the option experimental: without the block the draft head"
            " lacks its own states, so it may accept less."
        ),
    ),
    FindingCode.ROOM: Explanation(
        what="Engine {where} runs out of KV cache: {pressure}. {taken}",
        remedy=(
            "Raise --gpu-memory-utilization if memory is left, use a smaller draft or method, or"
            " add pods. To find out whether requests gain more from the draft than from the room,"
            " compare without it at this load."
        ),
        expect=(
            "A preempted request is computed again, and its client waits for that; no acceptance"
            " rate shows it."
        ),
    ),
}


_FORBIDDEN: Final = replace(
    _TEXTS[FindingCode.STRUCTURED_OUTPUT],
    what=(
        "Requests with structured output get no draft tokens: the grammar forbids all of them. Over"
        " all requests, vLLM accepts {other} of the draft tokens."
    ),
)


def _facts(finding: Finding, model: ModelReport) -> Mapping[str, str]:
    """What the texts need, ready to be put into a sentence."""
    engine = next(
        (engine for engine in model.engines if engine.speculation is not None), model.engines[0]
    )
    speculation = engine.speculation or Speculation(None, 0)
    longest = speculation.draft_max_model_len

    value, other = finding.value or 0.0, finding.other or 0.0
    interval = CONFIDENCE * (finding.error or 0.0)
    where = ", ".join(finding.where)
    pressed = [engine for engine in model.engines if engine.key.engine in finding.where]
    if finding.value is not None:
        taken = f"It is {percent(finding.value)} smaller than the baseline's."
    else:
        taken = f"The draft takes about {percent(other)} of it, by its share of the layers."

    advice = model.advice or Advice()
    schedule = schedule_sentence(advice)
    is_by_time = advice.tokens is not None and advice.tokens.best_seconds is not None

    return {
        "where": where,
        "rate": percent(value),
        "other": percent(other),
        "compared": (
            f"{percent(value)} of their draft tokens, {100 * (other - value):.0f} ±"
            f" {100 * interval:.0f} points less than the {percent(other)} of those"
        ),
        "at": f" (T {where})" if where else "",
        "but": _BIASED if engine.configuration.async_scheduling is False else "",
        "memory": _memory(engine.configuration, speculation),
        "advice": tokens_sentence(advice),
        "number": _number(advice.tokens),
        "basis": _BY_TIME if is_by_time else _BY_ACCEPTANCE,
        "schedule": schedule,
        "schedule_or_pods": schedule or "Add pods, so that fewer requests run on each.",
        "running": finding.where[-1] if finding.where else "",
        "fewer": finding.where[0] if finding.where else "",
        "speedup": f"{value:.2f} ± {interval:.2f}",
        "better": f"{other:.2f}",
        "longest": f" ({longest:,} tokens)" if longest else "",
        "parameters": _PARAMETERS.get(where, where),
        "match": _match(engine.configuration, speculation),
        "engines": f"Engine{'s' * (len(finding.where) > 1)} {where}",
        "count": f"{value:,.0f}",
        "method": speculation.method or "an unknown method",
        "keep": _KEEP if speculation.keeps_last_block is not None else _CANNOT_KEEP,
        "pressure": _pressure(pressed),
        "taken": taken,
    }


_BIASED: Final = (
    ", except for structured output: without async scheduling, vLLM drops the draft tokens that the"
    " grammar forbids before it verifies, which biases the tokens that take their place"
)
_BY_TIME: Final = (
    "The time per token follows from the acceptance rate by position and the measured step times."
)
_BY_ACCEPTANCE: Final = (
    "How much time it saves is known once there is a speedup, which needs a baseline."
)
_KEEP: Final = (
    'Try `"disable_eagle_block_drop": true` in --speculative-config on one pod, and compare.'
)
_CANNOT_KEEP: Final = (
    "Upgrade to vLLM 0.32 or later, which has `disable_eagle_block_drop`, or make shared prefixes"
    " longer."
)
_LOGIT_BYTES: Final = 4  # of a draft that samples: vLLM keeps its logits until verification
_PARAMETERS: Final = {
    "filtered": "top-k, top-p or min-p",
    "penalties": "presence, frequency or repetition penalties",
}


def _pressure(engines: Sequence[EngineReport]) -> str:
    preempted = sum_caches(engine.cache for engine in engines).preemptions
    waiting = sum(map(waiting_for_room, engines))
    seen = [] if isnan(preempted) else [f"{counted(preempted, 'preemption')} in the window"]
    return ", ".join([*seen, f"{counted(waiting, 'request')} waiting for room"])


def _memory(configuration: Configuration, speculation: Speculation) -> str:
    """The price of sampling the draft."""
    size = ""
    if configuration.max_num_seqs and configuration.vocabulary:
        logits = (
            configuration.max_num_seqs
            * speculation.num_speculative_tokens
            * configuration.vocabulary
        )
        size = f" up to {logits * _LOGIT_BYTES / 2**30:.1f} GiB of"

    text = f"The draft's logits take{size} GPU memory."
    if configuration.model_runner_v2:
        return text

    return (
        f"{text} On model runner V1, vLLM's memory profiling leaves them out, so lower"
        " --gpu-memory-utilization by as much, and a request's seed no longer makes its output"
        " reproducible."
    )


def _number(tokens: TokensAdvice | None) -> str:
    if tokens is None or tokens.best is None:
        verb = "Raise" if tokens is not None and tokens.direction is Direction.MORE else "Lower"
        return f"{verb} num_speculative_tokens in --speculative-config step by step."
    if tokens.best == 0:
        return "Remove --speculative-config, or use a draft model that accepts more."
    return f'Set `"num_speculative_tokens": {tokens.best}` in --speculative-config.'


def _match(configuration: Configuration, speculation: Speculation) -> str:
    if not drafts_with_a_model(speculation.method):
        return (
            "Nothing in such text helps to guess what follows: draft with a model, or remove"
            " --speculative-config."
        )
    target, draft = configuration.quantization or "none", speculation.draft_quantization or "none"
    longest = ""
    if speculation.draft_max_model_len is not None and not configuration.model_runner_v2:
        longest = (
            " On model runner V1, no draft token of a batch is accepted while one of its requests"
            f" is longer than the draft's longest length, here {speculation.draft_max_model_len:,}"
            " tokens."
        )
    return (
        "Restart vLLM. If that does not help, check that the draft was made for this target: its"
        f" vocabulary, chat template, quantization (target: {target}, draft: {draft}) and vLLM's"
        f" version.{longest} Until then remove --speculative-config."
    )
