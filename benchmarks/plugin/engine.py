"""A scheduler whose methods do next to nothing.

So nearly all of the time measured is the plug-in's.
"""

import time
from random import Random
from types import SimpleNamespace
from typing import Any

K = 3
TEMPERATURES, PROMPTS = (0, 0.2, 0.5, 0.7, 0.9, 1.0), (300, 1500, 6000, 20_000)


class ById:
    """A scheduler with the methods of vLLM 0.14 and later."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.num_spec_tokens = K
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(served_model_name="m"),
            parallel_config=SimpleNamespace(data_parallel_index=0, pipeline_parallel_size=1),
            speculative_config=SimpleNamespace(method="eagle3", num_speculative_tokens=K),
        )

    def get_num_unfinished_requests(self) -> int:
        return len(self.running)

    def make_spec_decoding_stats(
        self,
        spec_decoding_stats: Any,
        num_draft_tokens: int,
        num_accepted_tokens: int,
        num_invalid_spec_tokens: Any,
        request_id: str,
    ) -> None:
        return None

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        sampled, index = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for name in scheduler_output.num_scheduled_tokens:
            if draft := drafts.get(name):
                self.make_spec_decoding_stats(
                    None,
                    num_draft_tokens=len(draft),
                    num_accepted_tokens=len(sampled[index[name]]) - 1,
                    num_invalid_spec_tokens=None,
                    request_id=name,
                )
        return model_runner_output.result

    def _free_request(self, request: Any, delay_free_blocks: bool = False) -> None:  # noqa: FBT001, FBT002
        del self.requests[request.request_id]


class Nameless(ById):
    """A scheduler with the methods of vLLM before 0.14."""

    def make_spec_decoding_stats(  # type: ignore[override]
        self, spec_decoding_stats: Any, num_draft_tokens: int, num_accepted_tokens: int
    ) -> None:
        return None

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        sampled, index = model_runner_output.sampled_token_ids, model_runner_output.req_id_to_index
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for name in scheduler_output.num_scheduled_tokens:
            if draft := drafts.get(name):
                accepted = len(sampled[index[name]]) - 1
                self.make_spec_decoding_stats(
                    None, num_draft_tokens=len(draft), num_accepted_tokens=accepted
                )
        return model_runner_output.result


def running(scheduler: Any, requests: int, output: list[int] | None = None) -> list[Any]:
    """Starts ``requests`` mixed requests; returns the arguments for 50 steps of them.

    The scheduler shows the tokens of each one's ``output``; None: it does not, as before 0.32.
    """
    random, new = Random(3), []
    for number in range(requests):
        request = _request(f"cmpl-{number:032x}", random)
        if output is not None:
            request.output_token_ids = output
        scheduler.requests[request.request_id] = request
        scheduler.running.append(request)
        new.append(SimpleNamespace(req_id=request.request_id))
    names = list(scheduler.requests)
    steps = [_step(names, random) for _ in range(50)]
    first = SimpleNamespace(
        **{**vars(steps[0][0]), "scheduled_new_reqs": new, "scheduled_spec_decode_tokens": {}}
    )
    for request in scheduler.running:
        request.num_output_tokens = len(output or [7])
    scheduler.update_from_output(first, steps[0][1])
    return steps


def _step(names: list[str], random: Random) -> tuple[Any, Any]:
    sampled = [[7] * random.randint(1, K + 1) for _ in names]
    outputs = [
        SimpleNamespace(request_id=name, new_token_ids=tokens)
        for name, tokens in zip(names, sampled, strict=True)
    ]
    return (
        SimpleNamespace(
            scheduled_new_reqs=[],
            num_scheduled_tokens=dict.fromkeys(names, K + 1),
            total_num_scheduled_tokens=(K + 1) * len(names),
            scheduled_spec_decode_tokens={name: [1] * K for name in names},
        ),
        SimpleNamespace(
            sampled_token_ids=sampled,
            req_id_to_index={name: place for place, name in enumerate(names)},
            result={0: SimpleNamespace(outputs=outputs)},
        ),
    )


def _request(name: str, random: Random) -> Any:
    return SimpleNamespace(
        request_id=name,
        sampling_params=SimpleNamespace(
            temperature=random.choice(TEMPERATURES), min_p=0.0, logit_bias=None, logprobs=None,
            frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0,
        ),
        num_prompt_tokens=random.choice(PROMPTS),
        num_output_tokens=0,
        use_structured_output=random.random() < 0.3,
        lora_request=None,
        arrival_time=time.time(),
        prefill_stats=SimpleNamespace(num_cached_tokens=0),
        status=SimpleNamespace(name="FINISHED_STOPPED"),
    )  # fmt: skip
