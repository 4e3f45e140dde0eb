"""The findings in words."""

import pytest

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.findings.catalog import KINDS
from sidecar.analysis.findings.greedy_drafting import GreedyDrafting
from sidecar.analysis.findings.groups import (
    Adapter,
    ForbiddenDrafts,
    LongPrompts,
    Sampling,
    StructuredOutput,
)
from sidecar.analysis.findings.load import Load
from sidecar.analysis.findings.mismatch import Mismatch
from sidecar.analysis.findings.not_speculating import NotSpeculating
from sidecar.analysis.findings.number_of_tokens import TooFewTokens, TooManyTokens
from sidecar.analysis.findings.one_engine import OneEngine
from sidecar.analysis.findings.prefix_cache import PrefixCache
from sidecar.analysis.findings.room import Room
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.findings import WORDS, explanations
from tests.export.reports import engine, model

GREEDY = Speculation("eagle3", 3, rejection_sample_method="standard", draft_sample_method="greedy")
V1 = Configuration(
    model_runner_v2=False, async_scheduling=False, max_num_seqs=256, vocabulary=128_256
)


LESS = {
    kind: kind(group=group, rate=0.45, others=0.7, error=0.02)
    for kind, group in {
        LongPrompts: "8k-32k",
        StructuredOutput: "structured",
        Adapter: "legal",
        Sampling: "filtered",
    }.items()
}
MORE = TokensAdvice(direction=Direction.MORE, now=3, acceptance=0.9)
EVERY = LESS | {
    GreedyDrafting: GreedyDrafting(temperatures=("1+",), rate=0.3, others=0.7, error=0.02),
    TooManyTokens: TooManyTokens(tokens=MORE),
    TooFewTokens: TooFewTokens(tokens=MORE),
    Load: Load(running=9.0, speedup=0.8, error=0.01, fewer="1", speedup_at_fewer=1.5),
    ForbiddenDrafts: ForbiddenDrafts(acceptance=0.6),
    OneEngine: OneEngine(engine="1", rate=0.3, others=0.7, error=0.02),
    Mismatch: Mismatch(acceptance=0.01),
    NotSpeculating: NotSpeculating(engines=("0", "1"), tokens=5000.0),
    PrefixCache: PrefixCache(hit_ratio=0.5, hit_ratio_at_most=0.7, block_tokens=16),
    Room: Room(engines=("0",), less_than_plain=None, share_of_layers=0.2),
}


def explained(finding, *, advice=None):
    """The only explanation of a model with one finding."""
    report = model(
        engines=(engine(speculation=GREEDY, configuration=V1),), findings=(finding,), advice=advice
    )
    (explanation,) = explanations(report)
    return explanation


def test_greedy_drafting_names_the_option_and_its_price():
    finding = GreedyDrafting(temperatures=("0.5-0.7", "0.7-1"), rate=0.45, others=0.76, error=0.01)
    greedy = explained(finding)

    assert (
        greedy.what
        == "Requests above temperature 0 accept 45% of their draft tokens, 31 ± 2 points less than"
        " the 76% of those at temperature 0 (T 0.5-0.7, 0.7-1). vLLM drafts the draft model's"
        " likeliest token at every temperature, which a request that samples rejects often."
    )
    assert greedy.remedy.startswith(
        'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod'
    )
    assert (
        "The distribution of the output stays the same, except for structured output: without async"
        in greedy.remedy
    )
    assert (
        "The draft's logits take up to 0.4 GiB of GPU memory. On model runner V1" in greedy.expect
    )
    assert "specdec-sidecar compare before.json after.json" in greedy.verify


def test_structured_output_says_why_the_grammar_matters_and_where_to_send_it():
    structured = explained(LESS[StructuredOutput])

    assert (
        structured.what
        == "Requests with structured output accept 45% of their draft tokens, 25 ± 4 points less"
        " than the 70% of those without it at the same temperatures."
    )
    assert structured.remedy.startswith(
        "Route these requests to pods that do not speculate, or that draft with n-gram"
    )
    assert structured.expect.endswith("and vLLM drops the draft tokens that the grammar forbids.")


def test_structured_output_whose_grammar_forbids_every_draft_token():
    forbidden = explained(ForbiddenDrafts(acceptance=0.64))

    assert (
        forbidden.what
        == "Requests with structured output get no draft tokens: the grammar forbids all of them."
        " Over all requests, vLLM accepts 64% of the draft tokens."
    )


def test_too_many_tokens_by_time():
    tokens = TokensAdvice(
        direction=Direction.FEWER, now=3, best=1, best_seconds=0.021, now_seconds=0.03
    )
    advice = Advice(tokens=tokens, schedule=((1, 4, 3), (5, 16, 1)), can_schedule=True)
    many = explained(TooManyTokens(tokens=tokens), advice=advice)

    what = (
        "Set num_speculative_tokens to 1 instead of 3: about 21 ms per token instead of 30 ms at"
        " this load."
    )
    assert many.what == what
    assert many.remedy.startswith(
        'Set `"num_speculative_tokens": 1` in --speculative-config. To follow the load, set'
    )
    assert "[[1, 4, 3], [5, 16, 1]]" in many.remedy


@pytest.mark.parametrize("kind", KINDS)
def test_every_finding_says_what_to_do_and_what_to_expect(kind):
    """In whole sentences, with all numbers filled in."""
    explanation = explained(EVERY[kind], advice=Advice(tokens=MORE))
    parts = (explanation.what, explanation.remedy, explanation.expect, explanation.verify)

    assert all(part and part[-1] in ".`" and "{" not in part.replace('"{', "") for part in parts)
    assert explanation.code == kind.code


def test_every_finding_has_words_for_the_dashboards():
    assert [words.kind for words in WORDS] == list(KINDS)


def test_room_says_what_is_known_of_the_drafts_share():
    by_layers = explained(EVERY[Room])
    by_baseline = explained(Room(engines=("0",), less_than_plain=0.25, share_of_layers=None))

    assert by_layers.what.startswith("Engine 0 runs out of KV cache: ")
    assert "The draft takes about 20% of it, by its share of the layers." in by_layers.what
    assert "It is 25% smaller than the baseline's." in by_baseline.what
