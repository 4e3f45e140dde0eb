"""vLLM's own schedulers, and an engine core around them: no model, no server.

For the Python of a lab, with one of vLLM's releases on its path (``lab/classes``). What the model
samples and drafts is random, or what a test says.
"""

import functools
import inspect
import os
import random
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass, field

os.environ.update(
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_PLUGINS="",  # those that are installed are for servers
)

import torch
import transformers

# A release that runs over the libraries of another registers models that these know already.
_own = transformers.AutoConfig.register
transformers.AutoConfig.register = staticmethod(
    lambda *args, exist_ok=False: _own(*args, exist_ok=True)
)

import vllm
from vllm.engine.arg_utils import EngineArgs
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

VERSION = vllm.__version__
_COUNTED = inspect.signature(Scheduler.make_spec_decoding_stats)  # before anything wraps it
MODELS = os.environ["LAB_MODELS"]
K = 3  # draft tokens
BLOCK = 16  # tokens
EMPTY_ROUND = 0.001  # seconds; vLLM's core sleeps so long after a round without work
_AS_NONE = (
    "pooling_params", "lora_request", "prompt", "mm_features", "block_hasher", "cache_salt",
    "multi_modal_kwargs", "multi_modal_hashes", "multi_modal_placeholders",
)  # fmt: skip


def is_at_least(*release):
    """Whether this is that release or a later one."""
    numbers = VERSION.partition("+")[0].split(".")
    return tuple(map(int, numbers[:2])) >= release


def call(make, **arguments):
    """Calls it with those of the arguments that this release takes."""
    known = inspect.signature(make).parameters
    return make(**{name: given for name, given in arguments.items() if name in known})


