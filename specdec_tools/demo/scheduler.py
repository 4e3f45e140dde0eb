"""The simulated engine's scheduler and its requests.

It batches continuously, in steps, without a clock or loop of its own. All have the names, methods
and attributes of vLLM's own that the plug-in wraps and reads.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from types import SimpleNamespace
from typing import Final

from specdec_tools.demo.step_law import LinearLaw, StepLaw, StepWork

LOOP_BEGINS: Final = 24
"""Tokens of an output that loops before it begins to repeat itself."""
_LOOP_PERIOD: Final = 8
# A loop is easy to draft: 98 % of its draft tokens are accepted.
_LOOP_ACCEPTANCE: Final = 0.99
_END: Final = -1  # the token that ends an output


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """How the simulated vLLM behaves; by default like a small model with a draft model."""

    model_name: str = "demo"
    engine: str = "0"  # the value of the `engine` label
    speed: float = 1.0  # factor on engine speed; above about 10 the event loop is the limit

    num_speculative_tokens: int = 3  # draft tokens per verification step; 0: no speculation
    # Probability at temperature 0 that a draft token is accepted if all before it were.
    cold_acceptance: float = 0.975
    hot_acceptance: float = 0.56  # the same from hot_temperature on; linear between the two
    # With these defaults 95 % of the draft tokens are accepted at 0, 35 % at 1.2.
    hot_temperature: float = 1.2
    # What the plug-in reads; hot_acceptance does not follow from it.
    draft_sample_method: str = "greedy"
    structured_acceptance: float = 1.0  # factor on that probability for structured output
    # Share of the requests at temperature 0 whose outputs repeat themselves until they are cut off.
    loop_share: float = 0.0
    empty_share: float = 0.0  # share of all requests whose outputs end with their first token
    # Share of requests that find ``cached_share`` of their prompt in the prefix cache (0-1).
    prefix_hits: float = 0.25
    cached_share: float = 0.5

    max_num_seqs: int = 16  # requests that run concurrently
    max_num_batched_tokens: int = 1_000_000  # tokens per step: a longer prompt takes several
    block_size: int = 16  # tokens per KV-cache block
    num_gpu_blocks: int = 4096  # KV-cache blocks

    step_seconds: float = 0.014  # an empty engine step
    step_seconds_per_request: float = 0.0002  # added for every running request
    prefill_seconds_per_token: float = 0.00002  # added for every prompt token computed
    # Added for each draft position, since drafting is sequential.
    draft_seconds_per_token: float = 0.0
    law: StepLaw | None = None  # if given, it replaces these durations


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """Those of vLLM's options that occur here.

    The defaults are vLLM's: the plug-in reports what differs from them as what was set.
    """

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    draft_sample_method: str = "greedy"
    rejection_sample_method: str = "standard"


class RequestStatus(StrEnum):
    """The states of vLLM's requests that occur here.

    The values are those of its label ``finished_reason``.
    """

    RUNNING = ""  # or waiting
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH_CAPPED = "length"
    FINISHED_ABORTED = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The effective temperature, the only parameter that steers generation here."""

    temperature: float


