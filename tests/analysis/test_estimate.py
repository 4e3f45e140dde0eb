"""Which acceptance rate breaks even by the sizes of the models, while nothing is measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.break_even import LAB, LLAMA_8B, PUBLISHED, lines
from sidecar.analysis.speed.estimate import Estimate, Unsized, estimate, range_by_sizes
from sidecar.analysis.speed.steps import Steps
from sidecar.requests.messages import Configuration, Speculation
from sidecar.wording.answer import answer
from tests.analysis.test_state_speed import PLAIN, Decoding
from tests.export.reports import report

DOCS = Path(__file__).parents[2] / "docs" / "measurements" / "break-even.md"
HEAD = LLAMA_8B | {"num_hidden_layers": 1}
SMALL = LLAMA_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "tie_word_embeddings": 1,
}
# Qwen3 30B A3B: of 128 experts a token passes 8.
MOE = LLAMA_8B | {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
EAGLE = Speculation("eagle3", 3, draft_sizes=HEAD)
EAGLE_3 = replace(EAGLE, draft_sizes=HEAD | {"draft_vocab_size": 32000})
LARGE = Speculation("draft_model", 1, draft_sizes=LLAMA_8B | {"num_hidden_layers": 48})
GPU = Configuration(device="cuda", sizes=LLAMA_8B)
REASONS = [
    (EAGLE, replace(GPU, sizes={}), Unsized.SIZES),
    (EAGLE, replace(GPU, sizes=LLAMA_8B | {"hidden_size": 0}), Unsized.SIZES),
    (replace(EAGLE, draft_sizes={}), GPU, Unsized.SIZES),
    (EAGLE, replace(GPU, is_hybrid=True), Unsized.LAYERS),
    (EAGLE, replace(GPU, is_moe=True), Unsized.EXPERTS),
    (EAGLE, replace(GPU, sizes=LLAMA_8B | {"num_experts": 128}), Unsized.EXPERTS),
    (replace(EAGLE, method="mlp_speculator"), GPU, Unsized.METHOD),
    # 3 to 28 % were told where 32 to 37 % were measured.
    (EAGLE, replace(GPU, device="cpu"), Unsized.CPU),
    *(
        (replace(EAGLE, method=method), GPU, Unsized.RATE)
        for method in ("ngram", "suffix", "dflash", "medusa", "custom_class")
    ),
    (replace(EAGLE, parallel_drafting=True), GPU, Unsized.RATE),
    (replace(EAGLE, adaptive_verification=True), GPU, Unsized.RATE),
    (replace(EAGLE, rejection_sample_method="synthetic"), GPU, Unsized.RATE),
]


def steps(requests=4.0, drafted=3.0, seconds=0.02, context=200.0):
    """The steps of a second."""
    engine_steps = 1 / seconds
    decodes = requests * engine_steps
    return Steps(
        seconds=requests,
        decode_steps=decodes,
        engine_steps=engine_steps,
        tokens=decodes * (1 + drafted / 2),
        drafts=decodes * min(drafted, 1.0),
        draft_tokens=decodes * drafted,
        engine_seconds=1.0,
        context_tokens=decodes * context,
        context_steps=decodes,
    )


def found(speculation=EAGLE, configuration=GPU, **load):
    """However wide it is."""
    by_sizes = range_by_sizes(speculation, configuration, steps(**load))
    return by_sizes.low, by_sizes.high


def test_the_range_holds_what_was_measured_of_the_lab_s_pairs_and_of_published_ones():
    """Only where a CPU's attention grows with drafts, or a plain server was slow, it does not."""
    missed = [
        (pair.name, round(cell.break_even, 2))
        for pair in (*LAB, *PUBLISHED)
        for cell in pair.cells
        if not pair.is_held(cell)
    ]
    cells = sum(len(pair.cells) for pair in (*LAB, *PUBLISHED))

    assert (len(missed), cells) == (3, 109), missed
    assert not any(pair in PUBLISHED for pair, _ in missed)


def test_the_page_of_measurements_has_what_the_command_prints():
    """``python -m benchmarks.break_even``."""
    assert "\n".join(lines()) in DOCS.read_text()


def test_at_light_load_the_low_end_is_what_the_draft_reads_beside_the_target():
    """As ``plan`` has it: a draft token costs that share of a step, if nothing else takes time."""
    draft = Speculation("draft_model", 3, draft_sizes=SMALL)
    layers = (16 * 2048 * (2 * 2048 + 2 * 8 * 64 + 3 * 8192)) / (
        32 * 4096 * (2 * 4096 + 2 * 8 * 128 + 3 * 14336)
    )
    low, high = found(draft, requests=1.0, context=0.0)

    assert layers < low < 1.5 * layers
    assert high > 0.5  # as many layers as half of the target's


