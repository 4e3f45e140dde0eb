"""Every metric that the sidecar exports: name, type, help and labels in one place.

Names, types, labels and meanings are a contract with rules, dashboards and users (``tests/contract/metrics.txt``).
Ratios are from 0 to 1, times in seconds. With ``targets`` set, every series also has the label ``target``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

# The most series of one target with the default limits; tests/export/test_metrics.py fills each of them.
MOST_SERIES: Final = 2500


class Kind(StrEnum):
    """A metric's type, as in ``# TYPE``."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"  # quantiles only: promtool allows the label ``quantile`` for no other type


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; ``name`` includes a counter's ``_total``."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specdec_{name}_total", Kind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specdec_{name}", Kind.GAUGE, text, labels)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specdec_{name}", Kind.HISTOGRAM, text, labels)


def _summary(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"specdec_{name}", Kind.SUMMARY, text, (*labels, "quantile"))


_ENGINE = ("model_name", "engine")

# The sidecar itself.
BUILD_INFO = _gauge(
    "build_info", "1, labelled with the version of the sidecar and of Python.", "version", "python_version"
)
UP = _gauge("up", "1 if the last poll of vLLM's /metrics succeeded and is at most two intervals old, else 0.")
LAST_SCRAPE = _gauge("last_scrape_timestamp_seconds", "Unix time of the last successful poll.")
SCRAPE_DURATION = _gauge("scrape_duration_seconds", "Duration of the last successful poll.")
SCRAPE_INTERVAL = _gauge("scrape_interval_seconds", "Current interval between two polls.")
SCRAPE_ERRORS = _counter("scrape_errors", "Polls that returned no usable page, by reason.", "reason")
MALFORMED_LINES = _counter("scrape_malformed_lines", "Malformed lines and histograms that were skipped on vLLM's page.")
VLLM_RESTARTS = _counter("vllm_restarts", "Restarts of vLLM that the sidecar has seen.")
VLLM_INFO = _gauge("vllm_info", "1, labelled with the range of vLLM versions that the page may come from.", "version")
INTERNAL_ERRORS = _counter(
    "internal_errors", "Failures of a part of the sidecar, each followed by a restart of that part.", "part"
)
LABEL_OVERFLOW = _counter(
    "label_overflow", "Label values reported as 'other' to bound the number of series, counted at every poll.", "label"
)
HTTP_REFUSED = _counter(
    "http_refused", "Connections and requests to the sidecar's own pages that were refused or timed out.", "reason"
)
LINKS = _gauge(
    "links_info",
    "1; the labels are the addresses that alerts link to, empty if not configured.",
    "runbooks",
    "dashboards",
)
LOOP_STALL = _gauge("event_loop_stall_seconds", "Longest stall of the event loop within the last minute.")
SETTINGS_RELOADS = _counter("settings_reloads", "Reloads of the settings, by outcome: applied or refused.", "outcome")
THRESHOLD = _gauge("threshold", "Thresholds in force; rules and dashboards read them.", "name")

# vLLM's counters under one name for every version, continued across its restarts.
ENGINE_DRAFTS = _counter(
    "engine_drafts", "Drafts (verification steps of speculating requests) that vLLM counted.", *_ENGINE
)
ENGINE_DRAFT_TOKENS = _counter("engine_draft_tokens", "Draft tokens that vLLM counted.", *_ENGINE)
ENGINE_ACCEPTED_TOKENS = _counter("engine_accepted_tokens", "Accepted draft tokens that vLLM counted.", *_ENGINE)
ENGINE_ACCEPTED_PER_POSITION = _counter(
    "engine_accepted_tokens_per_position",
    "Accepted draft tokens that vLLM counted, by draft position, starting at 0.",
    *_ENGINE,
    "position",
)
ENGINE_REQUESTS = _counter("engine_requests", "Requests that got their first token, as vLLM counts them.", *_ENGINE)
GENERATION_TOKENS = _counter("generation_tokens", "Generated tokens.", *_ENGINE)
PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens processed.", *_ENGINE)
PREEMPTIONS = _counter("preemptions", "Preemptions of requests because the KV cache was full.", *_ENGINE)
PREFIX_CACHE_QUERIES = _counter(
    "prefix_cache_queries", "Tokens looked up in the prefix cache (blocks before vLLM 0.9).", *_ENGINE
)
PREFIX_CACHE_HITS = _counter(
    "prefix_cache_hits", "Tokens found in the prefix cache (blocks before vLLM 0.9).", *_ENGINE
)

