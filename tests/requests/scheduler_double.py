"""A scheduler with the methods of vLLM's that the plug-in wraps, and with vLLM's own counting rules."""

from types import SimpleNamespace

DEPTH = 3


def request(name, temperature=0.5, prompt=100, *, structured=False, adapter=None, **parameters):
    return SimpleNamespace(
        request_id=name,
        sampling_params=SimpleNamespace(temperature=temperature, **parameters),
        num_prompt_tokens=prompt,
        num_output_tokens=0,
        arrival_time=1000.0,
        use_structured_output=structured,
        lora_request=SimpleNamespace(lora_name=adapter) if adapter is not None else None,
        status=SimpleNamespace(name="RUNNING"),
    )


class Scheduler:
    """Like vLLM's from 0.14 on. ``counted`` is what vLLM would count: drafts, draft tokens and accepted tokens."""

    def __init__(self, **config):
        self.requests, self.running, self.counted = {}, [], [0, 0, 0]
        self.num_spec_tokens = config.pop("depth", DEPTH)
        speculative = SimpleNamespace(method="eagle3", num_speculative_tokens=self.num_spec_tokens)
        parallel = SimpleNamespace(data_parallel_index=2, pipeline_parallel_size=config.pop("stages", 1))
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(served_model_name=["m", "alias"]),
            parallel_config=parallel,
            speculative_config=config.pop("speculative", speculative),
        )
        self.new = []

    def get_num_unfinished_requests(self):
        return len(self.running)

    def add(self, one):
        self.requests[one.request_id] = one
        self.running.append(one)
        self.new.append(SimpleNamespace(req_id=one.request_id))

    def step(self, results):
        """One step; ``results`` is (draft tokens, sampled tokens) by request id, in that order."""
        names = list(results)
        output = SimpleNamespace(
            scheduled_new_reqs=[new for new in self.new if new.req_id in names],
            num_scheduled_tokens={name: drafted + 1 for name, (drafted, _) in results.items()},
            scheduled_spec_decode_tokens={name: [1] * drafted for name, (drafted, _) in results.items() if drafted},
            num_invalid_spec_tokens=getattr(self, "invalid", None),
        )
        self.new = [new for new in self.new if new.req_id not in names]
        sampled = [[5] * tokens for _, tokens in results.values()]
        index = {name: place for place, name in enumerate(names)}
        return self.update_from_output(output, SimpleNamespace(sampled_token_ids=sampled, req_id_to_index=index))

    def end(self, *names, status="FINISHED_STOPPED"):
        """Ends requests between two steps; like vLLM, runs one more step at once, which tells the workers."""
        ended = self._end(names, status)
        self.step({})
        return ended

    def _end(self, names, status):
        ended = [self.requests[name] for name in names]
        self.running = [one for one in self.running if one not in ended]
        for one in ended:
            one.status = SimpleNamespace(name=status)
        return [self._free_request(one) for one in ended]

    def make_spec_decoding_stats(
        self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens, num_invalid_spec_tokens, request_id
    ):
        invalid = (num_invalid_spec_tokens or {}).get(request_id, 0)
        return self._observe(num_draft_tokens - invalid, num_accepted_tokens)

    def _observe(self, drafted, accepted):
        self.counted = [one + more for one, more in zip(self.counted, (1, drafted, accepted), strict=True)]
        return self.counted

    def _stats(self, output, name, drafted, accepted):
        return self.make_spec_decoding_stats(
            None,
            num_draft_tokens=drafted,
            num_accepted_tokens=accepted,
            num_invalid_spec_tokens=output.num_invalid_spec_tokens,
            request_id=name,
        )

    def update_from_output(self, scheduler_output, model_runner_output):
        outputs = []
        for name in scheduler_output.num_scheduled_tokens:
            one = self.requests.get(name)
            if one is None:
                continue
            tokens = model_runner_output.sampled_token_ids[model_runner_output.req_id_to_index[name]]
            if draft := scheduler_output.scheduled_spec_decode_tokens.get(name):
                self._stats(scheduler_output, name, len(draft), len(tokens) - 1)
            one.num_output_tokens += len(tokens)
            ends = one.num_output_tokens >= getattr(one, "max_tokens", 10**9)
            reason = "length" if ends else None
            outputs.append(SimpleNamespace(request_id=name, new_token_ids=tokens, finish_reason=reason))
            if ends:
                self._end([name], "FINISHED_LENGTH_CAPPED")
        return {0: SimpleNamespace(outputs=outputs)}

    def _free_request(self, request, delay_free_blocks=False):
        if not delay_free_blocks:
            self.requests.pop(request.request_id, None)
        return "transfer parameters", None


class OldScheduler(Scheduler):
    """Like vLLM's before 0.14."""

    def make_spec_decoding_stats(self, spec_decoding_stats, num_draft_tokens, num_accepted_tokens):
        return self._observe(num_draft_tokens, num_accepted_tokens)

    def _stats(self, output, name, drafted, accepted):
        return self.make_spec_decoding_stats(None, num_draft_tokens=drafted, num_accepted_tokens=accepted)

    def update_from_output(self, scheduler_output, model_runner_output):
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request):
        return super()._free_request(request)


def fresh(base):
    """A new class for each test, since installing changes it; like vLLM's, it defines the methods itself."""
    names = ("__init__", "make_spec_decoding_stats", "update_from_output", "_free_request")
    return type("Scheduler", (base,), {name: _copy(getattr(base, name)) for name in names})


def _copy(method):
    return type(method)(
        method.__code__, {**method.__globals__}, method.__name__, method.__defaults__, method.__closure__
    )