@pytest.mark.parametrize(
    ("speculation", "load", "unsized"),
    [
        (EAGLE_3, {"requests": 8.0}, None),  # 3 to 37 %
        (EAGLE_3, {"requests": 64.0}, Unsized.WIDE),  # 3 to 87 %
        (EAGLE_3, {"requests": 256.0}, Unsized.WIDE),  # 18 to 139 %
        # A draft larger than the target breaks even at no rate, by however much.
        (LARGE, {"requests": 1.0, "drafted": 1.0}, None),  # 147 to 201 %
    ],
)
def test_a_range_too_wide_to_tell_anything_is_not_told(speculation, load, unsized):
    """At production loads it held nearly every rate, and some that there are not."""
    load = {"context": 1000.0, "seconds": 0.012} | load
    told = estimate(speculation, GPU, steps(**load))

    assert told.unsized is unsized
    if unsized is None:
        assert (told.low, told.high) == found(speculation, **load)
    else:
        assert (told.low, told.high) == (None, None)


def test_more_requests_raise_the_high_end():
    """Computing the drafts is no longer hidden."""
    assert found(requests=64.0)[1] > 1.2 * found(requests=1.0)[1]


def test_on_a_cpu_computing_is_dearer_and_attention_too():
    """There each token of a draft may read the whole context."""
    cpu = replace(GPU, device="cpu")

    assert found(configuration=cpu)[1] > found()[1]
    assert found(configuration=cpu, context=8000.0)[1] > found(configuration=cpu)[1]


def test_a_short_step_leaves_more_to_what_is_not_in_the_sizes():
    """A millisecond a pass is much of a step of five."""
    (low, high), (same, higher) = found(seconds=0.05), found(seconds=0.005)

    assert low == same
    assert higher > high


def test_tokens_of_a_draft_read_experts_that_a_plain_step_does_not():
    """Unless all of them choose the same."""
    head = Speculation("eagle3", 3, draft_sizes=HEAD | {"hidden_size": 2048})
    low, high = found(head, Configuration(device="cuda", sizes=MOE, is_moe=True), requests=1.0)
    _, dense = found(requests=1.0)

    assert low < 0.1
    assert high > dense + 0.2


def test_a_quantized_target_makes_the_same_head_dearer():
    """The head has 16 bits; of a quantization with 4 or 8 bits, both are reckoned with."""
    eight = found(configuration=replace(GPU, quantization="fp8"))
    any_bits = found(configuration=replace(GPU, quantization="compressed-tensors"))

    assert eight[0] >= found()[0]
    assert eight[1] > found()[1]
    assert any_bits[1] > eight[1]


def test_a_draft_that_is_not_split_takes_longer_beside_a_target_that_is():
    """vLLM's draft_tensor_parallel_size of 1 beside four GPUs."""
    split = replace(GPU, tensor_parallel_size=4)
    alone = replace(EAGLE, draft_tensor_parallel_size=1)

    assert found(alone, split)[1] > found(EAGLE, split)[1]


def test_mtp_is_a_layer_of_the_target_whatever_vllm_calls_its_draft():
    """vLLM's draft configuration has 0 layers, or all of the target's."""
    mtp = Speculation("mtp", 1, draft_sizes=LLAMA_8B | {"num_hidden_layers": 0})
    low, high = found(mtp, drafted=1.0, requests=1.0)

    assert 1 / 33 < low < 0.2
    assert high < 1


@pytest.mark.parametrize(("speculation", "configuration", "reason"), REASONS)
def test_where_the_sizes_do_not_tell_it_is_unknown_and_says_why(speculation, configuration, reason):
    """Never a guess."""
    assert estimate(speculation, configuration, steps()) == Estimate(unsized=reason)


def test_without_a_plugin_or_drafts_there_is_none():
    """Nothing is known of the models."""
    assert estimate(None, GPU, steps()) is None
    assert estimate(EAGLE, GPU, None) is None
    assert estimate(EAGLE, GPU, steps(drafted=0.0)) is None


@pytest.mark.parametrize("method", ["ngram", "suffix", "dflash"])
def test_the_answer_that_acceptance_does_not_tell_has_no_rate_that_breaks_even(method):
    """It said both, one after the other, also in a critical page."""
    server = Decoding(plain_steps={})
    server.plugin.hello(speculation=replace(EAGLE, method=method), configuration=GPU)
    model = server.decode(60).model()
    said = answer(report(model))

    assert "acceptance rate does not tell whether speculation pays here" in said.text
    assert "breaks even" not in said.why
    assert model.estimate == Estimate(unsized=Unsized.RATE)


def test_it_stands_in_only_while_no_speedup_is_known():
    """And decides nothing: the rule of thumb's verdict is as without it."""
    told = {"speculation": EAGLE, "configuration": GPU}
    unmeasured = Decoding(plain_steps={})
    unmeasured.plugin.hello(**told)
    measured = Decoding(plain_steps=PLAIN)
    measured.plugin.hello(**told)

    without = Decoding(plain_steps={}).decode(60).model()
    model = unmeasured.decode(60).model()
    assert 0 < model.estimate.low < model.estimate.high < 1
    assert (model.judgement.verdict, model.judgement.basis) == (
        without.judgement.verdict,
        without.judgement.basis,
    )
    assert measured.decode(60).model().estimate is None
