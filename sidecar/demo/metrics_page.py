"""The simulated vLLM's ``/metrics``: the families of vLLM 0.32 that the sidecar reads, and two more; no help texts."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.demo.options import SimulatorOptions
from sidecar.demo.request import Request
from sidecar.demo.scheduler import Scheduler, StepReport

_SECONDS: Final = (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, *_SECONDS)
_FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, *_SECONDS, 160.0, 640.0, 2560.0)
_MINUTES: Final = (10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_REQUEST: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, *_MINUTES)
_TOKENS: Final = (1.0, *(float(2**power) for power in range(3, 15)))
_NONE: Final = ("", ("",))
_GAUGES: Final = {  # each with its additional label, if any, and that label's values
    "num_requests_running": _NONE,
    "num_requests_waiting": _NONE,
    "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "kv_cache_usage_perc": _NONE,
}
_SPECULATION: Final = dict.fromkeys(
    ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens"), _NONE
)
_COUNTERS: Final = {
    "prefix_cache_queries": _NONE,
    "prefix_cache_hits": _NONE,
    "num_preemptions": _NONE,
    "prompt_tokens": _NONE,
    "generation_tokens": _NONE,
    "request_success": ("finished_reason", ("stop", "length", "abort", "error", "repetition")),
}
_HISTOGRAMS: Final = {
    "iteration_tokens_total": _TOKENS,
    "time_to_first_token_seconds": _FIRST,
    "inter_token_latency_seconds": _TOKEN,
    "request_time_per_output_token_seconds": _TOKEN,
    "e2e_request_latency_seconds": _REQUEST,
    "request_queue_time_seconds": _REQUEST,
    "request_num_preemptions": (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
}


class MetricsPage:
    """One simulated server's families, in their own registry, from its start at ``started`` (Unix seconds)."""

    def __init__(self, options: SimulatorOptions, *, started: float) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": options.model_name, "engine": options.engine}
        self._known: dict[tuple[str, str], Any] = {}  # by name and value of the additional label
        Gauge("process_start_time_seconds", "", registry=self.registry).set(started)
        if options.num_speculative_tokens:
            numbers = tuple(map(str, range(options.num_speculative_tokens)))
            positions = {"spec_decode_num_accepted_tokens_per_pos": ("position", numbers)}
            self._add(Counter, {**_SPECULATION, **positions})
        self._add(Gauge, _GAUGES)
        self._add(Counter, _COUNTERS)
        for name, edges in _HISTOGRAMS.items():
            family = Histogram(f"vllm:{name}", "", self._labels, buckets=edges, registry=self.registry)
            self._known[name, ""] = family.labels(**self._labels)
        cache = {
            "block_size": str(options.block_size),
            "engine": options.engine,
            "kv_cache_size_tokens": str(options.num_gpu_blocks * options.block_size),
            "num_gpu_blocks": str(options.num_gpu_blocks),
        }
        Gauge("vllm:cache_config_info", "", cache, registry=self.registry).labels(**cache).set(1)

    def _add(self, kind: type[Counter | Gauge], families: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
        for name, (label, values) in families.items():
            own = (label,) if label else ()
            made = kind(f"vllm:{name}", "", (*self._labels, *own), registry=self.registry)
            for value in values:
                self._known[name, value] = made.labels(**self._labels, **dict.fromkeys(own, value))

    def record_step(self, report: StepReport, scheduler: Scheduler) -> None:
        """Counts one engine step."""
        # Since vLLM 0.25.1: the prompt tokens that were computed, not cached, and the generated tokens.
        computed = report.prompt_tokens - report.cached_prompt_tokens
        self._observe("iteration_tokens_total", computed + report.generation_tokens)
        self._count("prompt_tokens", report.prompt_tokens)
        self._count("prefix_cache_queries", report.prompt_tokens)
        self._count("prefix_cache_hits", report.cached_prompt_tokens)
        self._count("generation_tokens", report.generation_tokens)
        if report.speculation is not None:
            self._count("spec_decode_num_drafts", report.speculation.num_drafts)
            self._count("spec_decode_num_draft_tokens", report.speculation.num_draft_tokens)
            self._count("spec_decode_num_accepted_tokens", report.speculation.num_accepted_tokens)
            for position, accepted in enumerate(report.speculation.num_accepted_tokens_per_pos):
                self._count("spec_decode_num_accepted_tokens_per_pos", accepted, str(position))
        self._observe("time_to_first_token_seconds", *report.first_token_seconds)
        self._observe("inter_token_latency_seconds", *report.inter_token_seconds)
        for finished in report.finished:
            self._record_finished(finished)
        self.record_load(scheduler)

    def record_load(self, scheduler: Scheduler) -> None:
        """Sets the gauges. An aborted request changes nothing else, because vLLM 0.32 does not count it either."""
        self._known["num_requests_running", ""].set(len(scheduler.running))
        self._known["num_requests_waiting", ""].set(len(scheduler.waiting))
        self._known["num_requests_waiting_by_reason", "capacity"].set(len(scheduler.waiting))
        self._known["kv_cache_usage_perc", ""].set(scheduler.kv_cache_usage)

    def _record_finished(self, finished: Request) -> None:
        self._count("request_success", 1, finished.status)
        self._observe("request_time_per_output_token_seconds", finished.time_per_output_token)
        self._observe("e2e_request_latency_seconds", finished.last_token - finished.arrived)
        self._observe("request_queue_time_seconds", finished.scheduled - finished.arrived)
        self._observe("request_num_preemptions", 0)

    def _count(self, name: str, by: float, label: str = "") -> None:
        self._known[name, label].inc(by)

    def _observe(self, name: str, *values: float) -> None:
        for value in values:
            self._known[name, ""].observe(value)

    def render(self, query: str = "") -> tuple[bytes, dict[str, str]]:
        """Body and headers, always in the text format.

        ``name[]`` in the query restricts the page to those samples. Only ``/metrics/`` passes the query, as in vLLM,
        which mounts prometheus_client's app there; its own route ``/metrics`` ignores it.
        """
        names = parse_qs(query).get("name[]")
        registry = self.registry.restricted_registry(names) if names else self.registry
        return generate_latest(registry), {"Content-Type": CONTENT_TYPE_LATEST}
