"""The simulated engine by itself, with an injected clock."""

from hypothesis import given
from hypothesis import strategies as st

from sidecar.demo.blocks import BlockPool, block_hashes
from sidecar.demo.engine import Engine, acceptance_rate, position_probability
from sidecar.demo.generation import FinishReason, Prompt, Sampling
from sidecar.demo.options import SimulatorOptions


def submit(engine, *, prompt=8, temperature=0.0, max_tokens=20, now=0.0, hashes=(), ignore_eos=True):
    return engine.submit(
        Prompt(prompt, hashes),
        Sampling(temperature, max_tokens, ignore_eos),
        index=0,
        now=now,
    )


def run(engine, *, now=0.0, steps=100_000):
    """Steps until nothing is left; returns the reports."""
    reports = []
    while (duration := engine.schedule(now)) is not None:
        now += duration
        reports.append(engine.complete(now))
        assert 0 <= engine.load.kv_usage <= 1
        assert len(reports) < steps
    return reports


def total(reports, field):
    return sum(getattr(report, field) for report in reports)


def test_equal_seeds_draw_equally_and_others_do_not():
    def histograms(seed):
        engine = Engine(SimulatorOptions(seed=seed))
        generations = [submit(engine, temperature=0.7, max_tokens=200) for _ in range(5)]
        run(engine)
        return [generation.histogram for generation in generations]

    assert histograms(1) == histograms(1)
    assert histograms(1) != histograms(2)


def test_acceptance_falls_with_temperature_and_crosses_a_half_near_0_9():
    options = SimulatorOptions()
    measured = []
    for temperature in (0.0, 0.4, 0.8, 1.0, 1.2, 2.0):
        engine = Engine(options)
        generations = [submit(engine, temperature=temperature, max_tokens=2000) for _ in range(8)]
        run(engine)
        accepted = sum(generation.accepted_tokens for generation in generations)
        drafted = 3 * sum(generation.drafts for generation in generations)
        measured.append(accepted / drafted)
        assert abs(measured[-1] - acceptance_rate(temperature, options)) < 0.02
    assert measured[:5] == sorted(measured[:5], reverse=True)
    assert measured[0] > 0.9
    assert measured[2] > 0.5 > measured[3]
    assert abs(measured[4] - measured[5]) < 0.02  # flat from there on


@given(st.floats(0, 1), st.integers(1, 8))
def test_position_probability_gives_the_rate(rate, positions):
    chance = position_probability(rate, positions)
    mean = sum(chance**position for position in range(1, positions + 1)) / positions
    assert abs(mean - rate) < 1e-9


def test_one_request_adds_up_to_the_token():
    engine = Engine(SimulatorOptions())
    generation = submit(engine, prompt=33, temperature=0.6, max_tokens=100)
    reports = run(engine)
    assert generation.finished is FinishReason.LENGTH
    assert generation.output_tokens == total(reports, "generation_tokens") == 100
    assert total(reports, "prompt_tokens") == 33
    assert generation.drafts == total(reports, "drafts") == len(reports) - 1  # the prompt's step drafts nothing
    assert sum(report.accepted_per_position[0] for report in reports) == sum(generation.histogram[1:])
    assert sum(map(sum, (report.accepted_per_position for report in reports))) == generation.accepted_tokens
    # What the last step accepted beyond max_tokens is cut off and yet counts as accepted, as in vLLM.
    assert 0 <= 1 + generation.drafts + generation.accepted_tokens - 100 <= 3


def test_latencies_are_those_of_the_steps():
    options = SimulatorOptions(step_seconds=1.0, step_seconds_per_request=0.0, prefill_seconds_per_token=0.5)
    engine = Engine(options)
    submit(engine, prompt=4, max_tokens=30, now=-2.0)
    reports = run(engine)
    (finished,) = [finished for report in reports for finished in report.finished]
    assert finished.scheduled - finished.arrival == 2.0
    assert reports[0].first_token_seconds == [5.0]  # two in the queue, a step and four prompt tokens
    gaps = [gap for report in reports for gap in report.inter_token_seconds]
    assert gaps == [1.0] * (len(reports) - 1)  # one an output event, not one a token
    assert finished.last_token - finished.arrival == 5.0 + sum(gaps)
    assert finished.time_per_output_token == sum(gaps) / 29


def test_drafting_costs_time_in_steps_that_verify():
    options = SimulatorOptions(step_seconds=1.0, step_seconds_per_request=0.0, draft_seconds_per_token=0.25)
    engine = Engine(options)
    submit(engine, prompt=4, max_tokens=30, now=0.0)
    reports = run(engine)
    assert {round(gap, 6) for report in reports for gap in report.inter_token_seconds} == {1.75}
    assert round(reports[0].first_token_seconds[0], 2) == 1


def test_one_token_request_has_no_decode_time():
    engine = Engine(SimulatorOptions())
    submit(engine, max_tokens=1)
    (report,) = run(engine)
    assert report.finished[0].time_per_output_token == 0
    assert report.drafts == 0


