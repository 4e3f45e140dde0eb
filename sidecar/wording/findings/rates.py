"""Findings on requests that accept less than others, in words."""

from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.findings.greedy_drafting import GreedyDrafting
from sidecar.analysis.findings.groups import (
    Adapter,
    ForbiddenDrafts,
    GroupAcceptsLess,
    LongPrompts,
    Sampling,
    StructuredOutput,
)
from sidecar.analysis.findings.one_engine import OneEngine
from sidecar.analysis.findings.rates import LowerAcceptance
from sidecar.analysis.report import ModelReport
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.findings.explanation import (
    Explanation,
    Words,
    speculating_engine,
    speculation_of,
)
from sidecar.wording.findings.paste import changed_config, verification
from sidecar.wording.numbers import memory_size, percent

_LOGIT_BYTES: Final = 4  # of a draft that samples: vLLM keeps its logits until verification
_RUNBOOK_OF_A_PART: Final = "SpecDecodeAcceptanceP10Low"


def _rates(finding: LowerAcceptance) -> str:
    """Both acceptance rates and their difference; the sentence goes on with whose they are."""
    points = 100 * (finding.others - finding.rate)
    interval = 100 * CONFIDENCE * finding.error
    return (
        f"{percent(finding.rate)} of their draft tokens, {points:.0f} ± {interval:.0f} points less"
        f" than the {percent(finding.others)} of those"
    )


def _without_advice(finding: LowerAcceptance) -> str:
    """Why there is nothing to change."""
    if finding.break_even is None:
        return (
            "Whether these requests lose is not known: the acceptance rate does not tell with this"
            " method. Measure a baseline with `specdec-sidecar baseline`."
        )
    return (
        "Nothing to change: these requests still gain, since speculation breaks even at"
        f" {percent(finding.break_even)}."
    )


_BIASED: Final = (
    ", except for structured output: without async scheduling, vLLM drops the draft tokens that the"
    " grammar forbids before it verifies, which biases the tokens that take their place"
)


def _greedy_drafting(finding: GreedyDrafting, model: ModelReport) -> Explanation:
    at = f" (T {', '.join(finding.temperatures)})" if finding.temperatures else ""
    positions = ", ".join(percent(rate) for rate in finding.position_rates)
    by_position = f"; by position {positions}" if positions else ""
    engine = speculating_engine(model)
    but = _BIASED if engine.configuration.async_scheduling is False else ""
    speculation = speculation_of(model)

    return Explanation(
        code=finding.code,
        what=(
            f"Requests above temperature 0{at} accept {percent(finding.rate)} of their draft tokens"
            f"{_below_cold(finding, model)}{by_position}. vLLM drafts the draft model's likeliest"
            " token at every temperature, which a request that samples rejects often."
        ),
        remedy=(
            'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod: the'
            " draft then samples at the request's temperature. The distribution of the output"
            f" stays the same{but}."
        ),
        expect=f"{_range(finding)} {_memory(engine.configuration, speculation)}",
        verify=verification(model, finding.temperatures),
        config=changed_config(speculation, draft_sample_method="probabilistic"),
    )


def _below_cold(finding: GreedyDrafting, model: ModelReport) -> str:
    if finding.cold_rate is None or finding.error is None:
        return ""
    has_loops = model.judgement.evidence.loops is not None
    which = " without replies that repeat themselves" if has_loops else ""
    points = 100 * (finding.cold_rate - finding.rate)
    interval = 100 * CONFIDENCE * finding.error
    return (
        f", {points:.0f} ± {interval:.0f} points less than the {percent(finding.cold_rate)} at"
        f" temperature 0{which}"
    )