@dataclass(eq=False)  # no slots: the plug-in adds an attribute of its own
class Request:
    """One sequence to generate.

    ``arrival_time`` is in Unix seconds, the other times are the engine's.
    """

    request_id: str
    sampling_params: SamplingParams
    num_prompt_tokens: int
    max_tokens: int
    arrival_time: float
    random: Random
    use_structured_output: bool = False
    lora_request: None = None
    status: RequestStatus = RequestStatus.RUNNING
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    num_computed_tokens: int = 0  # tokens whose keys and values are in the KV cache
    output_token_ids: list[int] = field(default_factory=list)
    is_empty: bool = False
    loops: bool = False
    arrived: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    # [j]: verification steps that accepted j tokens
    lengths: list[int] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        """Generated tokens, the one that ends the output included."""
        return len(self.output_token_ids)

    @property
    def is_looping(self) -> bool:
        """Whether the next token repeats earlier ones."""
        return self.loops and self.num_output_tokens >= LOOP_BEGINS

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether tokens of its prompt are still to be computed."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def time_per_output_token(self) -> float:
        """Seconds per token after the first; 0 for a request of one token, as in vLLM."""
        return (self.last_token - self.first_token) / max(self.num_output_tokens - 1, 1)

    def append_output_token_ids(self, token_ids: list[int]) -> None:
        """Adds generated tokens."""
        self.output_token_ids += token_ids

    def next_tokens(self, number: int) -> list[int]:
        """So many tokens that continue the output.

        Each is its own place in the output, so that none occurs twice unless the output loops.
        """
        if self.is_empty:
            return [_END]
        begun = self.num_output_tokens
        return [self._token(place) for place in range(begun, begun + number)]

    def _token(self, place: int) -> int:
        if self.loops and place >= LOOP_BEGINS:
            return LOOP_BEGINS + place % _LOOP_PERIOD
        return place


@dataclass(slots=True)
class SchedulerOutput:
    """What the next step computes, by request id."""

    scheduled_new_reqs: list[SimpleNamespace] = field(default_factory=list)  # with req_id
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    num_invalid_spec_tokens: dict[str, int] | None = None  # draft tokens that a grammar rejected

    @property
    def total_num_scheduled_tokens(self) -> int:
        """The tokens that all requests compute together."""
        return sum(self.num_scheduled_tokens.values())


@dataclass(slots=True)
class SpecDecodingStats:
    """What one step adds to vLLM's speculation counters."""

    num_accepted_tokens_per_pos: list[int]
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The tokens that one step generated for one request.

    ``finish_reason`` is None if the request goes on.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None


@dataclass(slots=True)
class StepReport:
    """What one step adds to the page, and its ``outputs``."""

    speculation: SpecDecodingStats | None = None
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    inter_token_seconds: list[float] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    outputs: list[NewTokens] = field(default_factory=list)