def test_no_more_than_max_num_seqs_run_and_the_others_wait_in_order():
    engine = Engine(SimulatorOptions(max_num_seqs=2))
    generations = [submit(engine, max_tokens=10 + 40 * place) for place in range(5)]
    engine.schedule(0.0)
    assert (engine.load.running, engine.load.waiting) == (2, 3)
    engine.complete(0.1)
    run(engine, now=0.1)
    starts = [generation.scheduled for generation in generations]
    assert starts == sorted(starts)
    assert starts[2] > 0
    assert all(generation.finished for generation in generations)


def test_without_speculation_each_step_gives_one_token():
    engine = Engine(SimulatorOptions(num_speculative_tokens=0))
    generation = submit(engine, max_tokens=10)
    reports = run(engine)
    assert [report.generation_tokens for report in reports] == [1] * 10
    assert (generation.drafts, total(reports, "drafts")) == (0, 0)


def test_requests_without_ignore_eos_stop_by_themselves():
    engine = Engine(SimulatorOptions(mean_tokens_to_eos=20))
    generations = [submit(engine, max_tokens=4000, ignore_eos=False, temperature=1.0) for _ in range(50)]
    run(engine)
    assert {generation.finished for generation in generations} == {FinishReason.STOP}
    mean = sum(generation.output_tokens for generation in generations) / 50
    assert 10 < mean < 40


def test_full_cache_admits_nothing_more_and_every_request_still_finishes():
    engine = Engine(SimulatorOptions(num_gpu_blocks=32, max_model_len=500))
    generations = [submit(engine, prompt=60, max_tokens=200, temperature=1.0) for _ in range(8)]
    engine.schedule(0.0)
    assert (engine.load.running, engine.load.waiting, engine.load.kv_usage) == (8, 0, 1)
    late = submit(engine, prompt=60, max_tokens=1)
    reports = run(engine)
    assert late.scheduled >= min(generation.last_token for generation in generations)
    assert [generation.output_tokens for generation in generations] == [200] * 8
    assert total(reports, "generation_tokens") == 1601
    assert total(reports, "prompt_tokens") == 9 * 60
    assert engine.load.kv_usage == 0


def test_cache_holds_all_tokens_but_the_one_just_sampled():
    engine = Engine(SimulatorOptions(num_speculative_tokens=0))
    submit(engine, prompt=15)
    used = []
    for step in range(3):
        engine.schedule(float(step))
        used.append(engine.load.kv_usage * 4096)
        engine.complete(step + 0.5)
    assert used == [1, 1, 2]  # 15, 16 and 17 tokens


def test_same_prompt_hits_its_full_blocks_but_never_its_last_token():
    options = SimulatorOptions()
    for tokens, hit in ((32, 16), (33, 32), (15, 0)):
        engine = Engine(options)
        hashes = block_hashes(range(tokens), options.block_size)
        for _ in range(2):
            submit(engine, prompt=tokens, hashes=hashes)
            reports = run(engine)
        assert total(reports, "prefix_queries") == tokens
        assert total(reports, "prefix_hits") == total(reports, "cached_prompt_tokens") == hit


def test_block_hashes_agree_up_to_the_first_difference():
    one, other = block_hashes([*range(40), 1], 16), block_hashes([*range(20), 0, *range(21, 50)], 16)
    assert len(one) == 2
    assert len(other) == 3
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_abort_ends_waiting_and_running_ones_and_gives_their_blocks_back():
    engine = Engine(SimulatorOptions(max_num_seqs=1))
    running, waiting = submit(engine, max_tokens=500), submit(engine)
    engine.schedule(0.0)
    engine.complete(0.1)
    assert engine.abort(waiting)
    engine.schedule(0.1)
    tokens = running.output_tokens
    assert engine.abort(running)
    report = engine.complete(0.2)
    assert (report.drafts, report.outputs, running.output_tokens) == (0, [], tokens)
    assert not engine.abort(running)
    assert (running.finished, waiting.finished) == (FinishReason.ABORT, FinishReason.ABORT)
    assert (engine.load.running, engine.load.waiting, engine.load.kv_usage) == (0, 0, 0)
    assert engine.schedule(0.3) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 4)), max_size=40))
def test_block_pool_never_overflows_and_finds_what_is_held(moves):
    """Each move takes blocks for a prefix of one of two texts, or returns the oldest if they do not fit."""
    pool = BlockPool(10)
    taken = []
    for text, blocks, private in moves:
        hashes = tuple((text % 2 + 1) * 100 + block for block in range(blocks))
        before = pool.used
        if pool.acquire(hashes, private):
            taken.append((hashes, private))
            assert pool.cached(hashes) == blocks
        else:
            assert pool.used == before
            if taken:
                pool.release(*taken.pop(0))
        distinct = len({block for held, _ in taken for block in held})
        assert pool.used == distinct + sum(private for _, private in taken) <= 10
        assert all(pool.cached(held) == len(held) for held, _ in taken)
        assert pool.used + len(pool._idle) <= 10


def test_pool_evicts_what_was_unused_longest():
    pool = BlockPool(3)
    for text in (1, 2, 3):
        assert pool.acquire((text,), 0)
        pool.release((text,), 0)
    assert pool.acquire((1,), 0)
    pool.release((1,), 0)
    assert pool.acquire((), 1)
    assert [pool.cached((text,)) for text in (1, 2, 3)] == [1, 0, 1]
