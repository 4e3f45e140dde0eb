"""The acceptance rate: per request, and by position, engine and group of requests.

It is also compared with the past.
"""

from typing import Final

from grafana_foundation_sdk.builders import table, timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.operator_answers import configuration
from dashboards.builders.operator_top import LIMITS, acceptance_by_temperature
from dashboards.builders.panels import (
    COUNT,
    SHARE,
    SMOOTH,
    TEMPERATURE,
    Query,
    distribution,
    over_time,
)
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import (
    POD,
    before,
    first,
    growth_by_bucket,
    lately,
    least,
    ratio,
    relabelled,
    series,
    threshold,
    total,
    who,
)
from dashboards.builders.tables import matrix

_FEW: Final = 8  # lines where there is one for each engine or group
_BY_TEMPERATURE = ratio("temperature", "accepted_tokens_total", "draft_tokens_total")
_OF_ALL = ratio("", "engine_accepted_tokens_total", "engine_draft_tokens_total")


def acceptance() -> Section:
    """Everything about acceptance that is not on the first screen."""
    spread = distribution(
        "Acceptance per request",
        "Each column shows the requests that finished then, by their own acceptance rate. Two"
        " bands, one high and one low, are two kinds of traffic that an average hides.",
        "To explain a low band, select the temperatures one by one above, until you find the one"
        " that still shows it. A low band at temperature 0 comes from a different kind of prompt.",
        growth_by_bucket("request_acceptance_ratio"),
        SHARE,
    )
    by_poll = distribution(
        "Acceptance between two polls",
        "vLLM's own acceptance rate between two polls of the sidecar. It does not need the plug-in,"
        " and shows drops that are too short to be visible in averages.",
        "Use it if there is no split by temperature. A wide or double band means that a split is"
        " worth having: load the plug-in into vLLM (docs/plugin.md).",
        growth_by_bucket("engine_window_acceptance_ratio"),
        SHARE,
    )

    return Section(
        "Where does it not pay? Acceptance by part of the traffic",
        [
            beside(8, (acceptance_by_temperature(), 16), (configuration(), 8)),
            beside(9, (_engines(), 8), (_positions(), 8), (_matrix(), 8)),
            beside(9, (_prompts(), 8), (_kinds(), 8), (_group_shares(), 8)),
            beside(9, (spread, 8), (_quantiles(), 8), (by_poll, 8)),
            beside(9, (_shares(), 8), (_length(), 8), (_past(), 8)),
            beside(9, (_endings(), 12), (_by_ending(), 12)),
        ],
        collapsed=True,
    )


def _engines() -> timeseries.Panel:
    labels = f"{POD}, engine"
    rates = ratio(labels, "engine_accepted_tokens_total", "engine_draft_tokens_total")

    return over_time(
        f"Acceptance by engine, lowest {_FEW}",
        "Accepted / draft tokens of single engines, by vLLM's own counters: those that are lowest"
        " now.",
        "One engine far below its pod's others: restart that pod. If all engines of a pod are low,"
        " it is the pod's traffic or draft model.",
        [
            Query(
                who(first(_FEW, rates, lowest=True)), "engine {{engine}} of {{who}} {{model_name}}"
            ),
            *LIMITS[::2],
        ],
        SHARE,
        high=1,
    )


