"""The simulated scheduler by itself, with an injected clock.

``tests/lab`` compares it with vLLM's own.
"""

import json
from random import Random

import pytest

from sidecar.requests.plugin import LOOP_TOKENS, ending_of, is_loop, options
from specdec_tools.demo.scheduler import (
    LOOP_BEGINS,
    Request,
    RequestStatus,
    SamplingParams,
    Scheduler,
    SimulatorOptions,
    acceptance,
)


def scheduler_with(*requests, **options):
    """A scheduler with waiting requests.

    Each is given as a dict of what it has other than by default.
    """
    scheduler = Scheduler(SimulatorOptions(**options))
    for number, given in enumerate(requests):
        temperature = given.pop("temperature", 0.0)
        own = {
            "request_id": str(number),
            "sampling_params": SamplingParams(temperature),
            "random": Random(number),
        }
        scheduler.add_request(
            Request(**{"num_prompt_tokens": 8, "max_tokens": 20, "arrival_time": 0.0} | own | given)
        )
    return scheduler, list(scheduler.requests.values())


def step(scheduler):
    """One step; its report, or None if there is nothing to do."""
    output = scheduler.schedule()
    if not output.num_scheduled_tokens:
        return None
    scheduler.now += scheduler.duration(output)
    (report,) = scheduler.update_from_output(output, scheduler.execute(output)).values()
    assert 0 <= scheduler.kv_cache_usage <= 1
    return report


def run(scheduler):
    return list(iter(lambda: step(scheduler), None))


def rate(*requests):
    """Accepted tokens per draft token, with the default of three in each draft."""
    accepted = sum(
        length * steps for request in requests for length, steps in enumerate(request.lengths)
    )
    return accepted / sum(3 * sum(request.lengths) for request in requests)


def test_acceptance_falls_with_temperature_and_crosses_a_half_near_0_8():
    """As the source material says of a small draft; flat above 1.2."""
    rates = []
    for temperature in (0.0, 0.4, 0.7, 0.9, 1.2, 2.0):
        scheduler, requests = scheduler_with(
            *({"temperature": temperature, "max_tokens": 2000} for _ in range(8))
        )
        run(scheduler)
        rates.append(rate(*requests))
        chance = acceptance(temperature, SimulatorOptions())
        assert abs(rates[-1] - (chance + chance**2 + chance**3) / 3) < 0.02
    assert rates[:5] == sorted(rates[:5], reverse=True)
    assert rates[2] > 0.5 > rates[3]
    assert rates[0] == pytest.approx(0.95, abs=0.02)
    assert rates[4:] == pytest.approx([0.35, 0.35], abs=0.02)  # flat from there on


def test_the_prompts_step_drafts_nothing_and_tokens_past_the_maximum_are_cut_off_but_counted():
    scheduler, (request,) = scheduler_with({"temperature": 0.6, "max_tokens": 100})
    prompt, *reports = run(scheduler)
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert prompt.speculation is None
    assert prompt.generation_tokens + sum(report.generation_tokens for report in reports) == 100
    accepted = sum(report.speculation.num_accepted_tokens for report in reports)
    assert 0 <= 1 + len(reports) + accepted - 100 <= 3


def test_latencies_are_those_of_the_steps():
    """By an injected clock, so they are exact."""
    seconds = {
        "step_seconds": 1.0,
        "prefill_seconds_per_token": 0.5,
        "draft_seconds_per_token": 0.25,
    }
    given = {"num_prompt_tokens": 4, "max_tokens": 30}
    scheduler, (request,) = scheduler_with(
        given, **seconds, step_seconds_per_request=0.0, prefix_hits=0.0
    )
    scheduler.now = 2.0
    reports = run(scheduler)
    assert request.scheduled - request.arrived == 2.0
    # two in the queue, a step and four prompt tokens
    assert reports[0].first_token_seconds == [5.0]
    gaps = [gap for report in reports for gap in report.inter_token_seconds]
    assert gaps == [1.75] * (len(reports) - 1)  # one per output event, not per token
    assert request.time_per_output_token == sum(gaps) / 29