# Acceptance and latency derived from these counters and vLLM's histograms.
ENGINE_WINDOW_ACCEPTANCE = _histogram(
    "engine_window_acceptance_ratio",
    "Accepted / draft tokens between two polls; one observation per poll with drafts.",
    *_ENGINE,
)
ENGINE_LIFETIME_ACCEPTANCE = _gauge(
    "engine_lifetime_acceptance_ratio",
    "V0 engine only: vLLM's own accepted / draft tokens since its start; an average that hides drops.",
    *_ENGINE,
)
ENGINE_LATENCY = _summary(
    "engine_latency_seconds",
    "Quantiles from vLLM's own histograms over latency_window.",
    *_ENGINE,
    "phase",
)
ENGINE_LATENCY_GAP = _gauge("engine_latency_gap_seconds", "P99 - P50 over latency_window.", *_ENGINE, "phase")
ENGINE_LATENCY_GAP_RATIO = _gauge("engine_latency_gap_ratio", "P99 / P50 over latency_window.", *_ENGINE, "phase")
LATENCY_BASELINE = _summary(
    "latency_baseline_seconds", "Latency quantiles in the configured baseline.", "model_name", "phase"
)
ENGINE_LIMITATION = _gauge(
    "engine_limitation", "1 for each limitation of what this engine's page exports.", *_ENGINE, "limitation"
)

# KV cache and load.
KV_CACHE_USAGE = _gauge("kv_cache_usage_ratio", "KV-cache usage at the last poll.", *_ENGINE)
KV_CACHE_PEAK = _gauge(
    "kv_cache_usage_peak_ratio", "Highest KV-cache usage of all polls within kv_peak_window.", *_ENGINE
)
KV_CACHE_SAMPLED = _histogram("kv_cache_sampled_usage_ratio", "KV-cache usage; one observation per poll.", *_ENGINE)
KV_CACHE_CAPACITY = _gauge("kv_cache_capacity_tokens", "Capacity of the KV cache in tokens.", *_ENGINE)
REQUESTS_RUNNING = _gauge("requests_running", "Running requests at the last poll.", *_ENGINE)
REQUESTS_WAITING = _gauge("requests_waiting", "Waiting requests at the last poll.", *_ENGINE)
WAITING_FOR_CAPACITY = _gauge(
    "requests_waiting_for_capacity", "Requests waiting for capacity at the last poll (newer vLLM).", *_ENGINE
)

# Requests, by temperature. ``attribution`` is exact (vLLM's own numbers), inferred (from its counters) or none.
_BUCKET = ("model_name", "temperature")
_WORK = (*_BUCKET, "attribution")
REQUEST_ACCEPTANCE = _histogram(
    "request_acceptance_ratio", "Accepted / draft tokens; one observation per request.", *_WORK
)
REQUEST_ACCEPTANCE_LENGTH = _histogram(
    "request_acceptance_length",
    "Tokens per verification step, bonus token included; one observation per request.",
    *_WORK,
)
REQUEST_ACCEPTANCE_P10 = _gauge(
    "request_acceptance_p10_ratio",
    "10th percentile of single requests' acceptance over latency_window, or over the latest min_requests of an hour if "
    "there are fewer.",
    "model_name",
)
REQUESTS = _counter("requests", "Finished requests.", *_WORK, "outcome")
DRAFTS = _counter("drafts", "Drafts (verification steps) attributed to requests.", *_WORK)
DRAFT_TOKENS = _counter("draft_tokens", "Draft tokens attributed to requests.", *_WORK)
ACCEPTED_TOKENS = _counter("accepted_tokens", "Accepted draft tokens attributed to requests.", *_WORK)
ACCEPTED_PER_POSITION = _counter(
    "accepted_tokens_per_position",
    "Accepted draft tokens attributed to requests, by draft position, starting at 0; exact attribution only.",
    *_WORK,
    "position",
)
REQUEST_TTFT = _histogram(
    "request_time_to_first_token_seconds",
    "Time to first token of completed requests, as the request source saw it.",
    *_BUCKET,
)
REQUEST_TPOT = _histogram(
    "request_time_per_output_token_seconds", "Time per output token after the first, for completed requests.", *_BUCKET
)
REQUEST_DURATION = _histogram("request_duration_seconds", "Duration of completed requests.", *_BUCKET)
COVERAGE = _gauge(
    "attribution_coverage_ratio",
    "Draft tokens attributed to requests / counted by vLLM, exponentially weighted over 10 minutes.",
    "model_name",
)
RESIDUAL = _gauge(
    "attribution_residual_ratio",
    "Relative difference between the inferred sums and vLLM's counters; 0 if they agree.",
    "model_name",
)
VERDICT = _gauge("verdict", "1 for the current verdict, 0 for the others.", *_BUCKET, "verdict")
VERDICT_BASIS = _gauge(
    "verdict_basis",
    "1 for the basis of the verdict: a measured speedup, else the acceptance rate.",
    *_BUCKET,
    "basis",
)

