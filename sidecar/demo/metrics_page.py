"""The simulated vLLM's ``/metrics``: what it counts, and how it is served."""

import gzip
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector
from prometheus_client.exposition import (
    CONTENT_TYPE_LATEST,
    choose_encoder,
    generate_latest,
    gzip_accepted,
)

from sidecar.demo.families import FamilySpec, cache_config_labels, family_specs
from sidecar.demo.generation import FinishedGeneration, FinishReason, Load, StepReport
from sidecar.demo.instruments import Distribution, SimulatedProcess, Values
from sidecar.demo.options import SimulatorOptions


class MetricsPage:
    """All families of one simulated server in a registry of its own, from its start at ``started`` (Unix seconds).

    The order of collectors, and so of the page, is the real one's.
    """

    def __init__(self, options: SimulatorOptions, *, started: float) -> None:
        self._options = options
        self.started = started
        self.registry = CollectorRegistry()
        GCCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.process = SimulatedProcess(started)
        self.registry.register(self.process)
        self._values: dict[str, Values] = {}
        self._distributions: dict[str, Distribution] = {}
        for spec in family_specs(options):
            self._add(spec, started)
        info = Values(
            FamilySpec("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig"),
            cache_config_labels(options),
            started,
        )
        info.values[None] = 1.0
        self.registry.register(info)
        self._values["vllm:engine_sleep_state"].values["awake"] = 1.0

    def _add(self, spec: FamilySpec, started: float) -> None:
        labels = {"model_name": self._options.model_name}
        if spec.engine_label:
            labels["engine"] = self._options.engine
        if spec.kind == "histogram":
            distribution = Distribution(spec, labels, started)
            self._distributions[spec.name.removeprefix("vllm:")] = distribution
            self.registry.register(distribution)
        else:
            values = Values(spec, labels, started)
            self._values[spec.name] = values
            self.registry.register(values)

    def value(self, name: str, label: str | None = None) -> float:
        """A counter's or gauge's value; ``name`` without ``vllm:`` and ``_total``. Raises KeyError."""
        return self._values[f"vllm:{name}"].values[label]

    def record_step(self, report: StepReport, load: Load) -> None:
        """Count one engine step."""
        self._increase("prompt_tokens", report.prompt_tokens)
        computed = report.prompt_tokens - report.cached_prompt_tokens
        self._increase("prompt_tokens_by_source", computed, "local_compute")
        self._increase("prompt_tokens_by_source", report.cached_prompt_tokens, "local_cache_hit")
        self._increase("prompt_tokens_cached", report.cached_prompt_tokens)
        self._increase("prompt_tokens_cached_by_source", report.prefix_hits, "device")
        self._increase("prefix_cache_queries", report.prefix_queries)
        self._increase("prefix_cache_hits", report.prefix_hits)
        self._increase("generation_tokens", report.generation_tokens)
        self._increase("num_preemptions", report.preemptions)
        self._record_speculation(report)
        # From vLLM 0.25.1 on: the prompt tokens computed, not those cached, and the generated ones.
        self._observe("iteration_tokens_total", computed + report.generation_tokens)
        for seconds in report.first_token_seconds:
            self._observe("time_to_first_token_seconds", seconds)
        for seconds in report.inter_token_seconds:
            self._observe("inter_token_latency_seconds", seconds)
        for finished in report.finished:
            self._record_finished(finished)
        self._record_load(load)

    def record_abort(self, load: Load) -> None:
        """A client gave a generation up: it leaves the load and no other trace.

        vLLM 0.32 does not count it under ``request_success{finished_reason="abort"}`` (seen on the real one).
        """
        self._record_load(load)

    def _record_speculation(self, report: StepReport) -> None:
        positions = self._options.num_speculative_tokens
        if not positions:
            return
        self._increase("spec_decode_num_drafts", report.drafts)
        self._increase("spec_decode_num_draft_tokens", report.drafts * positions)
        self._increase("spec_decode_num_accepted_tokens", sum(report.accepted_per_position))
        for position, accepted in enumerate(report.accepted_per_position):
            self._increase("spec_decode_num_accepted_tokens_per_pos", accepted, str(position))

    def _record_finished(self, finished: FinishedGeneration) -> None:
        self._increase("request_success", 1, finished.reason)
        self._observe("request_prompt_tokens", finished.prompt_tokens)
        self._observe("request_generation_tokens", finished.generation_tokens)
        self._observe("request_params_max_tokens", finished.max_tokens)
        if finished.fork_n is not None:
            self._observe("request_params_n", finished.fork_n)
            self._observe("request_max_num_generation_tokens", finished.fork_longest)
        self._observe("request_time_per_output_token_seconds", finished.time_per_output_token)
        self._observe("e2e_request_latency_seconds", finished.e2e)
        self._observe("request_queue_time_seconds", finished.queue)
        self._observe("request_inference_time_seconds", finished.inference)
        self._observe("request_prefill_time_seconds", finished.prefill)
        self._observe("request_decode_time_seconds", finished.decode)
        self._observe("request_num_preemptions", finished.preemptions)
        self._observe("request_prefill_kv_computed_tokens", finished.computed_prompt_tokens)

    def _record_load(self, load: Load) -> None:
        self._values["vllm:num_requests_running"].values[None] = load.running
        self._values["vllm:num_requests_waiting"].values[None] = load.waiting
        self._values["vllm:num_requests_waiting_by_reason"].values["capacity"] = load.waiting
        self._values["vllm:kv_cache_usage_perc"].values[None] = load.kv_usage

    def _increase(self, name: str, by: float, label: FinishReason | str | None = None) -> None:
        self._values[f"vllm:{name}"].values[label] += by

    def _observe(self, name: str, number: float) -> None:
        self._distributions[name].observe(number)

    def render(self) -> tuple[bytes, dict[str, str]]:
        """``GET /metrics``: always the whole page as text; vLLM's route looks at no header and no query."""
        return generate_latest(self.registry), {"Content-Type": CONTENT_TYPE_LATEST}

    def render_mounted(self, query: str, accept: str, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
        """``GET /metrics/``: what prometheus_client's ASGI app makes of the query and the headers.

        ``name[]`` restricts the page to samples of that name; OpenMetrics and gzip go by the headers.
        """
        encoder, content_type = choose_encoder(accept)
        names = parse_qs(query).get("name[]")
        body = encoder(self.registry.restricted_registry(names) if names else self.registry)
        headers = {"Content-Type": content_type}
        if gzip_accepted(accept_encoding):
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        return body, headers