class Scheduler:
    """Schedules and advances requests; the caller sets ``now``, in seconds.

    As in vLLM, the step that computes a prompt yields the first token; each later step verifies K
    draft tokens and yields the accepted ones and one more. Tokens beyond ``max_tokens`` are cut off
    but count as accepted. A prompt longer than what is left of ``max_num_batched_tokens`` takes
    several steps. Unlike in vLLM, a full KV cache stops nothing.
    """

    def __init__(self, options: SimulatorOptions) -> None:
        self._options = options
        self.num_spec_tokens = options.num_speculative_tokens
        speculation = SpeculativeConfig(
            method="draft_model",
            model="demo-draft",
            num_speculative_tokens=self.num_spec_tokens,
            draft_sample_method=options.draft_sample_method,
        )

        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(served_model_name=options.model_name),
            parallel_config=SimpleNamespace(data_parallel_index=int(options.engine)),
            speculative_config=speculation if self.num_spec_tokens else None,
        )

        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.now = 0.0

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks in use (0-1), including those that the next step may fill."""
        sizes = (request.num_prompt_tokens + request.num_output_tokens for request in self.running)
        blocks = sum(
            -(-(tokens + self.num_spec_tokens) // self._options.block_size) for tokens in sizes
        )
        return min(1.0, blocks / self._options.num_gpu_blocks)

    def get_num_unfinished_requests(self) -> int:
        """The number of waiting and running requests."""
        return len(self.waiting) + len(self.running)

    def add_request(self, request: Request) -> None:
        """Queues a request."""
        request.arrived = self.now
        request.lengths = [0] * (self.num_spec_tokens + 1)
        self._choose_ending(request)
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def _choose_ending(self, request: Request) -> None:
        """Decides whether an output is empty or loops, as the model does with or without drafts."""
        options = self._options
        # A source of its own: how likely an ending is changes nothing else of a seeded run.
        chance = Random(request.request_id)
        request.is_empty = chance.random() < options.empty_share
        is_greedy = not request.sampling_params.temperature
        request.loops = is_greedy and chance.random() < options.loop_share

    def finish_requests(self, request_ids: Iterable[str], finished_status: RequestStatus) -> None:
        """Ends requests from outside, such as when their clients disconnect.

        Ignores those that have ended.
        """
        for request_id in request_ids:
            if (request := self.requests.get(request_id)) is not None:
                self._end(request, finished_status)

    def schedule(self) -> SchedulerOutput:
        """Plans the next step, which is empty if no request waits or runs."""
        output = SchedulerOutput()
        options = self._options
        room = options.max_num_batched_tokens
        for request in self.running:
            if request.is_prefilling:
                continue
            output.num_scheduled_tokens[request.request_id] = 1 + self.num_spec_tokens
            room -= 1 + self.num_spec_tokens
            if self.num_spec_tokens:
                output.scheduled_spec_decode_tokens[request.request_id] = [0] * self.num_spec_tokens

        for request in self.running:
            if request.is_prefilling and room > 0:
                room -= self._prefill(request, output, room)

        while self.waiting and len(self.running) < options.max_num_seqs and room > 0:
            request = self.waiting.popleft()
            self.running.append(request)
            request.scheduled = self.now
            if request.random.random() < options.prefix_hits:
                cached = int(request.num_prompt_tokens * options.cached_share)
                # vLLM always computes the last token, to get its logits.
                request.num_cached_tokens = min(cached, request.num_prompt_tokens - 1)
            request.num_computed_tokens = request.num_cached_tokens
            output.scheduled_new_reqs.append(SimpleNamespace(req_id=request.request_id))
            room -= self._prefill(request, output, room)

        return output

    def _prefill(self, request: Request, output: SchedulerOutput, room: int) -> int:
        """Plans the next part of a prompt, at most ``room`` tokens; returns how many."""
        tokens = min(request.num_prompt_tokens - request.num_computed_tokens, room)
        output.num_scheduled_tokens[request.request_id] = tokens
        return tokens

    def duration(self, output: SchedulerOutput) -> float:
        """The planned step's duration in seconds, by the law in the options."""
        options = self._options
        law = options.law or LinearLaw(
            step=options.step_seconds,
            per_request=options.step_seconds_per_request,
            per_prefill_token=options.prefill_seconds_per_token,
            per_draft_position=options.draft_seconds_per_token,
        )
        return law.seconds(self._work(output))

    def _work(self, output: SchedulerOutput) -> StepWork:
        """What the planned step computes."""
        decodes = 0
        context = 0
        prefill = 0
        attended = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            if request.is_prefilling:
                prefill += tokens
                attended += tokens * (request.num_computed_tokens + tokens // 2)
            else:
                decodes += 1
                context += request.num_tokens

        return StepWork(
            decodes=decodes,
            context_tokens=context,
            drafted=self.num_spec_tokens,
            prefill_tokens=prefill,
            prefill_context=attended / prefill if prefill else 0.0,
        )

    def execute(self, output: SchedulerOutput) -> SimpleNamespace:
        """Samples tokens: for each request, as many as it accepts and one more.

        The result is like vLLM's ``ModelRunnerOutput``.
        """
        sampled: list[list[int]] = []
        for request_id in output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None:  # aborted since
                sampled.append([])
                continue
            if request.is_prefilling:
                ends = request.num_computed_tokens + output.num_scheduled_tokens[request_id]
                is_last_part = ends >= request.num_prompt_tokens
                sampled.append(request.next_tokens(1) if is_last_part else [])
                continue

            drafted = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            accepted = self._accepted(request, drafted)
            sampled.append(request.next_tokens(1 + accepted))

        order = {request_id: index for index, request_id in enumerate(output.num_scheduled_tokens)}
        return SimpleNamespace(req_id_to_index=order, sampled_token_ids=sampled)

    def _accepted(self, request: Request, drafted: int) -> int:
        """How many of the draft tokens are accepted: those before the first that is not."""
        chance = acceptance(request.sampling_params.temperature, self._options)
        if request.use_structured_output:
            chance *= self._options.structured_acceptance
        if request.is_looping:
            chance = max(chance, _LOOP_ACCEPTANCE)

        accepted = 0
        while accepted < drafted and request.random.random() < chance:
            accepted += 1
        return accepted

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: SimpleNamespace
    ) -> dict[int, StepReport]:
        """Completes the planned step: finishes requests that are done, and reports by client.

        It does so as vLLM does.
        """
        report = StepReport()
        for request_id, index in model_runner_output.req_id_to_index.items():
            request = self.requests.get(request_id)
            if request is None:  # aborted while the step ran
                continue

            tokens = model_runner_output.sampled_token_ids[index]
            if request.is_prefilling:
                request.num_computed_tokens += scheduler_output.num_scheduled_tokens[request_id]
                if not tokens:  # of a part of a prompt, as in vLLM, nothing is reported
                    continue
            if draft := scheduler_output.scheduled_spec_decode_tokens.get(request_id):
                request.lengths[len(tokens) - 1] += 1
                invalid = scheduler_output.num_invalid_spec_tokens
                report.speculation = self.make_spec_decoding_stats(
                    report.speculation, len(draft), len(tokens) - 1, invalid, request_id
                )
            self._emit(request, tokens, report)

        return {0: report}

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: SpecDecodingStats | None,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: Mapping[str, int] | None,
        request_id: str,
    ) -> SpecDecodingStats:
        """Adds one request's verification to the step's statistics."""
        stats = spec_decoding_stats or SpecDecodingStats([0] * self.num_spec_tokens)
        stats.num_drafts += 1
        invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
        stats.num_draft_tokens += num_draft_tokens - invalid
        stats.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            stats.num_accepted_tokens_per_pos[position] += 1
        return stats

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - vLLM's signature
        """Forgets a request that has ended; in vLLM, every request ends here."""
        del self.requests[request.request_id]

    def _emit(self, request: Request, sampled: list[int], report: StepReport) -> None:
        """Outputs the sampled tokens, up to ``max_tokens`` in total."""
        tokens = sampled[: request.max_tokens - request.num_output_tokens]
        if not request.num_output_tokens:
            request.first_token = self.now
            report.first_token_seconds.append(self.now - request.arrived)
            report.prompt_tokens += request.num_prompt_tokens
            report.cached_prompt_tokens += request.num_cached_tokens
        else:
            report.inter_token_seconds.append(self.now - request.last_token)

        request.last_token = self.now
        request.append_output_token_ids(tokens)
        report.generation_tokens += len(tokens)
        status = _status(request, tokens)
        if status is not RequestStatus.RUNNING:
            self._end(request, status)
            report.finished.append(request)

        report.outputs.append(NewTokens(request.request_id, tokens, request.status or None))

    def _end(self, request: Request, status: RequestStatus) -> None:
        (self.running if request in self.running else self.waiting).remove(request)
        request.status = status
        self._free_request(request)


def _status(request: Request, tokens: list[int]) -> RequestStatus:
    """A request's status after it got these tokens; vLLM, too, looks for the end first."""
    if _END in tokens:
        return RequestStatus.FINISHED_STOPPED
    if request.num_output_tokens >= request.max_tokens:
        return RequestStatus.FINISHED_LENGTH_CAPPED
    return RequestStatus.RUNNING


def acceptance(temperature: float, options: SimulatorOptions) -> float:
    """The probability that a draft token is accepted if all before it were.

    It falls linearly with the temperature, then stays flat.
    """
    heat = min(max(temperature, 0.0) / options.hot_temperature, 1.0)
    return options.cold_acceptance + heat * (options.hot_acceptance - options.cold_acceptance)
