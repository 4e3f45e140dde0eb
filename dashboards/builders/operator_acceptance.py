"""How many drafted tokens are accepted: by request, by position, against the past."""

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.builders.expressions import ACCEPTANCE_BY_BUCKET, ACCEPTANCE_BY_MODEL
from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import COUNT, SHARE, Query, distribution, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import BUCKET, before, growth_by_bucket, quantile, ratio, threshold, total
from dashboards.builders.tables import matrix
from sidecar.export import metrics

_DRAFT_TOKENS = total(BUCKET, metrics.DRAFT_TOKENS)
_ALL_DRAFT_TOKENS = total("model_name", metrics.DRAFT_TOKENS)


def acceptance() -> Section:
    """Everything about acceptance that is not on the first screen."""
    spread = distribution(
        "Acceptance of single requests",
        "Each column shows the requests that ended then, by their own acceptance. Two bands, one high and one low, are "
        "two kinds of traffic that an average hides.",
        "For a low band, select the temperatures one by one above: the one that still shows it is the one that loses. "
        "A low band at temperature 0 is another kind of prompt.",
        growth_by_bucket(metrics.REQUEST_ACCEPTANCE),
        SHARE,
    )
    by_poll = distribution(
        "Acceptance between two polls",
        "vLLM's own acceptance between two polls of the sidecar. It needs no plug-in, and shows drops too short "
        "for the averages of the lines.",
        "Use it if there is no split by temperature. A wide or double band means that a split is worth having: let "
        "vLLM load the plug-in (docs/plugin.md).",
        growth_by_bucket(metrics.ENGINE_WINDOW_ACCEPTANCE),
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
        "Acceptance of single requests: P10, P50, P90",
        "Nine of ten requests accept more than P10 shows. P10 below the red dashes: a significant part of the traffic "
        "loses, whatever the average says.",
        "Select the temperatures one by one above to find that part. If P10 is low at every temperature, sort your "
        "prompts by kind: code and quotations accept well, free prose does not.",
        [
            *(Query(quantile(share / 100, "", metrics.REQUEST_ACCEPTANCE), f"P{share}") for share in (90, 50, 10)),
            Query(threshold("acceptance_p10"), "P10 too low below", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _shares() -> timeseries.Panel:
    return over_time(
        "Share of the draft tokens, by temperature",
        "Each temperature's share of the draft tokens. One below the dashes is neither judged nor alerted on.",
        "If the average falls while each temperature's line is steady, look for a change here: the traffic became "
        "hotter, the draft model did not become worse.",
        [
            Query(
                f"{_DRAFT_TOKENS} / on (model_name) group_left () ({_ALL_DRAFT_TOKENS} > 0)",
                "{{temperature}} {{model_name}}",
            ),
            Query(threshold("min_bucket_share"), "judged from", Style.NOTICE),
        ],
        SHARE,
        stacked=True,
    )


def _past() -> timeseries.Panel:
    return over_time(
        "Acceptance now less the past",
        "Acceptance now minus that of the past selected at the top. Below the dashes it fell by more than the "
        "threshold. Without data from that time, as on the first day, a line at 0 says so.",
        "If one temperature fell, its prompts changed. If all fell by the same amount, see what was rolled out in "
        "between: quantization, draft model, vLLM's version, the number of speculative tokens.",
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
                "nothing was recorded that long ago: compare with a shorter time",
                Style.NOTICE,
            ),
        ],
        SHARE,
        low=None,
    )


def _length() -> timeseries.Panel:
    by_bucket = ratio(BUCKET, metrics.ACCEPTED_TOKENS, metrics.DRAFTS)
    whole = ratio("model_name", metrics.ENGINE_ACCEPTED_TOKENS, metrics.ENGINE_DRAFTS)
    return over_time(
        "Acceptance length, by temperature",
        "Tokens per verification step, the step's own token included: 1 is no gain at all, the number of speculative "
        "tokens plus 1 is the maximum.",
        "The speedup comes from this, not from acceptance. Near 1, speculation is pure cost.",
        [
            Query(f"1 + {by_bucket}", "{{temperature}} {{model_name}}"),
            Query(f"1 + {whole}", "all {{model_name}}", Style.WHOLE),
        ],
        COUNT,
        low=1,
    )


def _request_length() -> timeseries.Panel:
    return over_time(
        "Acceptance length of single requests: P10, P50, P90",
        "Tokens per verification step of each request, over all that ended.",
        "P10 near 1 while P50 is well above: some requests gain nothing from speculation. Find them by temperature.",
        [Query(quantile(share / 100, "", metrics.REQUEST_ACCEPTANCE_LENGTH), f"P{share}") for share in (90, 50, 10)],
        COUNT,
        low=1,
    )


def _positions() -> timeseries.Panel:
    labels = "model_name, position"
    exact = ratio(labels, metrics.ACCEPTED_PER_POSITION, metrics.DRAFT_TOKENS_PER_POSITION)
    by_vllm = total(labels, metrics.ENGINE_ACCEPTED_PER_POSITION)
    drafts = total("model_name", metrics.ENGINE_DRAFTS)
    return over_time(
        "Acceptance by position",
        "How often the draft's first, second, … token is accepted, where there is one. Positions count from 0. Without "
        "the plug-in, out of all drafts: then the rate also falls because drafts are shorter.",
        "Positions that are seldom accepted cost time and give nothing: lower num_speculative_tokens in "
        "--speculative-config to the positions above about 0.4. If the last one is still high, try one more.",
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
            "The same by temperature over the last 5 minutes.",
            (
                "If only the first position holds at high temperatures, fewer speculative tokens help more there than "
                "none. Empty: vLLM does not load the plug-in."
            ),
        ),
        ratio("temperature, position", metrics.ACCEPTED_PER_POSITION, metrics.DRAFT_TOKENS_PER_POSITION),
        row="temperature",
        column="position",
        unit=SHARE,
        high=1,
    )