@functools.cache
def configuration(
    *, running=8, blocks=None, batched=None, k=K, asynchronous=False, head=False, caches=False
):
    """vLLM's configuration; ``k`` 0 is without speculation, and a ``head`` drafts as in EAGLE."""
    speculative = {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    if head:
        speculative = {"method": "eagle", "model": f"{MODELS}/eagle"}
    config = EngineArgs(
        model=f"{MODELS}/target", max_model_len=1024, max_num_seqs=running,
        max_num_batched_tokens=batched or max(512, 8 * running), enable_chunked_prefill=True,
        enforce_eager=True, dtype="float32", block_size=BLOCK,
        speculative_config={**speculative, "num_speculative_tokens": k} if k else None,
    ).create_engine_config()  # fmt: skip
    config.cache_config.num_gpu_blocks = blocks or 70 * running
    config.cache_config.enable_prefix_caching = caches
    config.scheduler_config.async_scheduling = asynchronous
    return config


def group(cls=FullAttentionSpec, block_size=BLOCK, **more):
    """A group of layers of the KV cache."""
    sizes = {
        "block_size": block_size, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32,
        "use_mla": False, "sliding_window": None, **more,
    }  # fmt: skip
    return KVCacheGroupSpec(["layer"], call(cls, **sizes))


def make_scheduler(*, cls=None, groups=None, block_size=BLOCK, hash_size=BLOCK, **options):
    """A scheduler of vLLM's, or of the class; ``hash_size`` is of the blocks that are hashed."""
    config = configuration(**options)
    if cls is None:
        cls = AsyncScheduler if options.get("asynchronous") else Scheduler
    blocks = config.cache_config.num_gpu_blocks
    groups = groups or [group()]
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    known = inspect.signature(Scheduler.__init__).parameters
    arguments = {
        "vllm_config": config, "kv_cache_config": cache, "log_stats": True,
        "block_size": block_size if "hash_block_size" in known else hash_size,
        "hash_block_size": hash_size,
        "structured_output_manager": StructuredOutputManager(config),
    }  # fmt: skip
    return cls(**{name: given for name, given in arguments.items() if name in known})


def sampling(**parameters):
    """Sampling parameters, as the API server makes them; the model chooses no end."""
    made = SamplingParams(
        **{"temperature": 0.7, "max_tokens": 400, "ignore_eos": True} | parameters
    )
    made.update_from_generation_config({}, 1)
    return made


def make_request(name, *, prompt=16, parameters=None, **more):
    """A request; ``prompt`` are its tokens, or their number, and ``more`` is vLLM's."""
    tokens = [5] * prompt if isinstance(prompt, int) else prompt
    arguments = {
        **dict.fromkeys(_AS_NONE), "prompt_token_ids": tokens, "eos_token_id": 1,
        "sampling_params": sampling() if parameters is None else parameters,
        "arrival_time": time.time(), **more,
    }  # fmt: skip
    return call(Request, request_id=name, **arguments)


def pooling_request(name):
    """A request that embeds its prompt and generates nothing."""
    made = make_request(name, pooling_params=PoolingParams(task="embed"))
    made.sampling_params = None
    return made


@dataclass
class Counts:
    """What requests drafted."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, drafted, accepted):
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted

    @property
    def numbers(self):
        return self.drafts, self.draft_tokens, self.accepted_tokens


@dataclass
class Told:
    """What the engine knows itself: what the plug-in's numbers must equal."""

    counts: Counts = field(default_factory=Counts)  # of vLLM's own counters
    by_request: dict = field(default_factory=dict)
    by_temperature: dict = field(default_factory=dict)
    ended: list = field(default_factory=list)  # (request, output tokens), in the order of their end
    outputs: Counter = field(default_factory=Counter)  # tokens that reached the client
    steps: int = 0  # in which something was scheduled


class Engine:
    """Does what vLLM's ``EngineCore`` does with a scheduler.

    A step takes ``seconds`` by the ``clock``, if there is one. ``ahead`` steps are scheduled before
    the first has been computed, as with async scheduling.
    """

    def __init__(self, scheduler, *, clock=None, seconds=0.02, k=K, seed=7, observes=True):
        self.scheduler = scheduler
        self.clock = clock
        self.seconds = seconds
        self.idle_seconds = EMPTY_ROUND
        self.k = k
        self.random = random.Random(seed)
        self.ahead = int(isinstance(scheduler, AsyncScheduler))
        self.queue = deque()
        self.is_paused = False  # the core's own state, up to 0.18 or so
        self.told = Told()
        if observes:
            self.observe()
        self.connector_output = None  # of the next step
        self.thread_seconds = 0.0  # CPU time of the last update_from_output

    # what clients do

    def add(self, name, *, temperature=0.7, max_tokens=400, **more):
        """A new request."""
        parameters = more.pop("parameters", None)
        if parameters is None:
            parameters = sampling(temperature=temperature, max_tokens=max_tokens)
        request = make_request(name, parameters=parameters, **more)
        self.scheduler.add_request(request)
        return request

    def abort(self, names=None):
        """Ends requests, or all, from outside."""
        if names is None and not is_at_least(0, 18):
            names = list(self.scheduler.requests)
        self.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def pause(self, mode):
        """What /pause does: keep, wait or abort."""
        if mode == "abort":
            self.abort()
        if not hasattr(self.scheduler, "set_pause_state"):
            if mode == "wait":  # its API server waits until all have ended
                self.run()
            self.is_paused = True
            return
        from vllm.v1.core.sched.interface import PauseState

        state = PauseState.PAUSED_ALL if mode == "keep" else PauseState.PAUSED_NEW
        self.scheduler.set_pause_state(state)

    def resume(self):
        """What /resume does."""
        self.is_paused = False
        if hasattr(self.scheduler, "set_pause_state"):
            from vllm.v1.core.sched.interface import PauseState

            self.scheduler.set_pause_state(PauseState.UNPAUSED)

    # the busy loop

    def has_work(self):
        """Whether the core steps; else it waits for a client."""
        return not self.is_paused and (self.scheduler.has_requests() or bool(self.queue))

    def run(self, steps=10**9):
        """Goes on until there is nothing to do, or for so many steps."""
        for _ in range(steps):
            if not self.has_work():
                return
            self.step()

    def step(self, *, drafted=None, lengths=None, tokens=None):
        """One round of the core.

        By default the model drafts and accepts at random. ``drafted`` is how many tokens it drafts,
        ``lengths`` how many each request gets, ``tokens`` what is sampled.
        """
        scheduler = self.scheduler
        output = None
        if scheduler.has_requests():
            output = scheduler.schedule()
            is_executed = output.total_num_scheduled_tokens > 0
            planned = {name: scheduler.requests[name] for name in output.num_scheduled_tokens}
            samples = {
                name: request.num_computed_tokens >= request.num_tokens
                for name, request in planned.items()
            }
            self.queue.append((output, samples))
            if len(self.queue) <= self.ahead and is_executed:
                return
        self.compute(*self.queue.popleft(), drafted, lengths, tokens)

    def compute(self, output, samples, drafted, lengths, tokens):
        """The model's part, and ``update_from_output``."""
        scheduler = self.scheduler
        names = list(output.num_scheduled_tokens)
        drafts = {name: len(output.scheduled_spec_decode_tokens.get(name) or []) for name in names}
        sampled = [
            self.sample(drafts[name], lengths, tokens) if samples[name] else [] for name in names
        ]
        proposed = [
            self.propose(drafted) if new else [] for name, new in zip(names, sampled, strict=True)
        ]
        if self.clock is not None:
            self.clock.at += self.seconds if names else self.idle_seconds
        self.told.steps += bool(names)

        result = call(
            ModelRunnerOutput, req_ids=names, sampled_token_ids=sampled,
            req_id_to_index={name: place for place, name in enumerate(names)},
            spec_token_ids=proposed if self.ahead else None, logprobs=None, prompt_logprobs_dict={},
            pooler_output=[], num_nans_in_logits={}, kv_connector_output=self.connector_output,
        )  # fmt: skip
        self.connector_output = None
        outputs = self.update(output, result)
        self.take(outputs)
        if not self.ahead:
            alive = {
                name: draft
                for name, draft in zip(names, proposed, strict=True)
                if name in scheduler.requests
            }
            scheduler.update_draft_token_ids(DraftTokenIds(list(alive), list(alive.values())))

    def update(self, output, result):
        """``update_from_output``, whose CPU time is measured."""
        started = time.thread_time()
        outputs = self.scheduler.update_from_output(output, result)
        self.thread_seconds = time.thread_time() - started
        return outputs

    def sample(self, drafted, lengths, tokens):
        number = self.random.randint(1, drafted + 1) if lengths is None else lengths
        return [
            self.random.randrange(3, 300) if tokens is None else next(tokens)
            for _ in range(min(number, drafted + 1))
        ]

    def propose(self, drafted):
        number = self.random.choice([0, 1, self.k, self.k]) if drafted is None else drafted
        return [5] * min(number, self.k)

    # what it knows

    def observe(self):
        """Notes what vLLM adds to its counters, and of which request it is."""
        own = self.scheduler.make_spec_decoding_stats

        def noted(*args, **kwargs):
            given = _COUNTED.bind(self.scheduler, *args, **kwargs).arguments
            name = given["request_id"]
            drafted = given["num_draft_tokens"]
            if given["num_invalid_spec_tokens"]:
                drafted -= given["num_invalid_spec_tokens"].get(name, 0)
            self.note(name, drafted, given["num_accepted_tokens"])
            return own(*args, **kwargs)

        self.scheduler.make_spec_decoding_stats = noted

    def note(self, name, drafted, accepted):
        self.told.by_request.setdefault(name, Counts()).add(drafted, accepted)
        with suppress(AttributeError, TypeError, ValueError):  # a test has changed the parameters
            temperature = self.scheduler.requests[name].sampling_params.temperature
            row = self.told.by_temperature.setdefault(round(100 * temperature), Counts())
            row.add(drafted, accepted)

    def take(self, outputs):
        """Adds up what ``update_from_output`` returned."""
        clients = outputs.values() if isinstance(outputs, dict) else [outputs]
        for client in clients:
            for new in client.outputs:
                self.told.outputs[new.request_id] += len(new.new_token_ids)
                if new.finish_reason is not None:
                    self.told.ended.append(new.request_id)
            stats = client.scheduler_stats and client.scheduler_stats.spec_decoding_stats
            if stats:
                self.told.counts.drafts += stats.num_drafts
                self.told.counts.draft_tokens += stats.num_draft_tokens
                self.told.counts.accepted_tokens += stats.num_accepted_tokens
