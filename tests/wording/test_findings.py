"""The findings in words."""

import pytest

from sidecar.analysis.advice import Advice, Direction, Finding, FindingCode, TokensAdvice
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.findings import explanations
from tests.export.reports import engine, model

GREEDY = Speculation("eagle3", 3, rejection_sample_method="standard", draft_sample_method="greedy")
V1 = Configuration(
    model_runner_v2=False, async_scheduling=False, max_num_seqs=256, vocabulary=128_256
)


def explained(code, *, advice=None, **evidence):
    """The only explanation of a model with one finding."""
    finding = Finding(code=code, **evidence)
    report = model(
        engines=(engine(speculation=GREEDY, configuration=V1),), findings=(finding,), advice=advice
    )
    (explanation,) = explanations(report)
    return explanation


def test_greedy_drafting_names_the_option_and_its_price():
    greedy = explained(
        FindingCode.GREEDY_DRAFTING, where=("0.5-0.7", "0.7-1"), value=0.45, other=0.76, error=0.01
    )
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
    structured = explained(
        FindingCode.STRUCTURED_OUTPUT, where=("structured",), value=0.45, other=0.7, error=0.02
    )
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
    forbidden = explained(
        FindingCode.STRUCTURED_OUTPUT, where=("structured",), value=0.0, other=0.64
    )
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
    many = explained(FindingCode.TOO_MANY_TOKENS, advice=advice, value=0.03, other=0.021)
    what = (
        "Set num_speculative_tokens to 1 instead of 3: about 21 ms per token instead of 30 ms at"
        " this load."
    )
    assert many.what == what
    assert many.remedy.startswith(
        'Set `"num_speculative_tokens": 1` in --speculative-config. To follow the load, set'
    )
    assert "[[1, 4, 3], [5, 16, 1]]" in many.remedy


@pytest.mark.parametrize("code", FindingCode)
def test_every_finding_says_what_to_do_and_what_to_expect(code):
    tokens = TokensAdvice(direction=Direction.MORE, now=3, acceptance=0.9)
    explanation = explained(
        code, where=("a", "b"), value=0.3, other=0.7, error=0.02, advice=Advice(tokens=tokens)
    )
    parts = (explanation.what, explanation.remedy, explanation.expect, explanation.verify)
    assert all(part and part[-1] in ".`" and "{" not in part.replace('"{', "") for part in parts)
    assert explanation.code == code


def test_room_says_what_is_known_of_the_drafts_share():
    by_layers = explained(FindingCode.ROOM, where=("0",), other=0.2)
    assert "The draft takes about 20% of it, by its share of the layers." in by_layers.what
    assert by_layers.what.startswith("Engine 0 runs out of KV cache: ")
    assert (
        "It is 25% smaller than the baseline's."
        in explained(FindingCode.ROOM, where=("0",), value=0.25).what
    )
