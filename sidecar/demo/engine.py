"""The simulated engine: continuous batching in steps, without its own clock or loop."""

from collections import deque
from random import Random

from sidecar.demo.acceptance import acceptance_rate, position_probability
from sidecar.demo.blocks import BlockPool
from sidecar.demo.generation import (
    FinishedGeneration,
    FinishReason,
    Generation,
    Load,
    Prompt,
    Sampling,
    Sink,
    StepReport,
)
from sidecar.demo.options import SimulatorOptions


class Engine:
    """Schedules and advances generations; its driver calls ``schedule``, waits, and calls ``complete``.

    As in vLLM, a generation's first token comes with the end of its prompt; after that, each step verifies K
    draft tokens and yields those accepted and one more. Tokens beyond ``max_tokens`` are cut off but count as
    accepted. When the KV cache is full, the youngest running request is preempted and recomputed later.
    """

    def __init__(self, options: SimulatorOptions) -> None:
        self._options = options
        self._pool = BlockPool(options.num_gpu_blocks)
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._planned: list[tuple[Generation, int]] = []  # with the number of its tokens that this step computes
        self._report = StepReport()
        self._submitted = 0

    @property
    def load(self) -> Load:
        """The current gauges."""
        return Load(len(self._running), len(self._waiting), self._pool.usage)

    def submit(self, prompt: Prompt, sampling: Sampling, *, index: int, sink: Sink, now: float) -> Generation:
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
            sink=sink,
            random=Random(draws),
            position_probability=position_probability(rate, positions) if positions else 0.0,
            eos_probability=0.0 if sampling.ignore_eos else 1 / options.mean_tokens_to_eos,
            arrival=now,
            histogram=[0] * (positions + 1),
        )
        self._waiting.append(generation)
        return generation

    def abort(self, generation: Generation, now: float) -> FinishedGeneration | None:
        """Stops a generation whose client disconnected; None if it had already finished."""
        if generation.finished is not None:
            return None
        if generation in self._running:
            self._running.remove(generation)
        else:
            self._waiting.remove(generation)
        return self._finish(generation, FinishReason.ABORT, now)

    def schedule(self, now: float) -> float | None:
        """Plans the next step and returns its duration in seconds; None if there is nothing to do."""
        self._planned = []
        budget = self._options.max_num_batched_tokens
        preempted = False
        for generation in list(self._running):
            if generation not in self._running:
                continue  # preempted for one before it
            if generation.prefilling:
                tokens = max(0, min(generation.total_tokens - generation.computed_tokens, budget))
            else:
                tokens = self._options.num_speculative_tokens + 1
            fits, preempting = self._make_room(generation, tokens)
            preempted |= preempting
            if fits and tokens:
                self._planned.append((generation, tokens))
                budget -= tokens
        if not preempted:
            self._admit(budget, now)
        if not self._planned:
            return None
        return self._duration()

    def complete(self, now: float) -> StepReport:
        """Ends the planned step: draws accepted tokens, finishes what is done, and reports all of it."""
        report, self._report = self._report, StepReport()
        report.accepted_per_position = [0] * self._options.num_speculative_tokens
        for generation, tokens in self._planned:
            if generation.finished is not None:
                continue  # aborted while the step ran
            if generation.prefilling:
                generation.computed_tokens += tokens
                if generation.computed_tokens < generation.total_tokens:
                    continue
                generation.prefilling = False
                sampled = 1
            else:
                sampled = 1 + self._verify(generation, report)
            self._emit(generation, sampled, report, now)
        self._planned = []
        return report

    def _make_room(self, generation: Generation, tokens: int) -> tuple[bool, bool]:
        """Takes blocks for ``tokens`` more; returns whether they fit, and whether a request was preempted for them."""
        if generation.prefilling:
            return True, False  # admission took all the blocks it needs
        wanted = self._blocks(generation.computed_tokens + tokens)
        preempted = False
        while (missing := wanted - generation.shared_blocks - generation.private_blocks) > 0:
            if self._pool.acquire((), missing):
                generation.private_blocks += missing
                break
            victim = self._running.pop()
            preempted = True
            self._preempt(victim)
            if victim is generation:
                return False, True
        return True, preempted

    def _preempt(self, victim: Generation) -> None:
        self._free(victim)
        self._planned = [plan for plan in self._planned if plan[0] is not victim]
        victim.prefilling = True
        victim.computed_tokens = 0
        victim.preemptions += 1
        self._report.preemptions += 1
        self._waiting.appendleft(victim)

    def _admit(self, budget: int, now: float) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._options.max_num_seqs:
            generation = self._waiting[0]
            hashes = generation.prompt.hashes
            # The last prompt token is always computed: its output is the first token.
            hits = min(self._pool.cached(hashes), (generation.prompt.tokens - 1) // self._options.block_size)
            private = self._blocks(generation.total_tokens) - len(hashes)
            if not self._pool.acquire(hashes, private):
                return
            self._waiting.popleft()
            self._running.append(generation)
            generation.shared_blocks, generation.private_blocks = len(hashes), private
            generation.computed_tokens = hits * self._options.block_size
            if generation.scheduled is None:
                generation.scheduled = now
                generation.cached_tokens = generation.computed_tokens
                self._report.prefix_queries += generation.prompt.tokens
                self._report.prefix_hits += generation.cached_tokens
            tokens = min(generation.total_tokens - generation.computed_tokens, budget)
            self._planned.append((generation, tokens))
            budget -= tokens

    def _duration(self) -> float:
        options = self._options
        prefill = sum(tokens for generation, tokens in self._planned if generation.prefilling)
        return (
            options.step_seconds
            + options.step_seconds_per_request * len(self._planned)
            + options.prefill_seconds_per_token * prefill
            + (options.draft_seconds_per_token * options.num_speculative_tokens if self._drafts() else 0.0)
        )

    def _drafts(self) -> bool:
        """Whether some request verifies a draft in this step; one that prefills has none yet."""
        return any(not generation.prefilling for generation, _ in self._planned)

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
        if generation.first_token is None:
            generation.first_token = now
            report.first_token_seconds.append(now - generation.arrival)
            report.prompt_tokens += generation.prompt.tokens
            report.cached_prompt_tokens += generation.cached_tokens
        else:
            report.inter_token_seconds.append(now - generation.last_token)
        generation.last_token = now
        generation.output_tokens += kept
        # The last sampled token is not in the KV cache yet: the next step computes it.
        generation.computed_tokens = generation.total_tokens - 1
        report.generation_tokens += kept
        report.outputs.append((generation, kept))
        if reason is not None:
            self._running.remove(generation)
            report.finished.append(self._finish(generation, reason, now))

    def _finish(self, generation: Generation, reason: FinishReason, now: float) -> FinishedGeneration:
        self._free(generation)
        generation.finished = reason
        scheduled = now if generation.scheduled is None else generation.scheduled
        first = now if generation.first_token is None else generation.first_token
        return FinishedGeneration(
            reason=reason,
            generation_tokens=generation.output_tokens,
            preemptions=generation.preemptions,
            e2e=now - generation.arrival,
            queue=scheduled - generation.arrival,
            decode=now - first,
        )

    def _free(self, generation: Generation) -> None:
        if generation.shared_blocks or generation.private_blocks:
            self._pool.release(generation.prompt.hashes, generation.private_blocks)
        generation.shared_blocks = generation.private_blocks = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._options.block_size)
