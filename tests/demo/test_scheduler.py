"""The simulated scheduler by itself, with an injected clock."""

import time
from random import Random

import pytest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.request import Request, RequestStatus, SamplingParams
from sidecar.demo.scheduler import Scheduler, acceptance


def submit(scheduler, *, prompt=8, temperature=0.0, max_tokens=20, structured=False):
    number = len(scheduler.requests)
    sampling = SamplingParams(temperature, max_tokens)
    request = Request(f"{number}-{time.monotonic_ns()}", sampling, prompt, 0.0, Random(number), structured)
    scheduler.add_request(request)
    return request


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


def total(reports, field):
    return sum(getattr(report, field) for report in reports)


def drafted(requests):
    return 3 * sum(sum(request.lengths) for request in requests)


def accepted(requests):
    return sum(length * steps for request in requests for length, steps in enumerate(request.lengths))


def test_acceptance_falls_with_temperature_and_crosses_a_half_near_0_8():
    options = SimulatorOptions()
    measured = []
    for temperature in (0.0, 0.4, 0.7, 0.9, 1.2, 2.0):
        scheduler = Scheduler(options)
        requests = [submit(scheduler, temperature=temperature, max_tokens=2000) for _ in range(8)]
        run(scheduler)
        measured.append(accepted(requests) / drafted(requests))
        chance = acceptance(temperature, options)
        assert abs(measured[-1] - (chance + chance**2 + chance**3) / 3) < 0.02
    assert measured[:5] == sorted(measured[:5], reverse=True)
    assert measured[2] > 0.5 > measured[3]
    assert measured[0] == pytest.approx(0.95, abs=0.02)
    assert measured[4:] == pytest.approx([0.35, 0.35], abs=0.02)  # flat from there on


def test_one_request_adds_up_to_the_token():
    scheduler = Scheduler(SimulatorOptions())
    request = submit(scheduler, prompt=33, temperature=0.6, max_tokens=100)
    prompt, *reports = run(scheduler)
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED
    assert prompt.speculation is None  # its step drafts nothing
    assert request.num_output_tokens == total([prompt, *reports], "generation_tokens") == 100
    stats = [report.speculation for report in reports]
    assert sum(request.lengths) == total(stats, "num_drafts") == len(reports)
    assert accepted([request]) == total(stats, "num_accepted_tokens")
    assert accepted([request]) == sum(sum(one.num_accepted_tokens_per_pos) for one in stats)
    # What the last step accepted beyond max_tokens is cut off and yet counts as accepted, as in vLLM.
    assert 0 <= 1 + len(reports) + accepted([request]) - 100 <= 3


def test_latencies_are_those_of_the_steps():
    options = SimulatorOptions(
        step_seconds=1.0, step_seconds_per_request=0.0, prefill_seconds_per_token=0.5, draft_seconds_per_token=0.25,
        prefix_hits=0.0,
    )  # fmt: skip
    scheduler = Scheduler(options)
    request = submit(scheduler, prompt=4, max_tokens=30)
    scheduler.now = 2.0
    reports = run(scheduler)
    assert request.scheduled - request.arrived == 2.0
    assert reports[0].first_token_seconds == [5.0]  # two in the queue, a step and four prompt tokens
    gaps = [gap for report in reports for gap in report.inter_token_seconds]
    assert gaps == [1.75] * (len(reports) - 1)  # one an output event, not one a token
    assert request.time_per_output_token == sum(gaps) / 29


def test_structured_output_accepts_less_where_it_is_said_to():
    scheduler = Scheduler(SimulatorOptions(structured_acceptance=0.5))
    free, structured = (submit(scheduler, max_tokens=4000, structured=one) for one in (False, True))
    run(scheduler)
    assert abs(accepted([structured]) / drafted([structured]) - 0.28) < 0.03
    assert accepted([free]) / drafted([free]) > 0.9


def test_no_more_than_max_num_seqs_run_and_the_others_wait_in_order():
    scheduler = Scheduler(SimulatorOptions(max_num_seqs=2))
    requests = [submit(scheduler, max_tokens=10 + 40 * place) for place in range(5)]
    step(scheduler)
    assert (len(scheduler.running), len(scheduler.waiting)) == (2, 3)
    run(scheduler)
    starts = [request.scheduled for request in requests]
    assert starts == sorted(starts)
    assert starts[2] > 0
    assert {request.status for request in requests} == {RequestStatus.FINISHED_LENGTH_CAPPED}


def test_without_speculation_each_step_gives_one_token():
    scheduler = Scheduler(SimulatorOptions(num_speculative_tokens=0))
    request = submit(scheduler, max_tokens=10)
    reports = run(scheduler)
    assert [(report.generation_tokens, report.speculation) for report in reports] == [(1, None)] * 10
    assert request.lengths == [0]


def test_abort_ends_waiting_and_running_ones():
    scheduler = Scheduler(SimulatorOptions(max_num_seqs=1))
    running, waiting = submit(scheduler, max_tokens=500), submit(scheduler)
    step(scheduler)
    output = scheduler.schedule()
    scheduler.finish_requests([running.request_id, waiting.request_id], RequestStatus.FINISHED_ABORTED)
    (report,) = scheduler.update_from_output(output, scheduler.execute(output)).values()
    assert (report.outputs, running.num_output_tokens) == ([], 1)
    assert running.status is waiting.status is RequestStatus.FINISHED_ABORTED
    scheduler.finish_requests([running.request_id], RequestStatus.FINISHED_ABORTED)
    assert (scheduler.running, len(scheduler.waiting), scheduler.get_num_unfinished_requests()) == ([], 0, 0)
    assert step(scheduler) is None