def _quantiles() -> timeseries.Panel:
    return over_time(
        "Acceptance per request: P10, worst pod",
        "Nine of ten requests of the pod have a higher acceptance rate. Below the red dashes"
        " speculation slows down a significant part of the traffic, whatever the average.",
        "To find that part, select the temperatures one by one above. If P10 is low at every"
        " temperature, look at the kinds of prompts: drafts for code and quotations are accepted"
        " often, drafts for free prose are not.",
        [
            Query(least("", lately(series("request_acceptance_p10_ratio"))), "P10", Style.ALL),
            Query(threshold("acceptance_p10"), "P10 too low below", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _shares() -> timeseries.Panel:
    drafted = total("temperature", "draft_tokens_total")

    return over_time(
        "Share of the draft tokens, by temperature",
        "Each temperature's share of the draft tokens of the selected pods; together they are 100"
        " %. On a pod where a temperature's is below the dashes, it gets no verdict and no alert.",
        "If the average falls while each temperature's acceptance rate is steady, look for a change"
        " here: the traffic moved to higher temperatures; the draft model is not worse.",
        [
            Query(f"{drafted} / on () group_left () (sum({drafted}) > 0)", TEMPERATURE),
            Query(threshold("min_bucket_share"), "verdict from", Style.NOTICE),
        ],
        SHARE,
        high=1,
    ).interval(SMOOTH)


def _past() -> timeseries.Panel:
    return over_time(
        "Acceptance now minus the past",
        "The acceptance rate of the selected pods together, now minus that of the past selected at"
        " the top. Below the dashes it dropped by more than the threshold. No data from that time,"
        " as on the first day: a line at 0.",
        "If one temperature dropped, its prompts changed. If all dropped by the same amount, check"
        " what was rolled out in between: quantization, draft model, vLLM version, number of"
        " speculative tokens.",
        [
            *(
                Query(f"({now}) - ({before(now)})", legend, style)
                for now, legend, style in (
                    (_BY_TEMPERATURE, TEMPERATURE, Style.PLAIN),
                    (_OF_ALL, "all", Style.ALL),
                )
            ),
            Query(f"-{threshold('acceptance_regression')}", "regressed below", Style.LIMIT),
            Query(
                f"0 * {threshold('acceptance_regression')} unless on () ({before(_OF_ALL)})",
                "no data from that long ago: compare with a shorter time",
                Style.NOTICE,
            ),
        ],
        SHARE,
        low=None,
    ).interval(SMOOTH)


def _length() -> timeseries.Panel:
    return over_time(
        "Acceptance length, by temperature",
        "Tokens per verification step, including the step's own token. 1 means that speculation"
        " gains nothing; the maximum is the number of speculative tokens plus 1.",
        "The speedup depends on this, not on the acceptance rate. Near 1, speculation only costs"
        " time.",
        [
            Query(
                f"1 + {ratio('temperature', 'accepted_tokens_total', 'drafts_total')}", TEMPERATURE
            ),
            Query(
                f"1 + {ratio('', 'engine_accepted_tokens_total', 'engine_drafts_total')}",
                "all",
                Style.ALL,
            ),
        ],
        COUNT,
        low=1,
    )


def _positions() -> timeseries.Panel:
    exact = ratio(
        "position", "accepted_tokens_per_position_total", "draft_tokens_per_position_total"
    )
    drafts = total("", "engine_drafts_total")
    accepted = total("position", "engine_accepted_tokens_per_position_total")
    by_vllm = f"{accepted} / on () group_left () ({drafts} > 0)"

    # vLLM does not say what it drafted where: nothing accepted means something only if drafts are
    # mostly as long as there are positions.
    tokens = ratio("", "engine_draft_tokens_total", "engine_drafts_total")
    are_drafted = f"on () ({tokens} > count({accepted}) - 0.5)"
    told = f"({by_vllm} > 0 or {by_vllm} and {are_drafted})"

    return over_time(
        "Acceptance by position",
        "How often the first, second, … token of a draft is accepted, out of the drafts that have"
        " one. Positions start at 0. Without the plug-in the rate is out of all drafts, so it also"
        " falls where drafts are shorter, and a position that is hardly ever drafted has no line.",
        "Positions below the dashes cost more time than they gain: lower num_speculative_tokens in"
        " --speculative-config to the number of positions above. If the last one is still high, try"
        " one more.",
        [
            Query(
                f"({exact}) or on () {told}",
                "position {{position}}",
            ),
            LIMITS[0],
            Query(
                f"{threshold('acceptance_fewer_tokens')} unless {LIMITS[0].expr}",
                "too low below",
                Style.LIMIT,
            ),
        ],
        SHARE,
        high=1,
    )


def _matrix() -> table.Panel:
    labels = "temperature, position"
    rates = ratio(labels, "accepted_tokens_per_position_total", "draft_tokens_per_position_total")
    named = relabelled(
        relabelled(rates, "position", "position $1", "position"),
        "temperature",
        "T $1",
        "temperature",
    )

    return matrix(
        "Acceptance by temperature and position",
        (
            "Acceptance by position for each temperature, over the last 5 minutes.",
            (
                "If only the first position is accepted at high temperatures, fewer speculative"
                " tokens are better there than none. Empty: vLLM has not loaded the plug-in."
            ),
        ),
        named,
        row="temperature",
        column="position",
        unit=SHARE,
        high=1,
    )


def _prompts() -> timeseries.Panel:
    return over_time(
        "Acceptance by prompt length",
        "Accepted / draft tokens of the requests with prompts of that many tokens.",
        "Drafts fail first on long prompts: if only those are low, use a draft model that was"
        " trained on long contexts.",
        [Query(_group_rates('by="prompt_tokens"'), "{{group}} tokens"), LIMITS[0]],
        SHARE,
        high=1,
    )


def _kinds() -> timeseries.Panel:
    return over_time(
        f"Acceptance by output, sampling and adapter, lowest {_FEW}",
        "Accepted / draft tokens of requests with free-form and with structured output, by how they"
        " sample and, if plugin.adapters is on, of each LoRA adapter.",
        "An adapter far below the rest needs its own draft model.",
        [
            Query(
                first(_FEW, _group_rates('by!~"prompt_tokens|ending"'), lowest=True),
                "{{by}}: {{group}}",
            ),
            LIMITS[0],
        ],
        SHARE,
        high=1,
    )


def _group_shares() -> timeseries.Panel:
    drafted = total("by, group", "group_draft_tokens_total")
    whole = total("by", "group_draft_tokens_total")
    shares = f"{drafted} / on (by) group_left () ({whole} > 0) > 0"

    return over_time(
        f"Share of the draft tokens, largest {_FEW} groups",
        "Each group's share of the draft tokens; the groups of one kind add up to 1.",
        "A group with a low acceptance rate and a small share matters little. The sidecar's status"
        " page names the groups with a lower acceptance rate.",
        [Query(first(_FEW, shares), "{{by}}: {{group}}")],
        SHARE,
        high=1,
    ).interval(SMOOTH)


def _endings() -> timeseries.Panel:
    bad = total("temperature, ending", "request_endings_total", 'ending!="normal"')
    finished = total("temperature", "request_endings_total")

    return over_time(
        "Replies that end badly, by temperature",
        "The share of the finished requests whose output repeats itself until it is cut off (loop),"
        " or stops with at most one token (empty).",
        "If a line rises and stays up, send a pod a prompt and read the reply. Some models loop at"
        " temperature 0 by themselves: compare with pods that do not speculate. Empty: vLLM has not"
        " loaded the plug-in, or is too old to show its outputs.",
        [
            Query(
                f"{bad} / on (temperature) group_left () ({finished} > 0)",
                "{{ending}}, T {{temperature}}",
            )
        ],
        SHARE,
        high=1,
    ).interval(SMOOTH)


def _by_ending() -> timeseries.Panel:
    return over_time(
        "Acceptance by how replies end",
        "Accepted / draft tokens of the requests that finished, by how their output ends.",
        "Text that repeats itself is easy to draft. If loops hold a large share of the draft"
        " tokens, which the panel above with the largest groups shows, the acceptance rate looks"
        " better than it is: normal is the rate without them.",
        [Query(_group_rates('by="ending"'), "{{group}}"), LIMITS[0]],
        SHARE,
        high=1,
    )


def _group_rates(matcher: str) -> str:
    return ratio("by, group", "group_accepted_tokens_total", "group_draft_tokens_total", matcher)
