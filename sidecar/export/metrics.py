"""Every metric this program exports: name, type, help and labels in one place.

Names, types, labels and meanings are a contract with rules, dashboards and users (``tests/contract/metrics.txt``).
Ratios are 0 to 1, times seconds. With ``targets`` set, every series also has the label ``target``.
"""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A metric's type, as ``# TYPE`` names it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"  # quantiles only: promtool allows the label ``quantile`` nowhere else


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: ``name`` as it stands on the page, a counter's ``_total`` included."""

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
BUILD_INFO = _gauge("build_info", "1; the labels tell which build this is.", "version", "python_version")
UP = _gauge("up", "1 where the last poll of vLLM's page succeeded and is recent, else 0.")
LAST_SCRAPE = _gauge("last_scrape_timestamp_seconds", "When the last good page was read, Unix time.")
SCRAPE_DURATION = _gauge("scrape_duration_seconds", "How long the last good poll took.")
SCRAPE_INTERVAL = _gauge("scrape_interval_seconds", "The pause in force between two polls.")
SCRAPE_ERRORS = _counter("scrape_errors", "Polls that gave no usable page.", "reason")
MALFORMED_LINES = _counter("scrape_malformed_lines", "Lines and histograms of vLLM's page that were skipped.")
VLLM_RESTARTS = _counter("vllm_restarts", "Restarts of vLLM that were seen.")
VLLM_INFO = _gauge("vllm_info", "1; which vLLM the page looks like.", "version")
INTERNAL_ERRORS = _counter(
    "internal_errors", "Failures of the sidecar itself, by the part that was started again.", "part"
)
LABEL_OVERFLOW = _counter(
    "label_overflow", "Label values that went under 'other' to bound the series, poll by poll.", "label"
)
THRESHOLD = _gauge("threshold", "Every threshold in force, for rules and dashboards to read.", "name")

# vLLM's counters under one name for every version, carried on across its restarts.
ENGINE_DRAFTS = _counter("engine_drafts", "Verification steps of speculating requests, as vLLM counts them.", *_ENGINE)
ENGINE_DRAFT_TOKENS = _counter(
    "engine_draft_tokens", "Draft tokens proposed in all requests, as vLLM counts them.", *_ENGINE
)
ENGINE_ACCEPTED_TOKENS = _counter(
    "engine_accepted_tokens", "Draft tokens accepted in all requests, as vLLM counts them.", *_ENGINE
)
ENGINE_ACCEPTED_PER_POSITION = _counter(
    "engine_accepted_tokens_per_position", "Draft tokens accepted, by draft position from 0.", *_ENGINE, "position"
)
GENERATION_TOKENS = _counter("generation_tokens", "Tokens generated.", *_ENGINE)
PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens processed.", *_ENGINE)
PREEMPTIONS = _counter("preemptions", "Requests that were preempted for want of KV cache.", *_ENGINE)
PREFIX_CACHE_QUERIES = _counter(
    "prefix_cache_queries", "Tokens looked up in the prefix cache (blocks before vLLM 0.9).", *_ENGINE
)
PREFIX_CACHE_HITS = _counter(
    "prefix_cache_hits", "Tokens found in the prefix cache (blocks before vLLM 0.9).", *_ENGINE
)

# What the counters and histograms mean.
ENGINE_WINDOW_ACCEPTANCE = _histogram(
    "engine_window_acceptance_ratio", "Accepted / drafted tokens, one observation a poll that drafted.", *_ENGINE
)
ENGINE_LIFETIME_ACCEPTANCE = _gauge(
    "engine_lifetime_acceptance_ratio",
    "V0 engine only: vLLM's own accepted / drafted since its start, which hides drops.",
    *_ENGINE,
)
ENGINE_LATENCY = _summary(
    "engine_latency_seconds",
    "Quantiles of vLLM's own histograms over latency_window.",
    *_ENGINE,
    "phase",
)
ENGINE_LATENCY_GAP = _gauge("engine_latency_gap_seconds", "P99 - P50 over latency_window.", *_ENGINE, "phase")
ENGINE_LATENCY_GAP_RATIO = _gauge("engine_latency_gap_ratio", "P99 / P50 over latency_window.", *_ENGINE, "phase")
LATENCY_BASELINE = _summary(
    "latency_baseline_seconds", "Quantiles from the configured baseline.", "model_name", "phase"
)
ENGINE_LIMITATION = _gauge(
    "engine_limitation", "1 for each thing that can't be known of this engine from its page.", *_ENGINE, "limitation"
)

