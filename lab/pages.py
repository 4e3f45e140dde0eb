"""Makes a page of tests/data/pages, and its entry in TRUTH.json, with the vLLM that runs this.

    FOLDER/venv/bin/python -m lab.pages MODEL_FOLDER OUT     # from the repository's root; `make
    lab` prints FOLDER

A small simulated engine makes numbers up. The release's own PrometheusStatLogger is fed with them
and its own route renders the page, so names, types, labels and buckets are vLLM's, and the numbers
are known: TRUTH.json has them. It fits releases from 0.12 on, with one engine and one process.
"""

import asyncio
import dataclasses
import importlib
import importlib.metadata
import json
import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

# vLLM reads them when it is imported.
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import httpx
import vllm
from fastapi import FastAPI
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import (
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    SchedulerStats,
)
from vllm.v1.spec_decode.metrics import SpecDecodingStats

MODEL: Final = "meta-llama/Llama-3.1-8B-Instruct"
TOKENS: Final = 3  # drafted per step
RUNNING: Final = 6
WAITING: Final = 4
KV_USAGE: Final = 0.37
BLOCKS: Final = 27648
BLOCK_SIZE: Final = 16  # tokens
_STEPS: Final = 120
_ROUTES: Final = (  # newest first: what serves /metrics
    ("vllm.entrypoints.serve.instrumentator.metrics", "attach_router"),
    ("vllm.entrypoints.openai.api_server", "mount_metrics"),
)


@dataclass(slots=True)
class _Request:
    """A request that runs; times in seconds."""

    arrived: float
    started: float
    prompt: int
    cached: int
    limit: int
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0


class SimulatedEngine:
    """Requests come, draft and end. It adds up on its own what it puts into vLLM's statistics."""

    def __init__(self) -> None:
        self.spec = dict.fromkeys(("drafts", "draft_tokens", "accepted_tokens"), 0)
        self.accepted_per_position = [0] * TOKENS
        self.counters = Counter(preemptions=0)
        self.finished: Counter[str] = Counter()
        self.observed: defaultdict[str, list[float]] = defaultdict(list)
        self._running = list[_Request]()
        self._now = 1000.0
        self._random = Random(3)

    def step(self) -> tuple[Any, Any]:
        """The statistics of one step, as vLLM has them: the scheduler's and the iteration's."""
        self._now += self._random.uniform(0.012, 0.035)
        speculation = SpecDecodingStats.new(TOKENS)
        prefix = PrefixCacheStats()
        step = IterationStats()
        while len(self._running) < RUNNING:
            self._running.append(self._admit(prefix, step))

        for request in self._running:
            if request.tokens:
                new = self._decode(request, speculation, step)
            else:
                new = self._first_token(request, step)
            request.tokens += new
            request.last = self._now
            step.num_generation_tokens += new
            self.counters["generation_tokens"] += new

        for request in [request for request in self._running if request.tokens == request.limit]:
            self._running.remove(request)
            step.finished_requests.append(self._finish(request))

        step.num_preempted_reqs = int(self._random.random() < 0.02)
        self.counters["preemptions"] += step.num_preempted_reqs
        # The value depends on the release; only the count is known.
        self.observed["iteration_tokens"].append(0)
        return self._scheduler_stats(speculation, prefix), step

    def _admit(self, prefix: Any, step: Any) -> _Request:
        random = self._random
        prompt = random.choice((37, 180, 512, 1024))
        cached = random.choice((0, 0, 32))
        if prompt == 37:  # too short for a cached block
            cached = 0
        started = self._now - random.uniform(0.004, 0.011)

        prefix.requests += 1
        prefix.queries += prompt
        prefix.hits += cached
        self.counters.update(
            prompt_tokens=prompt,
            cached_prompt_tokens=cached,
            prefix_queries=prompt,
            prefix_hits=cached,
        )

        tokens = getattr(step, "prompt_token_stats", None)
        if tokens is None:
            step.num_prompt_tokens += prompt
        else:
            tokens.total += prompt
            tokens.computed += prompt - cached
            tokens.local_cache_hit += cached
            tokens.cached_tokens += cached

        return _Request(
            started - random.uniform(0, 0.2), started, prompt, cached, limit=random.randint(8, 90)
        )

    def _first_token(self, request: _Request, step: Any) -> int:
        request.first = self._now
        self._observe("ttft", request.first - request.arrived, step.time_to_first_tokens_iter)
        return 1

    def _decode(self, request: _Request, speculation: Any, step: Any) -> int:
        """A later step of a request: some draft tokens, of which the first few are accepted."""
        self._observe("itl", self._now - request.last, step.inter_token_latencies_iter)
        drafted = min(TOKENS, request.limit - request.tokens - 1)
        if not drafted:
            return 1

        accepted = next((place for place in range(drafted) if self._random.random() > 0.7), drafted)
        speculation.observe_draft(num_draft_tokens=drafted, num_accepted_tokens=accepted)
        for name, count in zip(self.spec, (1, drafted, accepted), strict=True):
            self.spec[name] += count

        for position in range(accepted):
            self.accepted_per_position[position] += 1

        return 1 + accepted

    def _finish(self, request: _Request) -> Any:
        reason = self._random.choice(("stop", "stop", "length"))
        self.finished[reason] += 1

        decoding = request.last - request.first
        measured = {
            "e2e_latency": ("e2e", request.last - request.arrived),
            "queued_time": ("queue", request.started - request.arrived),
            "prefill_time": ("prefill", request.first - request.started),
            "decode_time": ("decode", decoding),
            "inference_time": ("inference", request.last - request.started),
            "mean_time_per_output_token": ("tpot", decoding / (request.tokens - 1)),
            "num_prompt_tokens": ("prompt_tokens", request.prompt),
            "num_generation_tokens": ("generation_tokens", request.tokens),
        }
        values: dict[str, Any] = {
            field: self._observe(name, value) for field, (name, value) in measured.items()
        }

        values |= {
            "finish_reason": FinishReason[reason.upper()],
            "request_id": "r",
            "max_tokens_param": 128,
            "num_cached_tokens": request.cached,
        }
        return _known(FinishedRequestStats, values)

    def _observe(self, name: str, value: float, into: list[float] | None = None) -> float:
        rounded = round(value, 8)
        self.observed[name].append(rounded)
        if into is not None:
            into.append(rounded)
        return rounded

    def _scheduler_stats(self, speculation: Any, prefix: Any) -> Any:
        values = {
            "num_running_reqs": len(self._running),
            "num_waiting_reqs": WAITING,
            "kv_cache_usage": KV_USAGE,
            "prefix_cache_stats": prefix,
            "spec_decoding_stats": speculation,
        }
        # one of those that wait is deferred
        if "num_skipped_waiting_reqs" in _fields(SchedulerStats):
            values |= {"num_waiting_reqs": WAITING - 1, "num_skipped_waiting_reqs": 1}

        return _known(SchedulerStats, values)

    def truth(self) -> dict[str, Any]:
        """What the page has to show, as TRUTH.json has it."""
        return {
            "spec": {
                "num_spec_tokens": TOKENS,
                **self.spec,
                "accepted_per_pos": self.accepted_per_position,
            },
            "gauges": {"running": len(self._running), "waiting": WAITING, "kv_usage": KV_USAGE},
            "counters": {**self.counters, "prefix_unit": "tokens"},
            "finished": self.finished,
            "histograms": {
                name: _summary(name, sorted(values)) for name, values in self.observed.items()
            },
        }