def _range(finding: GreedyDrafting) -> str:
    """How much the change may gain: from this engine's own rates, else what others measured."""
    now = f"{finding.length:.2f} tokens per step now"
    if finding.is_bound_measured:
        more = percent(finding.length_at_most / finding.length - 1)
        text = (
            f"Expect up to {more} more tokens per step ({now}, {finding.length_at_most:.2f} at"
            " temperature 0 here); with a weak draft up to 3% fewer."
        )
    else:
        text = (
            f"How much it gains here is not known ({now}). Of published pairs, one gained 7 to 11%,"
            " a weak one nothing; the draft of our lab, close to its target, went from 39% to 75%"
            " accepted at T 1."
        )
    if finding.is_filtered:
        text += (
            " Most of these requests use top-k, top-p or min-p, which shape only the target and"
            " shrink the gain: with top-k 20 and top-p 0.8, 44% became 67% at T 1."
        )

    return text


def _memory(configuration: Configuration, speculation: Speculation) -> str:
    """The price of sampling the draft."""
    size = ""
    if configuration.max_num_seqs and configuration.vocabulary:
        logits = (
            configuration.max_num_seqs
            * speculation.num_speculative_tokens
            * configuration.vocabulary
        )
        size = f" up to {memory_size(logits * _LOGIT_BYTES)} of"

    text = f"The draft's logits take{size} GPU memory."
    if configuration.model_runner_v2:
        return text

    return (
        f"{text} On model runner V1, vLLM's memory profiling leaves them out, so"
        " lower --gpu-memory-utilization enough to keep that memory free. There, a request's seed"
        " no longer makes its output reproducible."
    )


GREEDY_DRAFTING: Final = Words(
    kind=GreedyDrafting,
    explain=_greedy_drafting,
    why="hot requests reject the likeliest token",
    remedy="try draft_sample_method probabilistic",
    runbook="SpecDecodeAcceptanceLowAtTemperature",
)


# docs/measurements/routing.md: it pays only close to what the servers can do.
_AT_LAST: Final = (
    "Only if that does not help and the load is high, route these requests to pods that do not"
    " speculate"
)


def _long_prompts(finding: LongPrompts, model: ModelReport) -> Explanation:
    tokens = speculation_of(model).draft_max_model_len
    longest = f" ({tokens:,} tokens)" if tokens else ""

    return _advice_or_fact(
        finding,
        model,
        what=(
            f"Requests with prompts of {finding.group} tokens accept {_rates(finding)} with"
            " other prompt lengths at the same temperatures."
        ),
        change=f"Use a draft that was trained on such lengths{longest}",
        expect="Heads and small drafts accept less beyond the lengths that they were trained on.",
    )


def _advice_or_fact(
    finding: GroupAcceptsLess,
    model: ModelReport,
    *,
    what: str,
    change: str,
    expect: str,
    body: str = "",
) -> Explanation:
    """The remedy is a ``change`` and, only if the group loses, at last to send it elsewhere."""
    if not finding.is_advice:
        return Explanation.fact(finding.code, what, _without_advice(finding))

    route = f". {_AT_LAST}" if finding.loses else ""
    return Explanation(
        code=finding.code,
        what=what,
        remedy=f"{change}{route}.",
        expect=expect,
        verify=verification(model, body=body),
    )


LONG_PROMPTS: Final = Words(
    kind=LongPrompts,
    explain=_long_prompts,
    why="long prompts accept less",
    remedy="a draft trained on them",
    runbook=_RUNBOOK_OF_A_PART,
)


_REPEAT: Final = f"Try n-gram or suffix decoding, which repeats keys and punctuation. {_AT_LAST}."
_GRAMMAR: Final = (
    "The drafter does not know the grammar, and vLLM drops the draft tokens that the grammar"
    " forbids."
)
_STRUCTURED_BODY: Final = '{"response_format": {"type": "json_object"}}'


def _structured_output(finding: StructuredOutput, model: ModelReport) -> Explanation:
    what = (
        f"Requests with structured output accept {_rates(finding)} without it at the same"
        " temperatures."
    )
    if not finding.is_advice:
        why = f"{_GRAMMAR} {_without_advice(finding)}"
        return Explanation.fact(finding.code, what, why)

    return _structured(what, model)