def test_structured_output_accepts_less_if_the_options_say_so():
    given = (
        {"max_tokens": 4000, "use_structured_output": structured} for structured in (False, True)
    )
    scheduler, (free, structured) = scheduler_with(*given, structured_acceptance=0.5)
    run(scheduler)
    assert abs(rate(structured) - 0.28) < 0.03
    assert rate(free) > 0.9


def test_no_more_than_max_num_seqs_run_and_the_others_wait_in_order():
    scheduler, requests = scheduler_with(
        *({"max_tokens": 10 + 40 * place} for place in range(5)), max_num_seqs=2
    )
    step(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 3)
    run(scheduler)
    starts = [request.scheduled for request in requests]
    assert starts == sorted(starts)
    assert starts[2] > 0
    assert {request.status for request in requests} == {RequestStatus.FINISHED_LENGTH_CAPPED}


def test_without_speculation_each_step_gives_one_token():
    scheduler, _ = scheduler_with({"max_tokens": 10}, num_speculative_tokens=0)
    assert [(report.generation_tokens, report.speculation) for report in run(scheduler)] == [
        (1, None)
    ] * 10


def test_no_token_occurs_twice_unless_the_output_loops():
    scheduler, (request,) = scheduler_with({"max_tokens": 500})
    run(scheduler)

    assert len(set(request.output_token_ids)) == request.num_output_tokens == 500


def test_outputs_at_temperature_0_loop_if_the_options_say_so_and_loops_are_easy_to_draft():
    given = ({"max_tokens": 3000, "temperature": temperature} for temperature in (0.0, 0.7))
    scheduler, (greedy, sampled) = scheduler_with(*given, loop_share=1.0, cold_acceptance=0.7)
    run(scheduler)

    assert greedy.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert ending_of(greedy, "length") == "loop"
    assert ending_of(sampled, "length") == "normal"
    assert rate(greedy) == pytest.approx(0.98, abs=0.01)
    assert rate(sampled) < 0.5


def test_an_output_that_is_too_short_shows_no_loop():
    """One token more and the plug-in sees it."""
    scheduler, (short, long) = scheduler_with(
        {"max_tokens": LOOP_BEGINS + LOOP_TOKENS - 1},
        {"max_tokens": LOOP_BEGINS + LOOP_TOKENS},
        loop_share=1.0,
    )
    run(scheduler)

    assert not is_loop(short.output_token_ids)
    assert is_loop(long.output_token_ids)


def test_an_empty_output_ends_with_its_first_token():
    scheduler, (request,) = scheduler_with({"temperature": 0.7}, empty_share=1.0)
    (report,) = run(scheduler)

    assert request.status is RequestStatus.FINISHED_STOPPED
    assert ending_of(request, "stopped") == "empty"
    assert (report.generation_tokens, report.speculation) == (1, None)
    assert report.finished == [request]
    assert request.lengths == [0, 0, 0, 0]


def test_an_abort_ends_waiting_and_running_requests():
    """Also during a step; another abort of the same request changes nothing."""
    scheduler, (running, waiting) = scheduler_with({"max_tokens": 500}, {}, max_num_seqs=1)
    step(scheduler)
    output = scheduler.schedule()
    scheduler.finish_requests(["0", "1"], RequestStatus.FINISHED_ABORTED)
    (report,) = scheduler.update_from_output(output, scheduler.execute(output)).values()
    assert (report.outputs, running.num_output_tokens) == ([], 1)
    assert running.status is waiting.status is RequestStatus.FINISHED_ABORTED
    scheduler.finish_requests(["0"], RequestStatus.FINISHED_ABORTED)
    assert (scheduler.running, len(scheduler.waiting), scheduler.get_num_unfinished_requests()) == (
        [],
        0,
        0,
    )
    assert step(scheduler) is None


def test_the_plugin_can_tell_the_whole_speculative_config():
    """So that the demo shows the line to paste, as a real vLLM does."""
    greedy, _ = scheduler_with()
    sampled, _ = scheduler_with(draft_sample_method="probabilistic")
    told = json.loads(options(greedy.vllm_config.speculative_config))
    told_sampled = json.loads(options(sampled.vllm_config.speculative_config))

    assert told == {"method": "draft_model", "model": "demo-draft", "num_speculative_tokens": 3}
    assert told_sampled == told | {"draft_sample_method": "probabilistic"}
