"""Time: saved and lost, by load, by temperature, and the phases that speculation hardly affects."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.operator_top import between_tokens
from dashboards.builders.panels import SECONDS, SMOOTH, TEMPERATURE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import rate, ratio, series, threshold, total, worst


def speed() -> Section:
    """All about time that is not on the first screen."""
    return Section(
        "How much time does it save, and where is it lost?",
        [
            beside(9, (_balance(), 6), (_per_token(), 6), (between_tokens(), 6), (_gap(), 6)),
            beside(
                9,
                (
                    _by_temperature(
                        "Time per output token", "request_time_per_output_token_seconds", "tpot"
                    ),
                    8,
                ),
                (
                    _by_temperature(
                        "Time to first token", "request_time_to_first_token_seconds", "ttft"
                    ),
                    8,
                ),
                (_by_temperature("Duration", "request_duration_seconds", "e2e"), 8),
            ),
        ],
        collapsed=True,
    )


def _balance() -> timeseries.Panel:
    return over_time(
        "Request time saved over plain decoding",
        "Request-seconds saved minus those lost, per second: 3 means that without speculation three"
        " more requests would be running at any time. Below 0, speculation loses time.",
        "Look at a whole day before you decide: the time saved at night may be lost at noon.",
        [
            Query(
                f"{total('temperature', 'time_saved_seconds_total')} - "
                f"{total('temperature', 'time_lost_seconds_total')}",
                TEMPERATURE,
            )
        ],
        "suffix:s/s",
        low=None,
    )


def _per_token() -> timeseries.Panel:
    actual = ratio("running", "decode_seconds_total", "decode_tokens_total")

    return over_time(
        "Mean TPOT by requests running",
        "Thin: the actual time, by the number of requests running. Thick: without speculation at"
        " that number, on the pod where that is longest.",
        "Where a thin line is above its thick one, speculation does not pay at that load: let vLLM"
        " speculate less there (num_speculative_tokens_per_batch_size).",
        [
            Query(actual, "{{running}} running"),
            Query(
                f"{worst('running', series('plain_step_seconds'))} and {actual}",
                "{{running}} running, plain",
                Style.WHOLE,
            ),
        ],
        SECONDS,
    ).interval(SMOOTH)


def _gap() -> timeseries.Panel:
    phases = 'phase=~"itl|tpot"'
    quantiles = [
        series("latency_baseline_seconds", phases, f'quantile="{quantile}"')
        for quantile in ("0.99", "0.5")
    ]
    baseline = worst("phase", f"{quantiles[0]} - ignoring (quantile) {quantiles[1]}")

    return over_time(
        "Gap between P99 and P50, worst pod",
        "P99 - P50 of the time per output token (tpot) and the inter-token latency (itl) over the"
        " sliding window; without the plug-in, and of itl, interpolated in vLLM's wide buckets."
        " Dashed: the configured baseline's gap times the"
        " threshold, if there is a baseline.",
        "If the gap widens while P50 falls or stays, speculation helps most requests and hurts"
        " some: find the temperature where it does not pay. If P50 rises too, the cause is load:"
        " check the KV cache and the queue.",
        [
            Query(worst("phase", series("engine_latency_gap_seconds", phases)), "{{phase}}"),
            Query(
                f"{baseline} * on () group_left () {threshold('latency_gap_growth')}",
                "{{phase}}, limit",
                Style.LIMIT,
            ),
        ],
        SECONDS,
    )


def _by_temperature(what: str, histogram: str, phase: str) -> timeseries.Panel:
    """The phase is what vLLM itself counts, without the plug-in."""
    total_seconds = f"sum by (temperature) ({rate(histogram, suffix='_sum')})"
    requests = f"sum by (temperature) ({rate(histogram, suffix='_count')})"

    return over_time(
        f"{what}: mean by temperature, P50 and P99 of all",
        "The mean of the finished requests of each temperature, as seen by vLLM's scheduler; thick:"
        " the quantiles of all requests on the worst pod.",
        "If a temperature takes longer and has a low acceptance rate, speculation slows it down:"
        " sample its drafts, or speculate fewer tokens. If its acceptance rate is good, its prompts"
        " or responses are longer, or the load is higher.",
        [
            Query(f"{total_seconds} / ({requests} > 0)", TEMPERATURE),
            *(
                Query(
                    worst(
                        "",
                        series(
                            "engine_latency_seconds", f'phase="{phase}"', f'quantile="{quantile}"'
                        ),
                    ),
                    f"{name} all",
                    Style.WHOLE,
                    color=color,
                )
                for name, quantile, color in (("P50", "0.5", "text"), ("P99", "0.99", "#8e8e9e"))
            ),
        ],
        SECONDS,
    )
