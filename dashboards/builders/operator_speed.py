"""Whether speculation saves time: speedup by temperature, time per token by load, and time saved and lost."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, SECONDS, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, least, ratio, series, threshold, total, worst


def speed() -> Section:
    """All about time; empty without a reference for plain decoding."""
    return Section(
        "Speedup over plain decoding",
        [
            beside(9, (_speedup(), 12), (_balance(), 12)),
            beside(9, (_per_token(), 12), (_break_even(), 12)),
        ],
    )


def _speedup() -> timeseries.Panel:
    return over_time(
        "Speedup by temperature, against its thresholds",
        "Time per token without speculation divided by the actual one, at the same load; at 1 both are equal. The "
        "thick line is all requests. No line: there is no reference without speculation.",
        "If there are no lines, measure a baseline: specdec-sidecar baseline --load. Below the red dashes speculation "
        "costs time: the sidecar's status page proposes another number of draft tokens.",
        [
            Query(least(BUCKET, series("speedup_ratio")), "{{temperature}} {{model_name}}"),
            Query(least("model_name", series("engine_speedup_ratio")), "all {{model_name}}", Style.WHOLE),
            Query(threshold("speedup_net_negative"), "does not pay below", Style.LIMIT),
            Query(threshold("speedup_net_positive"), "pays above", Style.NOTICE),
        ],
        COUNT,
    )


def _balance() -> timeseries.Panel:
    return over_time(
        "Request time saved over plain decoding",
        "Request-seconds saved minus those lost, per second: 3 means that without speculation three more requests "
        "would be running at any time. Below 0, speculation loses time.",
        "Look at a whole day before you decide: the time saved at night may be lost at noon.",
        [
            Query(
                f"{total(BUCKET, 'time_saved_seconds_total')} - {total(BUCKET, 'time_lost_seconds_total')}",
                "{{temperature}} {{model_name}}",
            )
        ],
        COUNT,
    )


def _per_token() -> timeseries.Panel:
    actual = ratio("model_name, running", "decode_seconds_total", "decode_tokens_total")
    return over_time(
        "Time per token by requests running",
        "Thin: the actual time, by the number of requests running. Thick: without speculation at that number.",
        "Where a thin line is above its thick one, speculation does not pay at that load: let vLLM speculate less "
        "there (num_speculative_tokens_per_batch_size).",
        [
            Query(actual, "{{running}} {{model_name}}"),
            Query(
                worst("model_name, running", series("plain_step_seconds")),
                "plain, {{running}} {{model_name}}",
                Style.WHOLE,
            ),
        ],
        SECONDS,
    )


def _break_even() -> timeseries.Panel:
    accepted = ratio("model_name", "engine_accepted_tokens_total", "engine_draft_tokens_total")
    return over_time(
        "Acceptance, and the break-even acceptance",
        "The thick line is the acceptance rate needed to be as fast as without speculation at the current load (the "
        "highest of the pods); the thin line is the actual acceptance rate.",
        "If break-even rises with the load, compute is short: use fewer draft tokens in full batches. If it rises at "
        "the same load, something else slows down the steps.",
        [
            Query(accepted, "accepted {{model_name}}"),
            Query(
                worst("model_name", series("break_even_acceptance_ratio")),
                "breaks even {{model_name}}",
                Style.WHOLE,
            ),
        ],
        COUNT,
    )
