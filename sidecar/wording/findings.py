"""What a finding means, what to change, what to expect of it, and how to verify it. ``docs/why.md`` says more."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sidecar.analysis.advice import Advice, Finding, FindingCode
from sidecar.analysis.report import ModelReport
from sidecar.engine.methods import follows_a_schedule
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.notes import COLLAPSED, advice_sentences
from sidecar.wording.numbers import percent

_LOGIT_BYTES: Final = 4
_SCHEDULE_COSTS: Final = (
    "vLLM ignores a schedule with data parallelism, and gives up full CUDA graphs for it on model runner V1."
)
_OR_ELSEWHERE: Final = "route these requests to pods that do not speculate"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``what`` is seen, with numbers; ``remedy`` is the change, ``expect`` its likely effect, ``verify`` a command."""

    code: str
    what: str
    remedy: str
    expect: str
    verify: str


def explanations(model: ModelReport) -> list[Explanation]:
    """The model's findings in words, the most expensive first."""
    return [_explanation(finding, model) for finding in model.findings]


def _explanation(finding: Finding, model: ModelReport) -> Explanation:
    what, remedy, expect = _TEXTS[finding.code](finding, model)
    temperatures = ",".join(sorted({"0", "0.7", "1"})) if finding.code is FindingCode.GREEDY_DRAFTING else "0,1"
    verify = (
        f"`specdec-sidecar sweep --url URL --temperatures {temperatures} --save before.json`, the same with "
        "`--save after.json` once it is changed, then `specdec-sidecar compare before.json after.json`"
    )
    return Explanation(str(finding.code), what, remedy, expect, verify)


Texts = tuple[str, str, str]


def _greedy_drafting(finding: Finding, model: ModelReport) -> Texts:
    at = ", ".join(finding.where)
    what = (
        f"Requests above temperature 0 accept {_compared(finding)} at temperature 0 (most at T {at}). vLLM drafts the "
        "likeliest token at every temperature, and requests that sample often reject it."
    )
    remedy = (
        'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod: the draft then samples at '
        "the request's temperature. The output's distribution stays the same."
    )
    return what, remedy, _expectation(model)


def _expectation(model: ModelReport) -> str:
    sentences = [
        (
            "How much it gains depends on the pair of models: a draft close to its target went from 0.39 to 0.75 at "
            "T 1 in our lab; of published pairs, one accepted 7 to 11 % more tokens per step, a weak one -3 to 4 %."
        )
    ]
    configuration, speculation = _configured(model)
    if speculation is not None and configuration.max_num_seqs and configuration.vocabulary:
        tokens = configuration.max_num_seqs * speculation.num_speculative_tokens
        gibibytes = tokens * configuration.vocabulary * _LOGIT_BYTES / 2**30
        sentences.append(f"The draft's logits take up to {gibibytes:.1f} GiB of GPU memory.")
    if configuration.model_runner_v2 is not True:
        sentences.append(
            "On model runner V1, vLLM's memory profiling leaves them out, so lower --gpu-memory-utilization by as "
            "much, and a request's seed no longer makes its output reproducible."
        )
    sentences.append("Top-k and top-p shape only the target, so with narrow ones it may lose.")
    return " ".join(sentences)


def _length(finding: Finding, model: ModelReport) -> Texts:
    what = advice_sentences(
        Advice(tokens=finding.tokens, can_schedule=model.advice is not None and model.advice.can_schedule)
    )
    tokens = finding.tokens
    best = tokens.best if tokens is not None else None
    remedy = "Change num_speculative_tokens in --speculative-config."
    if best:
        remedy = f'Set `"num_speculative_tokens": {best}` in --speculative-config.'
    if best == 0:
        remedy = "Remove --speculative-config, or use a draft model that accepts more."
    if finding.schedule:
        remedy = f"{remedy} {_schedule(finding)}"
    return what, remedy, "The time per token follows from the acceptance rate by position and the measured step times."


def _schedule(finding: Finding) -> str:
    entries = [list(entry) for entry in finding.schedule]
    return f'To adapt to the load, set `"num_speculative_tokens_per_batch_size": {entries}`. {_SCHEDULE_COSTS}'


def _load(finding: Finding, model: ModelReport) -> Texts:
    low, now = finding.where
    what = (
        f"With {now} requests running, decoding is {finding.value:.2f} ± {2 * (finding.error or 0):.2f} times as fast "
        f"as without speculation; with {low} it was {finding.other:.2f} times as fast."
    )
    _, speculation = _configured(model)
    can_schedule = speculation is not None and follows_a_schedule(speculation.method)
    remedy = (
        _schedule(finding) if finding.schedule and can_schedule else "Add pods, so that fewer requests run on each."
    )
    return (
        what,
        remedy,
        "At lower loads verification uses compute that would idle; at higher ones it takes it from others.",
    )