# Time: what speculation saves and costs against plain decoding. ``running`` is the number of requests in a step.
_LOAD = (*_ENGINE, "running")
DECODE_SECONDS = _counter("decode_seconds", "Time between a request's engine steps, summed over requests.", *_LOAD)
DECODE_STEPS = _counter("decode_steps", "Engine steps, counted once for each request that decoded in them.", *_LOAD)
DECODE_TOKENS = _counter(
    "decode_tokens", "Tokens generated in these steps, so without each request's first token.", *_LOAD
)
PLAIN_STEP = _gauge(
    "plain_step_seconds",
    "Time of an engine step without speculation at this load, by source.",
    "model_name",
    "running",
    "reference",
)
BASELINE_TIMESTAMP = _gauge("baseline_timestamp_seconds", "When the plain step times were measured.", "model_name")
SPEEDUP = _gauge(
    "speedup_ratio", "Plain time per token / actual over latency_window; above 1, speculation is faster.", *_BUCKET
)
ENGINE_SPEEDUP = _gauge(
    "engine_speedup_ratio", "Plain time per token / actual of all requests over latency_window.", *_ENGINE
)
ENGINE_SPEEDUP_ERROR = _gauge(
    "engine_speedup_standard_error_ratio", "Standard error of specdec_engine_speedup_ratio.", *_ENGINE
)
BREAK_EVEN_ACCEPTANCE = _gauge(
    "break_even_acceptance_ratio",
    "Acceptance rate at which this load is as fast as plain decoding; above 1: no rate is.",
    *_ENGINE,
)
TIME_SAVED = _counter("time_saved_seconds", "Request-seconds saved against plain decoding.", *_BUCKET)
TIME_LOST = _counter("time_lost_seconds", "Request-seconds lost against plain decoding.", *_BUCKET)

REQUEST_EVENTS = _counter("request_events", "Finished requests that the request source reported.", "source")
REQUEST_EVENTS_DROPPED = _counter(
    "request_events_dropped", "Request events and records that were lost or refused, by reason.", "source", "reason"
)
ASKED_USAGE = _counter(
    "asked_usage",
    "Streams for which vLLM was asked for usage on the client's behalf, by outcome: removed from the reply, missing in "
    "it, or refused by vLLM.",
    "outcome",
)

# The proxy itself, if it is the request source.
PROXY_EXCHANGES = _counter("proxy_exchanges", "Finished exchanges through the proxy, by outcome.", "outcome")
PROXY_REFUSED = _counter("proxy_refused", "Requests and connections that the proxy refused, by reason.", "reason")
PROXY_UPSTREAM_ERRORS = _counter(
    "proxy_upstream_errors", "Exchanges through the proxy that failed on vLLM's side, by kind of error.", "kind"
)
PROXY_RETRIES = _counter("proxy_retries", "Safe requests sent again after vLLM closed a kept-alive connection.")
PROXY_OBSERVER_FAILURES = _counter(
    "proxy_observer_failures", "Exchanges that the proxy forwarded unobserved after a fault of its observer."
)
PROXY_CONNECTIONS = _gauge("proxy_connections", "Open connections of the proxy.", "side")

# Direct push.
ALERTS_SENT = _counter(
    "alerts_sent", "Alerts pushed directly to Alertmanager, repeats included.", "alertmanager", "outcome"
)
