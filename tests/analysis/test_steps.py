"""Step times, load and length from counters."""

import pytest

from sidecar.analysis.speed.steps import LOAD_LABELS, Steps, counted_steps, load_label
from sidecar.engine.names import Counter
from tests.analysis.decoding import Engine


@pytest.mark.parametrize("tokens", [2, 60])
def test_one_request_at_a_time_is_a_load_of_one_however_short_its_reply(tokens):
    """The step that ends a prefill gives the first token and is no decode step; it is an engine step all the same."""
    decoded = tokens - 1.0
    steps = Steps(seconds=1.0, decode_steps=decoded, engine_steps=float(tokens), tokens=decoded, first_tokens=1.0)
    assert (steps.running, steps.tokens_per_step) == (1, 1)


def test_prompt_tokens_from_the_prefix_cache_cost_nothing():
    engine = Engine()
    engine.counters[Counter.PREFIX_CACHE_HITS] = 0.0
    engine.run(1, 0.05)
    engine.counters[Counter.PREFIX_CACHE_HITS] += 30
    engine.run(1, 0.05, prompt_share=2)
    assert engine.steps.prompt_tokens == pytest.approx(10)


@pytest.mark.parametrize(("requests", "least"), [(0, 2.0), (1, 1.2), (3, 0.0)])
def test_up_to_a_block_a_request_of_the_prompts_computed_may_be_what_eagle_dropped(requests, least):
    engine = Engine()
    engine.run(1, 0.05, prompt_share=2)
    grown = engine.polls[-1].counters | {Counter.FIRST_TOKENS: requests}
    steps = counted_steps(grown | {Counter.GENERATION_TOKENS: 20.0 + requests}, block=16)
    assert steps.least_prompt_share * (20 + requests) == pytest.approx(20 * least)


@pytest.mark.parametrize(
    "missing",
    [Counter.DECODE_SECONDS, Counter.DECODE_STEPS, Counter.STEPS, Counter.FIRST_TOKENS, Counter.GENERATION_TOKENS],
)
def test_without_one_of_its_counters_nothing_is_known(missing):
    engine = Engine()
    del engine.counters[missing]
    engine.run(1, 0.05)
    assert engine.steps is None


def test_a_period_without_decoding_has_no_steps():
    engine = Engine()
    engine.run(0, 0.05)
    assert engine.steps is None


def test_a_load_is_labelled_by_the_rounded_number_of_requests():
    labels = {1: "1", 1.4: "1", 2: "2", 2.6: "3-4", 8: "5-8", 9: "9-16", 256: "129-256", 257: "257+", 9e9: "257+"}
    assert {running: load_label(running) for running in labels} == labels
    assert LOAD_LABELS == ("1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", "129-256", "257+")
