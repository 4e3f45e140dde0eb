"""The real Scheduler of an installed vLLM under the plug-in, fed random model output.

There is no model and no server.

Run by that vLLM's Python, with the repository, its tests/requests, and the folder that
`specdec-sidecar plugin` wrote on PYTHONPATH: `VENV/bin/python tests/lab/real_scheduler.py
MODEL_FOLDER [async] [v2]`; docs/measurements/plugin.md names the releases on which it ran. Requests
come, draft, are preempted for lack of KV blocks, are aborted and end; with v2 as for model runner
V2, to which a preempted request is a new one. Without async, the simulated scheduler gets the same
requests and steps. Exits with 0 if all sums are equal, no total has fallen, and the simulated
scheduler has done the same at each step.
"""

import inspect
import os
import random
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(
    VLLM_USE_V1="1", HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR"
)

import specdec_plugin
import torch
import transformers
from plain_receiver import PlainReceiver
from scheduler_double import Scheduler as SimulatedScheduler
from scheduler_double import request as simulated_request

# A vLLM that runs with the libraries of another registers a model that these know already.
_own = transformers.AutoConfig.register
transformers.AutoConfig.register = staticmethod(
    lambda *args, exist_ok=False: _own(*args, exist_ok=True)
)

import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

REQUESTS, STEPS, BLOCKS, K = 150, 3000, 40, 3


def call(make, **arguments):
    """With those of the arguments that this release takes."""
    return make(
        **{
            name: given
            for name, given in arguments.items()
            if name in inspect.signature(make).parameters
        }
    )


