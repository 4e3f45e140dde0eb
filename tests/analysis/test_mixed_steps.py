"""What prefill adds to a step: the law behind the steps that the plug-in counted as mixed."""

import pytest

from sidecar.analysis.speed.mixed_steps import MixedSteps, prefill_law, prefill_times

SIZES = (80, 200, 800, 1600, 8000)
LOADS = (4.0, 64.0, 256.0)


def steps(law, sizes=SIZES, loads=LOADS):
    """Steps at each load with each number of tokens; the longest are parts of longer prompts."""
    return [
        MixedSteps(
            seconds=law(load, tokens, context),
            decodes=load,
            tokens=tokens,
            context=context,
            weight=1 / law(load, tokens, context) ** 2 if law(load, tokens, context) else 1e6,
        )
        for load in loads
        for tokens, context in ((size, 16_000 if size == 8000 else size / 2) for size in sizes)
    ]


def cpu(load, tokens, context):
    return 0.0003 * tokens


def gpu(load, tokens, context):
    """Up to 300 tokens are computed while the weights are read."""
    computed = max(load + tokens - 300, 0) - max(load - 300, 0)
    return 3e-5 * computed + 1e-9 * tokens * context


def leaving_a_graph(load, tokens, context):
    return 0.002 + 3e-5 * tokens


def test_a_cpu_computes_one_token_after_the_other():
    """Every prefill token takes the same time, and none is hidden."""
    law = prefill_law(steps(cpu))
    assert (law.hidden, law.step) == (0, 0)
    assert law.token == pytest.approx(0.0003)
    assert law.attention == pytest.approx(0, abs=1e-12)


def test_a_gpu_hides_a_number_of_tokens_and_pays_for_what_they_attend_to():
    """All three terms come out of the steps at once."""
    law = prefill_law(steps(gpu))
    assert law.hidden == pytest.approx(300, rel=0.15)
    assert law.token == pytest.approx(3e-5, rel=0.1)
    assert law.attention == pytest.approx(1e-9, rel=0.2)


def test_a_step_that_prefills_may_cost_something_whatever_it_prefills():
    """As where vLLM leaves its CUDA graph for it."""
    law = prefill_law(steps(leaving_a_graph))
    assert (law.step, law.token) == pytest.approx((0.002, 3e-5), rel=0.05)


def test_attention_that_seems_to_cost_less_than_nothing_leaves_the_step_its_cost():
    """Noise may make one term negative; what the steps cost otherwise stays in the law."""

    def noisy(load, tokens, context):
        return leaving_a_graph(load, tokens, context) - 1e-10 * tokens * context

    law = prefill_law(steps(noisy))

    assert law.attention == 0
    assert law.step == pytest.approx(0.002, rel=0.1)


def test_one_length_of_prompts_gives_a_time_for_each_token():
    """It cannot tell a fixed cost from one by token, so all of it is by token."""
    law = prefill_law(steps(cpu, sizes=(800,), loads=(4.0,)))
    assert (law.hidden, law.step, law.attention) == (0, 0, 0)
    assert law.token == pytest.approx(0.0003)


@pytest.mark.parametrize("sizes", [(), (800,)])
def test_prefill_that_takes_no_time_has_no_law(sizes):
    """It is None rather than a law of noise."""
    assert prefill_law(steps(lambda *_: 0.0, sizes=sizes)) is None
    assert prefill_times(steps(lambda *_: 0.0, sizes=sizes), LOADS) is None


def test_the_more_requests_decode_the_fewer_tokens_are_hidden():
    """Their own tokens fill the time in which weights are read."""
    times = prefill_times(steps(gpu), LOADS)
    fewest = [min(row) for row in times.by_load]
    assert fewest == sorted(fewest, reverse=True)
    for load, row in zip(LOADS, times.by_load, strict=True):
        for tokens, found in row.items():
            assert found.value == pytest.approx(gpu(load, tokens, 0), rel=0.1)


def test_steps_that_scatter_give_larger_errors():
    exact = prefill_times(steps(cpu), LOADS)
    uneven = [
        MixedSteps(
            seconds=one.seconds * (1.1 if place % 2 else 0.9),
            decodes=one.decodes,
            tokens=one.tokens,
            context=one.context,
            weight=one.weight,
        )
        for place, one in enumerate(steps(cpu))
    ]
    scattered = prefill_times(uneven, LOADS)
    for before, after in zip(exact.by_load, scattered.by_load, strict=True):
        assert all(found.error > 0.01 * found.value for found in after.values())
        assert all(found.error < 1e-6 for found in before.values())
