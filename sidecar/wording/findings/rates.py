"""Findings on requests that accept less than others, in words."""

from typing import Final

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.findings.greedy_drafting import GreedyDrafting
from sidecar.analysis.findings.groups import (
    Adapter,
    ForbiddenDrafts,
    LongPrompts,
    Sampling,
    StructuredOutput,
)
from sidecar.analysis.findings.one_engine import OneEngine
from sidecar.analysis.findings.rates import LowerAcceptance
from sidecar.analysis.report import ModelReport
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.findings.explanation import (
    VERIFY_GROUP,
    Explanation,
    Words,
    speculating_engine,
    speculation_of,
)
from sidecar.wording.numbers import percent

_LOGIT_BYTES: Final = 4  # of a draft that samples: vLLM keeps its logits until verification
_RUNBOOK_OF_A_PART: Final = "SpecDecodeAcceptanceP10Low"


def _compared(finding: LowerAcceptance) -> str:
    """Both acceptance rates and their difference; the sentence goes on with whose they are."""
    points = 100 * (finding.others - finding.rate)
    interval = 100 * CONFIDENCE * finding.error
    return (
        f"{percent(finding.rate)} of their draft tokens, {points:.0f} ± {interval:.0f} points less"
        f" than the {percent(finding.others)} of those"
    )


_BIASED: Final = (
    ", except for structured output: without async scheduling, vLLM drops the draft tokens that the"
    " grammar forbids before it verifies, which biases the tokens that take their place"
)


def _greedy_drafting(finding: GreedyDrafting, model: ModelReport) -> Explanation:
    at = f" (T {', '.join(finding.temperatures)})" if finding.temperatures else ""
    configuration = speculating_engine(model).configuration
    but = _BIASED if configuration.async_scheduling is False else ""
    memory = _memory(configuration, speculation_of(model))

    return Explanation(
        code=finding.code,
        what=(
            f"Requests above temperature 0 accept {_compared(finding)} at temperature 0{at}. vLLM"
            " drafts the draft model's likeliest token at every temperature, which a request that"
            " samples rejects often."
        ),
        remedy=(
            'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod: the'
            " draft then samples at the request's temperature. The distribution of the output"
            f" stays the same{but}."
        ),
        expect=(
            "How much it gains depends on the two models. A draft close to its target went from 39%"
            " to 75% at T 1 in our lab; of published pairs, one accepted 7 to 11% more tokens per"
            f" step, a weak one between 3% fewer and 4% more. {memory} Top-k and top-p shape only"
            " the target, so they shrink the gain."
        ),
    )


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


GREEDY_DRAFTING: Final = Words(
    kind=GreedyDrafting,
    explain=_greedy_drafting,
    why="hot requests reject the likeliest token",
    remedy="try draft_sample_method probabilistic",
    runbook="SpecDecodeAcceptanceLowAtTemperature",
)


def _long_prompts(finding: LongPrompts, model: ModelReport) -> Explanation:
    tokens = speculation_of(model).draft_max_model_len
    longest = f" ({tokens:,} tokens)" if tokens else ""

    return Explanation(
        code=finding.code,
        what=(
            f"Requests with prompts of {finding.group} tokens accept {_compared(finding)} with"
            " other prompt lengths at the same temperatures."
        ),
        remedy=(
            f"Use a draft that was trained on such lengths{longest}, or route these requests to"
            " pods that do not speculate."
        ),
        expect="Heads and small drafts accept less beyond the lengths that they were trained on.",
    )


LONG_PROMPTS: Final = Words(
    kind=LongPrompts,
    explain=_long_prompts,
    why="long prompts accept less",
    remedy="a draft trained on them, or pods without speculation",
    runbook=_RUNBOOK_OF_A_PART,
)


def _structured_output(finding: StructuredOutput, _model: ModelReport) -> Explanation:
    what = (
        f"Requests with structured output accept {_compared(finding)} without it at the same"
        " temperatures."
    )
    return _structured(what)


def _forbidden_drafts(finding: ForbiddenDrafts, _model: ModelReport) -> Explanation:
    accepted = percent(finding.acceptance or 0.0)
    what = (
        "Requests with structured output get no draft tokens: the grammar forbids all of them. Over"
        f" all requests, vLLM accepts {accepted} of the draft tokens."
    )
    return _structured(what)


def _structured(what: str) -> Explanation:
    return Explanation(
        code=StructuredOutput.code,
        what=what,
        remedy=(
            "Route these requests to pods that do not speculate, or that draft with n-gram or"
            " suffix decoding, which repeats keys and punctuation."
        ),
        expect=(
            "The drafter does not know the grammar, and vLLM drops the draft tokens that the"
            " grammar forbids."
        ),
        verify=VERIFY_GROUP,
    )


STRUCTURED_OUTPUT: Final = Words(
    kind=StructuredOutput,
    explain=_structured_output,
    why="structured output accepts less",
    remedy="pods without speculation, or with n-gram drafts",
    runbook=_RUNBOOK_OF_A_PART,
)
FORBIDDEN_DRAFTS: Final = Words(
    kind=ForbiddenDrafts,
    explain=_forbidden_drafts,
    why=STRUCTURED_OUTPUT.why,
    remedy=STRUCTURED_OUTPUT.remedy,
    runbook=STRUCTURED_OUTPUT.runbook,
)


def _adapter(finding: Adapter, _model: ModelReport) -> Explanation:
    return Explanation(
        code=finding.code,
        what=(
            f"Requests with adapter {finding.group} accept {_compared(finding)} without it at the"
            " same temperatures."
        ),
        remedy=(
            "Train a draft for this adapter, or route its requests to pods that do not speculate."
        ),
        expect="The draft was made for the base model and does not apply the adapter.",
    )


ADAPTER: Final = Words(
    kind=Adapter,
    explain=_adapter,
    why="an adapter's requests accept less",
    remedy="a draft for it, or pods without speculation",
    runbook=_RUNBOOK_OF_A_PART,
)

_PARAMETERS: Final = {
    "filtered": "top-k, top-p or min-p",
    "penalties": "presence, frequency or repetition penalties",
}


def _sampling(finding: Sampling, _model: ModelReport) -> Explanation:
    parameters = _PARAMETERS.get(finding.group, finding.group)
    return Explanation(
        code=finding.code,
        what=(
            f"Requests with {parameters} accept {_compared(finding)} without them at the same"
            " temperatures."
        ),
        remedy=(
            "Ask the clients whether they need these parameters, or route these requests to pods"
            " that do not speculate."
        ),
        expect=(
            "These parameters shape the target's distribution alone: the drafter does not see them."
        ),
        verify=VERIFY_GROUP,
    )


SAMPLING: Final = Words(
    kind=Sampling,
    explain=_sampling,
    why="top-k, top-p or penalties accept less",
    remedy="drop them, or pods without speculation",
    runbook=_RUNBOOK_OF_A_PART,
)


def _one_engine(finding: OneEngine, _model: ModelReport) -> Explanation:
    return Explanation(
        code=finding.code,
        what=(
            f"Requests on engine {finding.engine} accept {_compared(finding)} on the other engines"
            " at the same temperatures and prompt lengths."
        ),
        remedy=(
            "Drain and restart this vLLM. If that does not help, compare the engine's configuration"
            " and GPU with those of the others."
        ),
        expect="The engines of one vLLM load the same draft, so a difference points to a fault.",
    )


ONE_ENGINE: Final = Words(
    kind=OneEngine,
    explain=_one_engine,
    why="one engine accepts less than the others",
    remedy="drain and restart this vLLM",
    runbook="SpecDecodeMixedWorkload",
)