def _long_prompts(finding: Finding, model: ModelReport) -> Texts:
    _, speculation = _configured(model)
    longest = speculation.draft_max_model_len if speculation is not None else None
    limit = f" (this draft: {longest:,} tokens)" if longest else ""
    return (
        f"Prompts of {finding.where[0]} tokens accept {_compared(finding)} of other lengths at the same temperatures.",
        (f"Use a draft that was trained on such lengths, and check its longest length{limit}. Or {_OR_ELSEWHERE}."),
        "Heads and small drafts accept less beyond the lengths of their training data.",
    )


def _structured_output(finding: Finding, _: ModelReport) -> Texts:
    return (
        f"Requests with structured output accept {_compared(finding)} without it at the same temperatures.",
        f"R{_OR_ELSEWHERE[1:]}, or draft with n-gram or suffix decoding, which repeats keys and punctuation.",
        "The drafter does not know the grammar: vLLM drops the draft tokens that it forbids.",
    )


def _adapter(finding: Finding, _: ModelReport) -> Texts:
    return (
        f"Requests with adapter {finding.where[0]} accept {_compared(finding)} with others at the same temperatures.",
        f"Train a draft for this adapter. Or {_OR_ELSEWHERE}.",
        "The draft was made for the base model and does not apply the adapter.",
    )


def _sampling(finding: Finding, _: ModelReport) -> Texts:
    is_filtered = finding.where[0] == "filtered"
    which = "top-k, top-p or min-p" if is_filtered else "presence, frequency or repetition penalties"
    return (
        f"Requests with {which} accept {_compared(finding)} with other sampling parameters at the same temperatures.",
        f"Ask the clients whether they need these parameters. Otherwise {_OR_ELSEWHERE}.",
        "They shape the target's distribution alone: the drafter does not see them.",
    )


def _one_engine(finding: Finding, _: ModelReport) -> Texts:
    return (
        (
            f"Requests on engine {finding.where[0]} accept {_compared(finding)} on the other engines at the same "
            "temperatures and prompt lengths."
        ),
        "Restart this vLLM. If it does not help, compare the engine's configuration and its GPU with the others'.",
        "Engines of one vLLM load the same draft, so a difference points to a fault.",
    )


def _mismatch(finding: Finding, model: ModelReport) -> Texts:
    configuration, speculation = _configured(model)
    quantized = [
        f"{what} {name}"
        for what, name in (
            ("target", configuration.quantization),
            ("draft", speculation.draft_quantization if speculation is not None else None),
        )
        if name
    ]
    return (
        f"{COLLAPSED} The acceptance rate is {percent(finding.value)}.",
        (
            "Check that the draft was made for this target: its vocabulary, chat template, quantization "
            f"({', '.join(quantized) or 'none configured'}) and vLLM's version."
        ),
        "A draft that matches accepts its first token now and then even at high temperatures.",
    )


def _not_speculating(finding: Finding, model: ModelReport) -> Texts:
    _, speculation = _configured(model)
    method = speculation.method if speculation is not None else None
    longest = speculation.draft_max_model_len if speculation is not None else None
    limit = f" The draft's longest length is {longest:,} tokens." if longest else ""
    return (
        (
            f"Engine {finding.where[0]} generated {finding.value:,.0f} tokens and drafted none, although it is "
            f"configured to speculate with {method}."
        ),
        (
            f"Look in vLLM's log for what switched it off. On model runner V1, one request beyond the draft's longest "
            f"length ends drafting for its whole batch.{limit}"
        ),
        "The draft model takes memory and gives nothing until then.",
    )


_TEXTS: Final[dict[FindingCode, Callable[[Finding, ModelReport], Texts]]] = {
    FindingCode.GREEDY_DRAFTING: _greedy_drafting,
    FindingCode.TOO_MANY_TOKENS: _length,
    FindingCode.TOO_FEW_TOKENS: _length,
    FindingCode.LOAD: _load,
    FindingCode.LONG_PROMPTS: _long_prompts,
    FindingCode.STRUCTURED_OUTPUT: _structured_output,
    FindingCode.ADAPTER: _adapter,
    FindingCode.SAMPLING: _sampling,
    FindingCode.ONE_ENGINE: _one_engine,
    FindingCode.MISMATCH: _mismatch,
    FindingCode.NOT_SPECULATING: _not_speculating,
}


def _compared(finding: Finding) -> str:
    """The two acceptance rates and their difference, as a phrase that ends before what the others are."""
    points = 100 * abs((finding.other or 0) - (finding.value or 0))
    return (
        f"{percent(finding.value)} of their draft tokens, {points:.0f} ± {200 * (finding.error or 0):.0f} points less "
        f"than the {percent(finding.other)} of those"
    )


def _configured(model: ModelReport) -> tuple[Configuration, Speculation | None]:
    engine = model.engines[0]
    return engine.configuration, engine.speculation
