"""The simulated engine: continuous batching in steps, without its own clock or loop."""

from collections import deque
from functools import lru_cache
from random import Random

from sidecar.demo.blocks import BlockPool
from sidecar.demo.generation import FinishReason, Generation, Load, Prompt, Sampling, StepReport
from sidecar.demo.options import SimulatorOptions


class Engine:
    """Schedules and advances generations; its driver calls ``schedule``, waits, and calls ``complete``.

    As in vLLM, a generation's first token comes with its prompt; then each step verifies K draft tokens and yields
    those accepted and one more. Tokens beyond ``max_tokens`` are cut off but count as accepted. Unlike in vLLM, a
    prompt is computed in one step whatever its length, and a full KV cache admits nothing more but preempts nothing.
    """

    def __init__(self, options: SimulatorOptions) -> None:
        self._options = options
        self._pool = BlockPool(options.num_gpu_blocks)
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._planned: list[Generation] = []
        self._report = StepReport()
        self._submitted = 0

    @property
    def load(self) -> Load:
        """The current gauges."""
        return Load(len(self._running), len(self._waiting), self._pool.usage)

    def submit(self, prompt: Prompt, sampling: Sampling, *, index: int, now: float) -> Generation:
        """Queues one choice; ``outputs`` of later steps hold its tokens."""
        options = self._options
        draws = options.seed * 1_000_003 + self._submitted
        self._submitted += 1
        rate = acceptance_rate(sampling.temperature, options)
        positions = options.num_speculative_tokens
        generation = Generation(
            prompt=prompt,
            sampling=sampling,
            index=index,
            random=Random(draws),
            position_probability=position_probability(rate, positions) if positions else 0.0,
            eos_probability=0.0 if sampling.ignore_eos else 1 / options.mean_tokens_to_eos,
            arrival=now,
            histogram=[0] * (positions + 1),
        )
        self._waiting.append(generation)
        return generation

    def abort(self, generation: Generation) -> bool:
        """Stops a generation whose client disconnected; False if it had already finished."""
        if generation.finished is not None:
            return False
        if generation in self._running:
            self._running.remove(generation)
        else:
            self._waiting.remove(generation)
        self._free(generation)
        generation.finished = FinishReason.ABORT
        return True

    def schedule(self, now: float) -> float | None:
        """Plans the next step and returns its duration in seconds; None if there is nothing to do."""
        for generation in self._running:
            self._grow(generation)
        self._admit(now)
        self._planned = list(self._running)
        return self._duration() if self._planned else None

    def complete(self, now: float) -> StepReport:
        """Ends the planned step: draws accepted tokens, finishes what is done, and reports all of it."""
        report, self._report = self._report, StepReport()
        report.accepted_per_position = [0] * self._options.num_speculative_tokens
        for generation in self._planned:
            if generation.finished is None:  # else aborted while the step ran
                sampled = 1 + (self._verify(generation, report) if generation.output_tokens else 0)
                self._emit(generation, sampled, report, now)
        return report

    def _grow(self, generation: Generation) -> None:
        """Takes the blocks that a verification step may fill, while there are any."""
        # The last sampled token is not in the KV cache yet: this step computes it, and the draft.
        wanted = self._blocks(generation.total_tokens + self._options.num_speculative_tokens)
        missing = wanted - generation.shared_blocks - generation.private_blocks
        if missing > 0 and self._pool.acquire((), missing):
            generation.private_blocks += missing

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            generation = self._waiting[0]
            prompt = generation.prompt
            # The last prompt token is always computed: its output is the first token.
            hits = min(self._pool.cached(prompt.hashes), (prompt.tokens - 1) // self._options.block_size)
            private = self._blocks(prompt.tokens) - len(prompt.hashes)
            if not self._pool.acquire(prompt.hashes, private):
                return
            self._running.append(self._waiting.popleft())
            generation.shared_blocks, generation.private_blocks = len(prompt.hashes), private
            generation.scheduled = now
            generation.cached_tokens = hits * self._options.block_size
            self._report.prefix_queries += prompt.tokens
            self._report.prefix_hits += generation.cached_tokens

    def _duration(self) -> float:
        """A prompt is computed in one step, and drafts nothing in it."""
        options = self._options
        prompts = [one for one in self._planned if not one.output_tokens]
        return (
            options.step_seconds
            + options.step_seconds_per_request * len(self._planned)
            + options.prefill_seconds_per_token * sum(one.prompt.tokens - one.cached_tokens for one in prompts)
            + options.draft_seconds_per_token * options.num_speculative_tokens * (len(prompts) < len(self._planned))
        )

    def _verify(self, generation: Generation, report: StepReport) -> int:
        """One verification step: the number of accepted draft tokens (0 to K)."""
        positions = self._options.num_speculative_tokens
        if not positions:
            return 0
        accepted = 0
        while accepted < positions and generation.random.random() < generation.position_probability:
            report.accepted_per_position[accepted] += 1
            accepted += 1
        report.drafts += 1
        generation.drafts += 1
        generation.accepted_tokens += accepted
        generation.histogram[accepted] += 1
        return accepted

    def _emit(self, generation: Generation, sampled: int, report: StepReport, now: float) -> None:
        """Outputs the sampled tokens up to the first that ends the generation."""
        reason = None
        kept = 0
        while kept < sampled and reason is None:
            kept += 1
            if generation.random.random() < generation.eos_probability:
                reason = FinishReason.STOP
            elif generation.output_tokens + kept >= generation.sampling.max_tokens:
                reason = FinishReason.LENGTH
        if not generation.output_tokens:
            generation.first_token = now
            report.first_token_seconds.append(now - generation.arrival)
            report.prompt_tokens += generation.prompt.tokens
            report.cached_prompt_tokens += generation.cached_tokens
        else:
            report.inter_token_seconds.append(now - generation.last_token)
        generation.last_token = now
        generation.output_tokens += kept
        report.generation_tokens += kept
        report.outputs.append((generation, kept))
        if reason is not None:
            self._running.remove(generation)
            self._free(generation)
            generation.finished = reason
            report.finished.append(generation)

    def _free(self, generation: Generation) -> None:
        if generation.shared_blocks or generation.private_blocks:
            self._pool.release(generation.prompt.hashes, generation.private_blocks)
        generation.shared_blocks = generation.private_blocks = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._options.block_size)


def acceptance_rate(temperature: float, options: SimulatorOptions) -> float:
    """Expected accepted / drafted tokens (0-1) at ``temperature``: falls linearly, then is flat."""
    heat = min(max(temperature, 0.0) / options.hot_temperature, 1.0)
    return options.cold_acceptance + heat * (options.hot_acceptance - options.cold_acceptance)


@lru_cache(maxsize=1024)
def position_probability(rate: float, positions: int) -> float:
    """The probability (0-1) per position at which ``rate`` of all draft tokens is accepted.

    A position counts only if all before it were accepted, so the rate is the mean of p, p^2 … p^positions.
    """
    low, high = 0.0, 1.0
    for _ in range(40):  # bisects to float precision
        middle = (low + high) / 2
        if sum(middle**position for position in range(1, positions + 1)) / positions < rate:
            low = middle
        else:
            high = middle
    return high
