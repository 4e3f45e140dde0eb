"""The law of plain steps, from slots whose steps follow a known one."""

from dataclasses import replace

import pytest

from sidecar.analysis.speed.plain import PlainWork, prefill_time, step_time
from sidecar.requests.messages import StepTally
from specdec_tools.plain.law import Block, Prompts, fit, misses

LOADS = (1, 4, 16)
PROMPTS = (20, 200, 800, 8000)
STEPS = 100


def cpu(decodes, context, tokens, attended):
    """Everything is computed one after the other."""
    return 0.015 + 0.002 * decodes + 2e-6 * decodes * context + 3e-4 * tokens


def gpu(decodes, context, tokens, attended):
    """Up to 300 tokens are computed while the weights are read."""
    hidden = max(decodes + tokens - 300, 0) - max(decodes - 300, 0)
    return 0.006 + 5e-8 * decodes * context + 3e-5 * hidden + 1e-9 * tokens * attended


def experts(decodes, context, tokens, attended):
    """A token reads weights of its own, up to 16 of them."""
    return 0.004 + 0.001 * min(decodes + tokens, 16) + 5e-8 * decodes * context


def tally(seconds, load, context, tokens=0):
    return StepTally(
        steps=STEPS,
        seconds=STEPS * seconds,
        decodes=STEPS * load,
        prefill_tokens=STEPS * tokens,
        context_tokens=STEPS * load * context,
    )


def slots(law, *, loads=LOADS, prompts=PROMPTS, speeds=(1.0, 1.0, 1.0)):
    """A round at each of the machine's ``speeds``; prompts of 20 tokens are no mixed steps."""
    return [
        Block(
            prompts=Prompts(count=10, computed=10 * prompt, seconds=0.1 * load),
            pure=tally(speed * law(load, prompt, 0, 0), load, prompt),
            mixed=(
                tally(speed * law(load, prompt, prompt, prompt / 2), load, prompt, prompt)
                if prompt > 64
                else StepTally()
            ),
            number=number,
            wanted=load,
        )
        for number, speed in enumerate(speeds)
        for prompt in prompts
        for load in loads
    ]


def prefill(times, tokens, decodes=4, attended=0.0):
    work = PlainWork(
        steps=1, at_once=decodes, decodes=decodes, mixed=1, tokens=tokens, context=attended
    )
    return prefill_time(times, work).seconds


def test_a_cpu_computes_one_token_after_the_other():
    """Every prefill token takes the same time, and none is hidden."""
    times = fit(slots(cpu))
    assert times.running == LOADS
    assert (times.hidden_tokens, times.by_tokens) == (0, False)
    assert step_time(times, 2.5, 4000).seconds == pytest.approx(cpu(2.5, 4000, 0, 0))
    assert prefill(times, 500) == pytest.approx(0.15)


def test_a_gpu_hides_a_number_of_tokens_and_pays_for_what_they_attend_to():
    """All terms come out of the steps at once."""
    times = fit(slots(gpu))
    assert times.hidden_tokens == pytest.approx(300, rel=0.15)
    assert times.attention_seconds == pytest.approx(1e-9, rel=0.1)
    expected = gpu(4, 1000, 2000, 1500) - gpu(4, 1000, 0, 0)
    assert prefill(times, 2000, 4, 1500) == pytest.approx(expected, rel=0.02)


def test_where_each_token_reads_weights_of_its_own_a_prompt_s_do_as_well():
    times = fit(slots(experts))
    assert times.by_tokens
    assert prefill(times, 500, 4) == pytest.approx(0.012, rel=0.01)
    assert prefill(times, 6, 4) == pytest.approx(0.006, rel=0.01)


def test_a_load_of_one_context_grows_as_the_others_in_proportion_to_its_requests():
    """As where the KV cache does not hold so many long prompts."""
    few = [block for block in slots(cpu) if block.wanted < 16 or block.prompts.computed <= 200]
    times = fit([*few])
    assert step_time(times, 16, 4000).seconds == pytest.approx(cpu(16, 4000, 0, 0), rel=0.001)