# KV cache and load.
KV_CACHE_USAGE = _gauge("kv_cache_usage_ratio", "Share of the KV cache in use at the last poll.", *_ENGINE)
KV_CACHE_PEAK = _gauge("kv_cache_usage_peak_ratio", "Highest share in use at any poll within kv_peak_window.", *_ENGINE)
KV_CACHE_SAMPLED = _histogram("kv_cache_sampled_usage_ratio", "Share in use, one observation a poll.", *_ENGINE)
KV_CACHE_CAPACITY = _gauge("kv_cache_capacity_tokens", "Tokens that the KV cache holds.", *_ENGINE)
REQUESTS_RUNNING = _gauge("requests_running", "Requests in execution at the last poll.", *_ENGINE)
REQUESTS_WAITING = _gauge("requests_waiting", "Requests waiting at the last poll.", *_ENGINE)

# Requests, by temperature. ``attribution`` is exact (vLLM's own numbers), inferred (from its counters) or none.
_BUCKET = ("model_name", "temperature")
_WORK = (*_BUCKET, "attribution")
REQUEST_ACCEPTANCE = _histogram(
    "request_acceptance_ratio", "Accepted / drafted tokens, one observation a request.", *_WORK
)
REQUEST_ACCEPTANCE_LENGTH = _histogram(
    "request_acceptance_length", "Tokens per verification step, one observation a request.", *_WORK
)
REQUESTS = _counter("requests", "Finished requests.", *_WORK, "outcome")
DRAFTS = _counter("drafts", "Verification steps attributed to requests.", *_WORK)
DRAFT_TOKENS = _counter("draft_tokens", "Draft tokens attributed to requests.", *_WORK)
ACCEPTED_TOKENS = _counter("accepted_tokens", "Accepted draft tokens attributed to requests.", *_WORK)
ACCEPTED_PER_POSITION = _counter(
    "accepted_tokens_per_position",
    "Accepted draft tokens of requests, by draft position from 0; exact attribution only.",
    *_WORK,
    "position",
)
REQUEST_TTFT = _histogram(
    "request_time_to_first_token_seconds", "Time to first token of completed requests, as the source saw it.", *_BUCKET
)
REQUEST_TPOT = _histogram(
    "request_time_per_output_token_seconds", "Time per output token after the first, of completed requests.", *_BUCKET
)
REQUEST_DURATION = _histogram("request_duration_seconds", "Duration of completed requests.", *_BUCKET)
COVERAGE = _gauge(
    "attribution_coverage_ratio", "Draft tokens attributed to requests / counted by vLLM, lately.", "model_name"
)
RESIDUAL = _gauge(
    "attribution_residual_ratio",
    "How far the inference's sums are off vLLM's counters; 0 where they agree.",
    "model_name",
)
VERDICT = _gauge("verdict", "1 for the verdict that holds, 0 for the others.", *_BUCKET, "verdict")
REQUEST_EVENTS = _counter("request_events", "Finished requests that the source told of.", "source")
REQUEST_EVENTS_DROPPED = _counter(
    "request_events_dropped", "Events and records that were lost or refused.", "source", "reason"
)

# The proxy itself, where it is the request source.
PROXY_EXCHANGES = _counter("proxy_exchanges", "Exchanges that ended, by how the proxy saw it.", "outcome")
PROXY_REFUSED = _counter("proxy_refused", "Requests and connections that the proxy refused.", "reason")
PROXY_UPSTREAM_ERRORS = _counter("proxy_upstream_errors", "Exchanges that failed on vLLM's side.", "kind")
PROXY_RETRIES = _counter("proxy_retries", "Safe requests sent again because a kept connection was closed.")
PROXY_OBSERVER_FAILURES = _counter(
    "proxy_observer_failures", "Exchanges that went on unobserved after a fault of the sidecar."
)
PROXY_CONNECTIONS = _gauge("proxy_connections", "Open connections.", "side")

# Direct push.
ALERTS_SENT = _counter(
    "alerts_sent", "Alerts sent straight to Alertmanager, repeats included.", "alertmanager", "outcome"
)