def _forbidden_drafts(finding: ForbiddenDrafts, model: ModelReport) -> Explanation:
    accepted = percent(finding.acceptance or 0.0)
    what = (
        "Requests with structured output get no draft tokens: the grammar forbids all of them. Over"
        f" all requests, vLLM accepts {accepted} of the draft tokens."
    )
    if not finding.is_advice:
        why = "Nothing to change: these requests are too small a part."
        return Explanation.fact(finding.code, what, why)

    return _structured(what, model)


def _structured(what: str, model: ModelReport) -> Explanation:
    return Explanation(
        code=StructuredOutput.code,
        what=what,
        remedy=_REPEAT,
        expect=_GRAMMAR,
        verify=verification(model, body=_STRUCTURED_BODY),
    )


STRUCTURED_OUTPUT: Final = Words(
    kind=StructuredOutput,
    explain=_structured_output,
    why="structured output loses",
    remedy="try n-gram or suffix decoding",
    runbook=_RUNBOOK_OF_A_PART,
)
FORBIDDEN_DRAFTS: Final = Words(
    kind=ForbiddenDrafts,
    explain=_forbidden_drafts,
    why=STRUCTURED_OUTPUT.why,
    remedy=STRUCTURED_OUTPUT.remedy,
    runbook=STRUCTURED_OUTPUT.runbook,
)


def _adapter(finding: Adapter, model: ModelReport) -> Explanation:
    return _advice_or_fact(
        finding,
        model,
        what=(
            f"Requests with adapter {finding.group} accept {_rates(finding)} without it at the"
            " same temperatures."
        ),
        change="Train a draft for this adapter",
        expect="The draft was made for the base model and does not apply the adapter.",
    )


ADAPTER: Final = Words(
    kind=Adapter,
    explain=_adapter,
    why="an adapter's requests accept less",
    remedy="a draft for it",
    runbook=_RUNBOOK_OF_A_PART,
)

_PARAMETERS: Final = {
    "filtered": "top-k, top-p or min-p",
    "penalties": "presence, frequency or repetition penalties",
}
_BODIES: Final = {"filtered": '{"top_k": 20}', "penalties": '{"presence_penalty": 1}'}


def _sampling(finding: Sampling, model: ModelReport) -> Explanation:
    parameters = _PARAMETERS.get(finding.group, finding.group)
    return _advice_or_fact(
        finding,
        model,
        what=(
            f"Requests with {parameters} accept {_rates(finding)} without them at the same"
            " temperatures."
        ),
        change="Ask the clients whether they need these parameters",
        expect=(
            "These parameters shape the target's distribution alone: the drafter does not see them."
        ),
        body=_BODIES.get(finding.group, ""),
    )


SAMPLING: Final = Words(
    kind=Sampling,
    explain=_sampling,
    why="top-k, top-p or penalties accept less",
    remedy="drop them where clients do not need them",
    runbook=_RUNBOOK_OF_A_PART,
)


def _one_engine(finding: OneEngine, _model: ModelReport) -> Explanation:
    return Explanation(
        code=finding.code,
        what=(
            f"Requests on engine {finding.engine} accept {_rates(finding)} on the other engines"
            " at the same temperatures and prompt lengths."
        ),
        remedy=(
            "Drain and restart this vLLM. If that does not help, compare the engine's configuration"
            " and GPU with those of the others."
        ),
        expect="The engines of one vLLM load the same draft, so a difference points to a fault.",
        verify=_WATCH.format(f"engine {finding.engine}"),
    )


_WATCH: Final = (
    "`specdec-sidecar report` five minutes after the restart: the finding on {} is gone."
)
ONE_ENGINE: Final = Words(
    kind=OneEngine,
    explain=_one_engine,
    why="one engine accepts less than the others",
    remedy="drain and restart this vLLM",
    runbook="SpecDecodeMixedWorkload",
)

WORDS: Final = (
    GREEDY_DRAFTING,
    LONG_PROMPTS,
    STRUCTURED_OUTPUT,
    FORBIDDEN_DRAFTS,
    ADAPTER,
    SAMPLING,
    ONE_ENGINE,
)
