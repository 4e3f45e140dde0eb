"""How long requests take: by phase from vLLM, by temperature from the requests themselves."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import SECONDS, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, quantile, series, worst


def latency() -> Section:
    """Quantiles and gaps."""
    tokens = _phases(
        "Time between tokens: P50 and P99",
        "itl|tpot",
        "vLLM's own inter-token latency and time per output token over the sliding window, on the worst pod. Dashed: "
        "the configured baseline.",
        "Speculation should improve this. If P50 is better and P99 worse than the baseline, the workload is mixed. If "
        "both are worse, speculation costs more than it saves, or the load is higher.",
    )
    whole = _phases(
        "Queue, first token, whole request: P50 and P99",
        "queue|ttft|e2e",
        "Phases that speculation hardly affects, on the worst pod: waiting, prefill and the whole request.",
        "If these rise and the time between tokens does not, the cause is load or long prompts, not speculation.",
    )
    return Section(
        "Latency",
        [
            beside(9, (tokens, 12), (whole, 12)),
            beside(
                9,
                (_by_temperature("Time per output token", "request_time_per_output_token_seconds"), 8),
                (_by_temperature("Time to first token", "request_time_to_first_token_seconds"), 8),
                (_by_temperature("Duration", "request_duration_seconds"), 8),
            ),
        ],
    )


def _phases(title: str, phases: str, read: str, do: str) -> timeseries.Panel:
    matchers = (f'phase=~"{phases}"', 'quantile=~"0.5|0.99"')
    labels = "model_name, phase, quantile"
    return over_time(
        title,
        read,
        do,
        [
            Query(
                worst(labels, series("engine_latency_seconds", *matchers)),
                "{{phase}} {{quantile}} {{model_name}}",
            ),
            Query(
                worst(labels, series("latency_baseline_seconds", *matchers)),
                "baseline {{phase}} {{quantile}} {{model_name}}",
                Style.NOTICE,
            ),
        ],
        SECONDS,
    )


def _by_temperature(what: str, histogram: str) -> timeseries.Panel:
    return over_time(
        f"{what} by temperature: P50 and P99",
        "Finished requests, as seen by vLLM's scheduler.",
        "If a temperature has a high P99 and a low acceptance rate, speculation slows it down: route it to pods that "
        "do not speculate. If its acceptance rate is good, its prompts or responses are longer.",
        [
            Query(quantile(0.5, BUCKET, histogram), "P50 {{temperature}} {{model_name}}"),
            Query(quantile(0.99, BUCKET, histogram), "P99 {{temperature}} {{model_name}}"),
        ],
        SECONDS,
    )