def _summary(name: str, values: list[float]) -> dict[str, float]:
    if name == "iteration_tokens":
        return {"count": len(values)}

    last = len(values) - 1
    ranks = {f"p{rank}": values[min(len(values) * rank // 100, last)] for rank in (50, 90, 99)}
    return {
        "count": len(values),
        "sum": round(sum(values), 8),
        "min": values[0],
        "max": values[-1],
        **ranks,
    }


def _fields(cls: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


def _known(cls: Any, values: dict[str, Any]) -> Any:
    """A record of vLLM's, with those of the values for which this release has a field."""
    return cls(**{name: value for name, value in values.items() if name in _fields(cls)})


def stat_logger(model: Path) -> Any:
    """This release's logger, for an engine that speculates."""
    speculation = {
        "method": "ngram",
        "num_speculative_tokens": TOKENS,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
    arguments = EngineArgs(
        model=str(model),
        served_model_name=MODEL,
        speculative_config=speculation,
        max_model_len=2048,
    )

    config = arguments.create_engine_config()
    config.cache_config.num_gpu_blocks = BLOCKS
    config.cache_config.block_size = BLOCK_SIZE

    logger = PrometheusStatLogger(config, [0])
    logger.log_engine_initialized()
    return logger


async def page() -> httpx.Response:
    """GET /metrics, from an application with vLLM's own route and some requests answered."""
    application = FastAPI()
    application.add_api_route("/v1/chat/completions", lambda: {"choices": []}, methods=["POST"])
    _route()(application)
    transport = httpx.ASGITransport(app=application)
    async with httpx.AsyncClient(transport=transport, base_url="http://vllm") as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", json={})
        await client.get("/v1/unknown")
        return await client.get("/metrics")


def _route() -> Any:
    for module, name in _ROUTES:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise LookupError("this vLLM serves /metrics by a function that is not in _ROUTES")


def main(model: Path, folder: Path) -> None:
    """Writes the page, and its truth beside what TRUTH.json has."""
    logger = stat_logger(model)
    engine = SimulatedEngine()
    for _ in range(_STEPS):
        logger.record(*engine.step(), engine_idx=0)

    response = asyncio.run(page())
    folder.mkdir(parents=True, exist_ok=True)
    version = vllm.__version__.partition("+")[0]
    name = f"vllm-{version}.prom"
    path = folder / "TRUTH.json"
    (folder / name).write_bytes(response.content)
    truth = json.loads(path.read_text()) if path.exists() else {}
    truth[name] = {
        "version": version,
        "arch": "v1",
        "model_name": MODEL,
        "engine_label": True,
        "multiproc": False,
        "pids": None,
        "prometheus_client": importlib.metadata.version("prometheus_client"),
        "content_type": response.headers["content-type"],
        "http": {"post_200": 3, "get_404": 1},
        "engines": {"0": engine.truth()},
    }
    path.write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
