"""The demo's scheduler with steps that a test dictates."""

from dataclasses import replace
from random import Random
from types import SimpleNamespace

from specdec_tools.demo.scheduler import Request, SchedulerOutput, SimulatorOptions
from specdec_tools.demo.scheduler import Scheduler as SimulatedScheduler

DEPTH = 3


def request(
    name,
    temperature=0.5,
    prompt=100,
    *,
    structured=False,
    adapter=None,
    max_tokens=10**9,
    **parameters,
):
    return Request(
        request_id=name, random=Random(0),
        sampling_params=SimpleNamespace(temperature=temperature, **parameters),
        num_prompt_tokens=prompt, max_tokens=max_tokens, arrival_time=1000.0,
        use_structured_output=structured,
        lora_request=None if adapter is None else SimpleNamespace(lora_name=adapter),
    )  # fmt: skip


class Scheduler(SimulatedScheduler):
    """``counted`` is what vLLM's counters would have of its steps.

    These are drafts, draft tokens and accepted tokens.
    """

    def __init__(self, depth=DEPTH, stages=1):
        super().__init__(SimulatorOptions(model_name="m", engine="2", num_speculative_tokens=depth))
        self.vllm_config.model_config.served_model_name = ["m", "alias"]
        self.vllm_config.parallel_config.pipeline_parallel_size = stages
        self.counted = (0, 0, 0)
        self.pause_state = "unpaused"

    def step(self, results, *, resumed=(), invalid=None, computes=None):
        """One step; ``results`` is (draft tokens, sampled tokens) by request id, in that order.

        ``resumed`` are the ids of running requests that the step lists as new again, ``computes``
        prompt tokens that it computes of requests that get no token yet. Returns the step's
        statistics and outputs.
        """
        started = [request for request in self.waiting if request.request_id in results]
        for request in started:
            self.waiting.remove(request)
            self.running.append(request)
        new = [
            SimpleNamespace(req_id=name)
            for name in (*(request.request_id for request in started), *resumed)
        ]
        drafts = {name: drafted for name, (drafted, _) in results.items()}
        output = SchedulerOutput(
            new,
            {**{name: drafted + 1 for name, drafted in drafts.items()}, **(computes or {})},
            {name: [1] * drafted for name, drafted in drafts.items() if drafted},
            invalid,
        )
        index = {name: place for place, name in enumerate(results)}
        sampled = [[5] * tokens for _, tokens in results.values()]
        model_output = SimpleNamespace(req_id_to_index=index, sampled_token_ids=sampled)
        (report,) = self.update_from_output(output, model_output).values()
        if (stats := report.speculation) is not None:
            added = stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens
            self.counted = tuple(map(sum, zip(self.counted, added, strict=True)))
        return report.speculation, report.outputs

    def end(self, *names, status="FINISHED_STOPPED"):
        """Ends requests between two steps.

        Like vLLM, it runs one more step at once, which tells the workers.
        """
        self.finish_requests(names, SimpleNamespace(name=status))
        self.step({})

    def update_from_output(self, scheduler_output, model_runner_output):
        """Like vLLM's from 0.16 on, it counts no draft that came back without a token."""
        index = model_runner_output.req_id_to_index
        verified = {
            name: draft
            for name, draft in scheduler_output.scheduled_spec_decode_tokens.items()
            if name in index and model_runner_output.sampled_token_ids[index[name]]
        }
        return super().update_from_output(
            replace(scheduler_output, scheduled_spec_decode_tokens=verified), model_runner_output
        )

    def _free_request(self, request, delay_free_blocks=False):
        if not delay_free_blocks:
            self.requests.pop(request.request_id, None)
        return "transfer parameters", None


COUNTING = ("make_spec_decoding_stats", "update_from_output", "_free_request")
METHODS = (*COUNTING, "schedule")


def fresh(base):
    """A new class for each test, since installing changes it.

    Like vLLM's, it defines the methods itself.
    """
    names = ("__init__", *METHODS)
    return type("Scheduler", (base,), {name: _copy(getattr(base, name)) for name in names})


def _copy(method):
    return type(method)(
        method.__code__,
        {**method.__globals__},
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
