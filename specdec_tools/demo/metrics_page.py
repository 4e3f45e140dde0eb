"""The simulated vLLM's ``/metrics``.

It has what the sidecar reads of vLLM 0.32's, and request_success, without help texts.
"""

from typing import Any, Final
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from sidecar.requests.plugin import GAUGE
from specdec_tools.demo.scheduler import Scheduler, SimulatorOptions, StepReport

_SECONDS: Final = (1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, *_SECONDS)
_BELOW_ONE: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75)
_FIRST: Final = (*_BELOW_ONE, *_SECONDS, 160.0, 640.0, 2560.0)
_MINUTE: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_REQUEST: Final = (*_MINUTE, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)
_PER_POSITION: Final = "spec_decode_num_accepted_tokens_per_pos"
_SPECULATION: Final = (
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
)
_HISTOGRAMS: Final = {
    "iteration_tokens_total": (1.0, *(float(2**power) for power in range(3, 15))),
    "time_to_first_token_seconds": _FIRST,
    "inter_token_latency_seconds": _TOKEN,
    "request_time_per_output_token_seconds": _TOKEN,
    "e2e_request_latency_seconds": _REQUEST,
    "request_queue_time_seconds": _REQUEST,
    "request_prefill_time_seconds": _REQUEST,
}


class MetricsPage:
    """One simulated server's families, in their own registry.

    The server started at ``started``, in Unix seconds. ``server`` is the id that the plug-in shows
    on the page; None: it is not loaded.
    """

    def __init__(
        self, options: SimulatorOptions, *, started: float, server: str | None = None
    ) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": options.model_name, "engine": options.engine}
        # By name and value of the additional label, if any.
        self._series: dict[tuple[str, str], Any] = {}

        Gauge("process_start_time_seconds", "", registry=self.registry).set(started)
        if server is not None:
            Gauge(GAUGE, "", ["id"], registry=self.registry).labels(server).set(1)
        if options.num_speculative_tokens:
            positions = tuple(map(str, range(options.num_speculative_tokens)))
            self._add(Counter, *_SPECULATION)
            self._add(Counter, _PER_POSITION, position=positions)

        self._add(Gauge, "num_requests_running", "num_requests_waiting")
        self._add(Gauge, "num_requests_waiting_by_reason", reason=("capacity", "deferred"))
        states = ("awake", "weights_offloaded", "discard_all")
        self._add(Gauge, "engine_sleep_state", sleep_state=states)
        self._series["engine_sleep_state", "awake"].set(1)
        self._add(Gauge, "kv_cache_usage_perc")
        self._add(Counter, "prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
        self._add(Counter, "prompt_tokens", "generation_tokens")
        reasons = ("stop", "length", "abort", "error", "repetition")
        self._add(Counter, "request_success", finished_reason=reasons)

        for name, edges in _HISTOGRAMS.items():
            family = Histogram(
                f"vllm:{name}", "", self._labels, buckets=edges, registry=self.registry
            )
            self._series[name, ""] = family.labels(**self._labels)

        cache = {
            "block_size": str(options.block_size),
            "engine": options.engine,
            "kv_cache_size_tokens": str(options.num_gpu_blocks * options.block_size),
            "num_gpu_blocks": str(options.num_gpu_blocks),
        }
        Gauge("vllm:cache_config_info", "", cache, registry=self.registry).labels(**cache).set(1)

    def _add(self, kind: type[Counter | Gauge], *names: str, **additional: tuple[str, ...]) -> None:
        """Adds families, which may have an additional label with these values."""
        for name in names:
            family = kind(f"vllm:{name}", "", (*self._labels, *additional), registry=self.registry)
            if not additional:
                self._series[name, ""] = family.labels(**self._labels)
            for label, values in additional.items():
                for value in values:
                    self._series[name, value] = family.labels(**self._labels, **{label: value})

    def record_step(self, report: StepReport, scheduler: Scheduler) -> None:
        """Counts one engine step."""
        # Since vLLM 0.25.1: the prompt tokens that were computed, not cached, and the generated
        # tokens.
        computed = report.prompt_tokens - report.cached_prompt_tokens
        if report.outputs:  # vLLM counts no step without any, as of a part of a prompt
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
                self._count(_PER_POSITION, accepted, str(position))

        self._observe("time_to_first_token_seconds", *report.first_token_seconds)
        self._observe("inter_token_latency_seconds", *report.inter_token_seconds)
        for request in report.finished:
            self._count("request_success", 1, request.status)
            self._observe("request_time_per_output_token_seconds", request.time_per_output_token)
            self._observe("e2e_request_latency_seconds", request.last_token - request.arrived)
            self._observe("request_queue_time_seconds", request.scheduled - request.arrived)
            self._observe("request_prefill_time_seconds", request.first_token - request.scheduled)

        self.record_load(scheduler)

    def record_load(self, scheduler: Scheduler) -> None:
        """Sets the gauges.

        An aborted request changes nothing else, because vLLM 0.32 does not count it either.
        """
        self._series["num_requests_running", ""].set(len(scheduler.running))
        self._series["num_requests_waiting", ""].set(len(scheduler.waiting))
        self._series["num_requests_waiting_by_reason", "capacity"].set(len(scheduler.waiting))
        self._series["kv_cache_usage_perc", ""].set(scheduler.kv_cache_usage)

    def _count(self, name: str, by: float, label: str = "") -> None:
        self._series[name, label].inc(by)

    def _observe(self, name: str, *values: float) -> None:
        for value in values:
            self._series[name, ""].observe(value)

    def render(self, query: str = "") -> tuple[bytes, dict[str, str]]:
        """Body and headers, always in the text format.

        ``name[]`` in the query restricts the page to those samples. Only ``/metrics/`` passes the
        query, as in vLLM, which mounts prometheus_client's app there; its own route ``/metrics``
        ignores it.
        """
        names = parse_qs(query).get("name[]")
        registry = self.registry.restricted_registry(names) if names else self.registry
        return generate_latest(registry), {"Content-Type": CONTENT_TYPE_LATEST}
