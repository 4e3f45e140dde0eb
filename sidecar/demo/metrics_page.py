"""The simulated vLLM's ``/metrics``: those families of vLLM 0.32 that the sidecar reads, as the real page has them."""

from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.demo.generation import FinishReason, Generation, Load, StepReport
from sidecar.demo.options import SimulatorOptions

_REQUEST: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TOKEN: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_FIRST_TOKEN: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


class _Labelled(NamedTuple):
    help: str
    label: str
    values: tuple[str, ...]


_SPECULATION: Final = {
    "spec_decode_num_drafts": "Number of spec decoding drafts.",
    "spec_decode_num_draft_tokens": "Number of draft tokens.",
    "spec_decode_num_accepted_tokens": "Number of accepted tokens.",
}
_GAUGES: Final[dict[str, str | _Labelled]] = {
    "num_requests_running": "Number of requests in model execution batches.",
    "num_requests_waiting": "Number of requests waiting to be processed.",
    "num_requests_waiting_by_reason": _Labelled(
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
        "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
        "Sum of all reasons equals vllm:num_requests_waiting.",
        "reason",
        ("capacity", "deferred"),
    ),
    "kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
}
_COUNTERS: Final[dict[str, str | _Labelled]] = {
    "prefix_cache_queries": "Prefix cache queries, in terms of number of queried tokens.",
    "prefix_cache_hits": "Prefix cache hits, in terms of number of cached tokens.",
    "num_preemptions": "Cumulative number of preemption from the engine.",
    "prompt_tokens": "Number of prefill tokens processed.",
    "generation_tokens": "Number of generation tokens processed.",
    "request_success": _Labelled(
        "Count of successfully processed requests.", "finished_reason", tuple(map(str, FinishReason))
    ),
}
_HISTOGRAMS: Final = {
    "iteration_tokens_total": (
        "Histogram of number of tokens per engine_step.",
        (1.0, *(float(2**power) for power in range(3, 15))),
    ),
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _TOKEN),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _TOKEN),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _REQUEST),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _REQUEST),
    "request_num_preemptions": (
        "Histogram of the number of times a request was preempted.",
        (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0),
    ),
}


_Kind = TypeVar("_Kind", Counter, Gauge)


class MetricsPage:
    """One simulated server's families, in their own registry, from its start at ``started`` (Unix seconds)."""

    def __init__(self, options: SimulatorOptions, *, started: float) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": options.model_name, "engine": options.engine}
        self._positions = options.num_speculative_tokens
        text = "Start time of the process since unix epoch in seconds."
        Gauge("process_start_time_seconds", text, registry=self.registry).set(started)
        self._counters: dict[tuple[str, str], Counter] = {}  # by name and value of their own label
        self._gauges: dict[tuple[str, str], Gauge] = {}
        if self._positions:
            numbers = tuple(map(str, range(self._positions)))
            per_position = _Labelled("Accepted tokens per draft position.", "position", numbers)
            for name, family in (_SPECULATION | {"spec_decode_num_accepted_tokens_per_pos": per_position}).items():
                self._counters |= self._family(Counter, name, family)
        for name, gauge in _GAUGES.items():
            self._gauges |= self._family(Gauge, name, gauge)
        for name, counter in _COUNTERS.items():
            self._counters |= self._family(Counter, name, counter)
        self._observers = {
            name: Histogram(f"vllm:{name}", text, self._labels, buckets=edges, registry=self.registry)
            .labels(**self._labels)
            .observe
            for name, (text, edges) in _HISTOGRAMS.items()
        }
        cache = {
            "block_size": str(options.block_size),
            "engine": options.engine,
            "kv_cache_size_tokens": str(options.num_gpu_blocks * options.block_size),
            "num_gpu_blocks": str(options.num_gpu_blocks),
        }
        info = Gauge(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", cache, registry=self.registry
        )
        info.labels(**cache).set(1)

    def _family(self, kind: type[_Kind], name: str, family: str | _Labelled) -> dict[tuple[str, str], _Kind]:
        """Registers a counter or gauge; returns its children by name and label value."""
        if isinstance(family, str):
            made = kind(f"vllm:{name}", family, self._labels, registry=self.registry)
            return {(name, ""): made.labels(**self._labels)}
        made = kind(f"vllm:{name}", family.help, (*self._labels, family.label), registry=self.registry)
        return {(name, value): made.labels(**self._labels, **{family.label: value}) for value in family.values}

    def record_step(self, report: StepReport, load: Load) -> None:
        """Counts one engine step."""
        self._increase("prompt_tokens", report.prompt_tokens)
        self._increase("prefix_cache_queries", report.prefix_queries)
        self._increase("prefix_cache_hits", report.prefix_hits)
        self._increase("generation_tokens", report.generation_tokens)
        if self._positions:
            self._increase("spec_decode_num_drafts", report.drafts)
            self._increase("spec_decode_num_draft_tokens", report.drafts * self._positions)
            self._increase("spec_decode_num_accepted_tokens", sum(report.accepted_per_position))
            for position, accepted in enumerate(report.accepted_per_position):
                self._increase("spec_decode_num_accepted_tokens_per_pos", accepted, str(position))
        # From vLLM 0.25.1 on: the prompt tokens computed (not those cached) and the generated ones.
        computed = report.prompt_tokens - report.cached_prompt_tokens
        self._observers["iteration_tokens_total"](computed + report.generation_tokens)
        for seconds in report.first_token_seconds:
            self._observers["time_to_first_token_seconds"](seconds)
        for seconds in report.inter_token_seconds:
            self._observers["inter_token_latency_seconds"](seconds)
        for finished in report.finished:
            self._record_finished(finished)
        self.record_load(load)

    def record_load(self, load: Load) -> None:
        """Sets the gauges. An aborted request changes nothing else: vLLM 0.32 does not count it either."""
        self._gauges["num_requests_running", ""].set(load.running)
        self._gauges["num_requests_waiting", ""].set(load.waiting)
        self._gauges["num_requests_waiting_by_reason", "capacity"].set(load.waiting)
        self._gauges["kv_cache_usage_perc", ""].set(load.kv_usage)

    def _record_finished(self, finished: Generation) -> None:
        self._increase("request_success", 1, str(finished.finished))
        self._observers["request_time_per_output_token_seconds"](finished.time_per_output_token)
        self._observers["e2e_request_latency_seconds"](finished.last_token - finished.arrival)
        self._observers["request_queue_time_seconds"](finished.scheduled - finished.arrival)
        self._observers["request_num_preemptions"](0)

    def _increase(self, name: str, by: float, label: str = "") -> None:
        self._counters[name, label].inc(by)

    def render(self, query: str = "") -> tuple[bytes, dict[str, str]]:
        """Body and headers, always as text.

        ``name[]`` in the query restricts the page to those samples under ``/metrics/``, where vLLM mounts
        prometheus_client's app; its own route ``/metrics`` ignores the query.
        """
        names = parse_qs(query).get("name[]")
        registry = self.registry.restricted_registry(names) if names else self.registry
        return generate_latest(registry), {"Content-Type": CONTENT_TYPE_LATEST}