def make_scheduler(model, asynchronous):
    method = {
        "method": "ngram",
        "num_speculative_tokens": K,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
    config = EngineArgs(
        model=model, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=128,
        enable_chunked_prefill=True, enforce_eager=True, dtype="float32", block_size=16,
        speculative_config=method,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks, config.cache_config.enable_prefix_caching = BLOCKS, False
    config.scheduler_config.async_scheduling = asynchronous
    sizes = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
    group = KVCacheGroupSpec(
        ["layer"], call(FullAttentionSpec, **sizes, use_mla=False, sliding_window=None)
    )
    cache = call(
        KVCacheConfig, num_blocks=BLOCKS, kv_cache_tensors=[], tensors={}, kv_cache_groups=[group]
    )
    cls = scheduler_module.Scheduler
    if asynchronous:
        from vllm.v1.core.sched import async_scheduler

        cls = async_scheduler.AsyncScheduler
    known = inspect.signature(scheduler_module.Scheduler.__init__).parameters
    arguments = {
        "vllm_config": config, "kv_cache_config": cache, "block_size": 16, "hash_block_size": 16,
        "structured_output_manager": StructuredOutputManager(config), "log_stats": True,
    }  # fmt: skip
    return cls(**{name: given for name, given in arguments.items() if name in known})


def make_request(name, rng):
    parameters = SamplingParams(
        temperature=rng.choice([0, 0.3, 0.7]), max_tokens=rng.randint(1, 120), ignore_eos=True
    )
    parameters.update_from_generation_config({}, 1)
    arguments = dict.fromkeys(
        ("pooling_params", "multi_modal_inputs", "multi_modal_hashes", "multi_modal_placeholders")
    )
    arguments |= dict.fromkeys(
        ("multi_modal_kwargs", "lora_request", "prompt", "mm_features", "block_hasher")
    )
    tokens = [rng.randrange(3, 300) for _ in range(rng.randint(4, 100))]
    arguments |= {
        "prompt_token_ids": tokens,
        "sampling_params": parameters,
        "arrival_time": time.time(),
    }
    return call(Request, request_id=name, eos_token_id=1, **arguments)


class Engine:
    """What the engine core and the model do, at random.

    ``counted`` sums what vLLM's own counters are given.

    ``differences`` are the steps, if any, in which the simulated scheduler has done something else.
    """

    def __init__(self, scheduler, asynchronous):
        self.scheduler, self.ahead, self.rng = scheduler, int(asynchronous), random.Random(7)
        self.queue, self.added, self.counted = [], 0, (0, 0, 0)
        self.simulated, self.differences = SimulatedScheduler(depth=K), []

    def step(self):
        scheduler, rng = self.scheduler, self.rng
        if self.added < REQUESTS and rng.random() < 0.35:
            request = make_request(f"r{self.added}", rng)
            scheduler.add_request(request)
            limit = request.sampling_params.max_tokens
            self.simulated.add_request(simulated_request(request.request_id, max_tokens=limit))
            self.added += 1
        output = scheduler.schedule()
        if output.total_num_scheduled_tokens:
            planned = {name: scheduler.requests[name] for name in output.num_scheduled_tokens}
            samples = {
                name: request.num_computed_tokens >= request.num_tokens
                for name, request in planned.items()
            }
            self.queue.append((output, samples))
        if len(self.queue) > (self.ahead if output.total_num_scheduled_tokens else 0):
            self.compute(*self.queue.pop(0))
        return bool(self.queue) or self.added < REQUESTS or bool(scheduler.requests)

    def compute(self, output, sampling):
        scheduler, rng, names = self.scheduler, self.rng, list(output.num_scheduled_tokens)
        live = [name for name in names if name in scheduler.requests]
        if live and rng.random() < 0.06:
            aborted = rng.choice(live)
            scheduler.finish_requests(aborted, RequestStatus.FINISHED_ABORTED)
            self.simulated.finish_requests([aborted], RequestStatus.FINISHED_ABORTED)
        drafts = [output.scheduled_spec_decode_tokens.get(name) or [] for name in names]
        lengths = [
            rng.randint(1, len(draft) + 1) if sampling[name] else 0
            for name, draft in zip(names, drafts, strict=True)
        ]
        sampled = [[rng.randrange(3, 300) for _ in range(length)] for length in lengths]
        proposed = [[5] * rng.choice([0, 1, K, K]) * sampling[name] for name in names]
        places = {name: place for place, name in enumerate(names)}
        result = call(
            ModelRunnerOutput, req_ids=names, req_id_to_index=places, sampled_token_ids=sampled,
            spec_token_ids=proposed, logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
            num_nans_in_logits={},
        )  # fmt: skip
        outputs = scheduler.update_from_output(output, result)
        clients = outputs.values() if isinstance(outputs, dict) else [outputs]
        counted, emitted = (0, 0, 0), {}
        for client in clients:
            for new in client.outputs:
                emitted[new.request_id] = len(new.new_token_ids), new.finish_reason is not None
            if client.scheduler_stats and (stats := client.scheduler_stats.spec_decoding_stats):
                counted = stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens
        self.counted = tuple(map(sum, zip(self.counted, counted, strict=True)))
        if not self.ahead:
            steps = zip(map(len, drafts), lengths, strict=True)
            self.compare(dict(zip(names, steps, strict=True)), counted, emitted)
        if not self.ahead and hasattr(scheduler, "update_draft_token_ids"):
            from vllm.v1.outputs import DraftTokenIds

            drafted = {
                name: draft
                for name, draft in zip(names, proposed, strict=True)
                if name in scheduler.requests
            }
            scheduler.update_draft_token_ids(DraftTokenIds(list(drafted), list(drafted.values())))

    def compare(self, results, counted, emitted):
        """Lets the simulated scheduler take the same step."""
        before = self.simulated.counted
        _, outputs = self.simulated.step(results)
        simulated = {
            output.request_id: (len(output.new_token_ids), output.finish_reason is not None)
            for output in outputs
            if output.new_token_ids
        }
        grown = tuple(
            after - earlier for earlier, after in zip(before, self.simulated.counted, strict=True)
        )
        if (grown, simulated) != (counted, emitted):
            self.differences.append(
                f"vLLM's {counted} {emitted}, the simulated scheduler's {grown} {simulated}"
            )


def main(model, *options):
    with tempfile.TemporaryDirectory() as folder:
        receiver = PlainReceiver(Path(folder) / "plugin.sock")
        specdec_plugin.SOCKET = str(receiver.path)
        specdec_plugin.install(scheduler_module.Scheduler, vllm.__version__, str(receiver.path))
        specdec_plugin.register()
        engine = Engine(make_scheduler(model, "async" in options), "async" in options)
        engine.scheduler.use_v2_model_runner = "v2" in options
        steps = next((number for number in range(STEPS) if not engine.step()), STEPS)
        expected = (REQUESTS, *engine.counted)
        receiver.until(lambda: receiver.only.finished()[0], REQUESTS)
        life = receiver.only
        sums = {name: life.sums(name) for name in specdec_plugin.Key._fields}
        equal = set(sums.values()) == {expected} and life.totals() == expected[1:]
        equal = equal and not receiver.fallen and not receiver.torn and not engine.differences
        cls = " ".join(
            (type(engine.scheduler).__name__, *(option for option in options if option == "v2"))
        )
        print(
            f"| {vllm.__version__} | {cls} | {steps} | {REQUESTS} | {expected[1:]} |"
            f" {life.totals()} | {equal} |"
        )
        print(*engine.differences[:5], sep="\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
