"""The acceptance rate: per request, by position, and compared with the past."""

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.builders.expressions import ACCEPTANCE_BY_BUCKET, ACCEPTANCE_BY_MODEL
from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, SHARE, Query, distribution, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, before, growth_by_bucket, quantile, ratio, threshold, total
from dashboards.builders.tables import matrix

_DRAFT_TOKENS = total(BUCKET, "draft_tokens_total")
_ALL_DRAFT_TOKENS = total("model_name", "draft_tokens_total")


def acceptance() -> Section:
    """Everything about acceptance that is not on the first screen."""
    spread = distribution(
        "Acceptance per request",
        "Each column shows the requests that finished then, by their own acceptance rate. Two bands, one high and one "
        "low, are two kinds of traffic that an average hides.",
        "To explain a low band, select the temperatures one by one above, until you find the one that still shows it. "
        "A low band at temperature 0 comes from a different kind of prompt.",
        growth_by_bucket("request_acceptance_ratio"),
        SHARE,
    )
    by_poll = distribution(
        "Acceptance between two polls",
        "vLLM's own acceptance rate between two polls of the sidecar. It does not need the plug-in, and shows drops "
        "that are too short to be visible in averages.",
        "Use it if there is no split by temperature. A wide or double band means that a split is worth having: load "
        "the plug-in into vLLM (docs/plugin.md).",
        growth_by_bucket("engine_window_acceptance_ratio"),
        SHARE,
    )
    return Section(
        "Acceptance",
        [
            beside(9, (spread, 12), (_quantiles(), 12)),
            beside(9, (_shares(), 12), (_past(), 12)),
            beside(9, (_length(), 12), (_request_length(), 12)),
            beside(9, (_positions(), 12), (_matrix(), 12)),
            beside(9, (by_poll, 24)),
        ],
    )


def _quantiles() -> timeseries.Panel:
    return over_time(
        "Acceptance per request: P10, P50, P90",
        "Nine of ten requests have a higher acceptance rate than P10. If P10 is below the red dashes, speculation "
        "slows down a significant part of the traffic, whatever the average.",
        "To find that part, select the temperatures one by one above. If P10 is low at every temperature, look at the "
        "kinds of prompts: drafts for code and quotations are accepted often, drafts for free prose are not.",
        [
            *(Query(quantile(share / 100, "", "request_acceptance_ratio"), f"P{share}") for share in (90, 50, 10)),
            Query(threshold("acceptance_p10"), "P10 too low below", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _shares() -> timeseries.Panel:
    return over_time(
        "Share of the draft tokens, by temperature",
        "Each temperature's share of the draft tokens. A temperature below the dashes gets no verdict and no alert.",
        "If the average falls while each temperature's acceptance rate is steady, look for a change here: the traffic "
        "moved to higher temperatures; the draft model is not worse.",
        [
            Query(
                f"{_DRAFT_TOKENS} / on (model_name) group_left () ({_ALL_DRAFT_TOKENS} > 0)",
                "{{temperature}} {{model_name}}",
            ),
            Query(threshold("min_bucket_share"), "verdict from", Style.NOTICE),
        ],
        SHARE,
        stacked=True,
    )


def _past() -> timeseries.Panel:
    return over_time(
        "Acceptance now minus the past",
        "The acceptance rate now minus that of the past selected at the top. Below the dashes it dropped by more than "
        "the threshold. If there is no data from that time, as on the first day, there is a line at 0 instead.",
        "If one temperature dropped, its prompts changed. If all dropped by the same amount, check what was rolled out "
        "in between: quantization, draft model, vLLM version, number of speculative tokens.",
        [
            Query(f"({now}) - ({before(now)})", legend, style)
            for now, legend, style in (
                (ACCEPTANCE_BY_BUCKET, "{{temperature}} {{model_name}}", Style.PLAIN),
                (ACCEPTANCE_BY_MODEL, "all {{model_name}}", Style.WHOLE),
            )
        ]
        + [
            Query(f"-{threshold('acceptance_regression')}", "regressed below", Style.LIMIT),
            Query(
                f"0 * {threshold('acceptance_regression')} unless on () ({before(ACCEPTANCE_BY_MODEL)})",
                "no data from that long ago: compare with a shorter time",
                Style.NOTICE,
            ),
        ],
        SHARE,
        low=None,
    )


def _length() -> timeseries.Panel:
    by_bucket = ratio(BUCKET, "accepted_tokens_total", "drafts_total")
    whole = ratio("model_name", "engine_accepted_tokens_total", "engine_drafts_total")
    return over_time(
        "Acceptance length, by temperature",
        "Tokens per verification step, including the step's own token. 1 means that speculation gains nothing; the "
        "maximum is the number of speculative tokens plus 1.",
        "The speedup depends on this, not on the acceptance rate. Near 1, speculation only costs time.",
        [
            Query(f"1 + {by_bucket}", "{{temperature}} {{model_name}}"),
            Query(f"1 + {whole}", "all {{model_name}}", Style.WHOLE),
        ],
        COUNT,
        low=1,
    )


def _request_length() -> timeseries.Panel:
    return over_time(
        "Acceptance length per request: P10, P50, P90",
        "Tokens per verification step of each finished request.",
        "If P10 is near 1 while P50 is well above, some requests gain nothing from speculation. Find them by "
        "temperature.",
        [Query(quantile(share / 100, "", "request_acceptance_length"), f"P{share}") for share in (90, 50, 10)],
        COUNT,
        low=1,
    )


def _positions() -> timeseries.Panel:
    labels = "model_name, position"
    exact = ratio(labels, "accepted_tokens_per_position_total", "draft_tokens_per_position_total")
    by_vllm = total(labels, "engine_accepted_tokens_per_position_total")
    drafts = total("model_name", "engine_drafts_total")
    return over_time(
        "Acceptance by position",
        "How often the first, second, … token of a draft is accepted, out of the drafts that have one. Positions start "
        "at 0. Without the plug-in the rate is out of all drafts, so it also falls where drafts are shorter.",
        "Positions that are seldom accepted cost time and gain nothing: lower num_speculative_tokens in "
        "--speculative-config to the number of positions above about 0.4. If the last one is still high, try one more.",
        [
            Query(
                f"({exact}) or on (model_name) ({by_vllm} / on (model_name) group_left () ({drafts} > 0))",
                "{{position}} {{model_name}}",
            )
        ],
        SHARE,
        high=1,
    )


def _matrix() -> table.Panel:
    return matrix(
        "Acceptance by temperature and position",
        (
            "Acceptance by position for each temperature, over the last 5 minutes.",
            (
                "If only the first position is accepted at high temperatures, fewer speculative tokens are better "
                "there than none. Empty: vLLM has not loaded the plug-in."
            ),
        ),
        ratio(
            "temperature, position",
            "accepted_tokens_per_position_total",
            "draft_tokens_per_position_total",
        ),
        row="temperature",
        column="position",
        unit=SHARE,
        high=1,
    )