def test_attention_that_does_not_grow_in_proportion_to_the_requests_is_known_at_each_load():
    def few_are_slow(decodes, context, tokens, attended):
        return 0.006 + 5e-8 * max(decodes, 4) * context

    times = fit(slots(few_are_slow))
    assert step_time(times, 1, 8000).seconds == pytest.approx(0.006 + 5e-8 * 4 * 8000)
    assert step_time(times, 16, 8000).seconds == pytest.approx(0.006 + 5e-8 * 16 * 8000)


def test_one_length_of_prompts_tells_neither_growth_nor_attention():
    """The speedup is then known at about that context only."""
    times = fit(slots(cpu, prompts=(800,)))
    assert times.context_seconds == ()
    assert times.attention_seconds == 0
    assert prefill(times, 800) == pytest.approx(0.24)
    assert fit(slots(cpu, prompts=(20,))).prefill_seconds is None


def test_prefill_that_takes_no_time_costs_nothing():
    times = fit(slots(lambda decodes, *_: 0.01 + 0.001 * decodes))
    assert prefill(times, 5000) == pytest.approx(0, abs=1e-9)


def test_rounds_of_another_speed_are_in_the_error_of_all_times():
    """Six rounds tell less than many of how its speed varies: 2.57 errors are 95 %."""
    assert step_time(fit(slots(cpu)), 4).error == pytest.approx(0, abs=1e-9)
    times = fit(slots(cpu, speeds=(0.97, 1.03, 0.97, 1.03, 0.97, 1.03)))
    assert len(times.rounds) == 6
    step = step_time(times, 4)
    assert step.error / step.seconds == pytest.approx(0.03 / 5**0.5 * 2.57 / 1.96, rel=0.05)
    assert fit(slots(cpu), machine_load=1.0).drift == 0.05


def test_a_law_needs_three_rounds_and_a_load_two():
    """What a single round says has no error, so a load that was met in passing is left out."""
    assert fit([]) is None
    assert fit(slots(cpu, speeds=(1.0, 1.0))) is None
    passing = [replace(block, wanted=64) for block in slots(cpu, loads=(60,))[:1]]
    assert fit([*slots(cpu), *passing]).running == LOADS


def test_times_that_no_step_takes_are_no_law():
    """As of a count that is wrong."""
    assert fit(slots(lambda *_: 4000.0)) is None


def test_times_to_first_token_are_means_by_load_and_absent_where_a_load_has_none():
    """One load without them leaves the whole row out, since nothing can be read between loads."""
    assert fit(slots(cpu)).first_token_seconds == pytest.approx((0.01, 0.04, 0.16))
    without = [
        replace(block, prompts=replace(block.prompts, seconds=0.0)) if block.wanted == 4 else block
        for block in slots(cpu)
    ]
    assert fit(without).first_token_seconds == ()


def test_the_most_that_a_step_prefills_is_known_where_prompts_take_several():
    chunked = [
        replace(block, prompts=replace(block.prompts, computed=4 * block.prompts.computed))
        if block.prompts.computed == 80_000
        else block
        for block in slots(cpu)
    ]
    assert fit(chunked).chunk_tokens == 8000
    assert fit(slots(cpu)).chunk_tokens is None


def test_the_steps_that_the_law_misses_are_the_furthest_first():
    """What no term of it explains shows there: as steps with prompts that leave a CUDA graph."""

    def leaving(decodes, context, tokens, attended):
        return gpu(decodes, context, tokens, attended) + (0.002 if tokens and decodes == 4 else 0)

    assert max(abs(miss.off) for miss in misses(slots(cpu), fit(slots(cpu)))) < 1e-6
    found = misses(slots(leaving), fit(slots(leaving)))
    assert (found[0].wanted, found[0].is_mixed) == (4, True)
    assert found[0].off > 0.05
    assert [abs(miss.off) for miss in found] == sorted((abs(m.off) for m in found), reverse=True)
