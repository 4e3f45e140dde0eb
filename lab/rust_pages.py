"""Makes the pages of vLLM's Rust frontend in tests/data/pages, and their entries in TRUTH.json.

    .venv/bin/python -m lab.rust_pages    # from the repository's root

No such server can be built here, so a page is put together from vLLM's public source: families,
help texts, order and labels are those of rust/src/metrics/src/{scheduler,request,api_server}.rs
(commits 01cc1d3, 13dacb0 and 47e7f39 of vllm-project/vllm), which series there are before anything
was counted of rust/src/engine-core-client/src/metrics.rs, and the form that of the Rust crate
prometheus-client: OpenMetrics, counts as integers, help texts that end with a full stop. The values
are those of Python's page of the same release, so its truth is also theirs.
"""

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Final

OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PAGES: Final = Path("tests/data/pages")
MADE: Final = {
    "vllm-0.33.0.prom": "vllm-0.33.0-rust.prom",
    "vllm-0.33.0-nospec.prom": "vllm-0.33.0-rust-nospec.prom",
}
# Name, type and help text, in the order in which they are registered. A family whose series need
# something that these pages have not counted is left out, as the crate does from 0.24 on.
_FAMILIES: Final = (
    ("num_requests_running", "gauge", "Number of requests in model execution batches."),
    ("num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    ("num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason."),
    ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    (
        "prefix_cache_queries",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
    ),
    ("prefix_cache_hits", "counter", "Prefix cache hits, in terms of number of cached tokens.."),
    ("external_prefix_cache_queries", "counter", "External prefix cache queries."),
    ("external_prefix_cache_hits", "counter", "External prefix cache hits."),
    ("spec_decode_num_drafts", "counter", "Number of spec decoding drafts.."),
    ("spec_decode_num_draft_tokens", "counter", "Number of draft tokens.."),
    ("spec_decode_num_accepted_tokens", "counter", "Number of accepted tokens.."),
    (
        "spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Accepted tokens per draft position..",
    ),
    ("iteration_tokens_total", "histogram", "Computed tokens per nonempty engine output batch.."),
    ("num_preemptions", "counter", "Cumulative number of preemption events.."),
    ("prompt_tokens", "counter", "Prompt tokens summed over sequences."),
    ("generation_tokens", "counter", "Number of generation tokens processed.."),
    ("request_success", "counter", "Count of successfully processed requests.."),
    ("request_prompt_tokens", "histogram", "Prompt length of each finished sequence."),
    ("request_generation_tokens", "histogram", "Number of generation tokens processed.."),
    ("time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.."),
    ("inter_token_latency_seconds", "histogram", "Histogram of inter-token latency in seconds.."),
    ("e2e_request_latency_seconds", "histogram", "Histogram of e2e request latency in seconds.."),
    ("request_queue_time_seconds", "histogram", "Histogram of time spent in WAITING phase.."),
    ("request_prefill_time_seconds", "histogram", "Histogram of time spent in PREFILL phase.."),
    ("request_decode_time_seconds", "histogram", "Histogram of time spent in DECODE phase.."),
    ("request_inference_time_seconds", "histogram", "Histogram of time spent in RUNNING phase.."),
    (
        "request_time_per_output_token_seconds",
        "histogram",
        "Histogram of time_per_output_token_seconds per request..",
    ),
)
# There from the moment an engine connects; the others once something was counted.
_AT_CONNECTION: Final = frozenset(
    {
        "external_prefix_cache_queries",
        "external_prefix_cache_hits",
        "spec_decode_num_drafts",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_accepted_tokens",
    }
)
_API_SERVER: Final = """\
# HELP http_requests Total number of HTTP requests by method, status, and handler..
# TYPE http_requests counter
http_requests_total{method="POST",status="2xx",handler="/v1/chat/completions"} 3
http_requests_total{method="GET",status="4xx",handler="none"} 1
# HELP http_request_duration_highr_seconds High-resolution duration of HTTP requests in seconds..
# TYPE http_request_duration_highr_seconds histogram
http_request_duration_highr_seconds_sum 0.5
http_request_duration_highr_seconds_count 4
http_request_duration_highr_seconds_bucket{le="0.01"} 0
http_request_duration_highr_seconds_bucket{le="0.5"} 4
http_request_duration_highr_seconds_bucket{le="+Inf"} 4
# EOF
"""
_SAMPLE: Final = re.compile(r"vllm:(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)")
_ENDS: Final = {
    "gauge": ("",),
    "counter": ("_total",),
    "histogram": ("_sum", "_count", "_bucket"),
}


def rust_page(python_page: str) -> str:
    """The page of the Rust frontend with the values of one of Python's."""
    samples: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for match in _SAMPLE.finditer(python_page):
        samples[match["name"]].append((match["labels"], match["value"]))
    engine = _label_text(samples["num_requests_running"][0][0])

    lines = []
    for name, kind, text in _FAMILIES:
        series = [
            f"vllm:{name}{end}{{{_label_text(labels)}}} {_value_text(value, end, kind, name)}"
            for end in _ENDS[kind]
            for labels, value in samples[f"{name}{end}"]
        ]
        if not series and name in _AT_CONNECTION:
            series = [f"vllm:{name}_total{{{engine}}} 0"]
        if series:
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}", *series]

    return "".join(f"{line}\n" for line in lines) + _API_SERVER


def _label_text(labels: str) -> str:
    """Model and engine come first."""
    pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    names = ["model_name", "engine", *sorted(set(pairs) - {"model_name", "engine"})]
    return ",".join(f'{name}="{pairs[name]}"' for name in names)


def _value_text(value: str, end: str, kind: str, name: str) -> str:
    """Sums and the cache's usage are floats, all else is counted."""
    is_float = end == "_sum" or (kind == "gauge" and name == "kv_cache_usage_perc")
    return value if is_float else str(int(float(value)))


def main() -> None:
    """Writes the pages, and what Python's truth says of their values."""
    path = _PAGES / "TRUTH.json"
    truth = json.loads(path.read_text())
    for source, made in MADE.items():
        (_PAGES / made).write_text(rust_page((_PAGES / source).read_text()))
        truth[made] = truth[source] | {
            "frontend": "rust",
            "prometheus_client": None,
            "content_type": OPENMETRICS,
            "page_served_by": "built from vLLM's source by lab/rust_pages.py, not recorded",
        }
    path.write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
