"""Pods that speculate compared with pods of the same model that do not: a live baseline.

A pod that does not speculate has ``specdec_generation_tokens_total`` and no ``specdec_engine_draft_tokens_total``.
"""

from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import PER_SECOND, SECONDS, SHARE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import POD, series, threshold, total

_DRAFTING: Final = f"({total(POD, 'engine_draft_tokens_total')} >= 0)"  # whatever it drafts: the series is there
_WITHOUT: Final = f"unless on ({POD})"
# Selects the pods that speculate and those that don't; a pod with neither counter is in no group.
_GROUPS: Final = (
    ("speculating", f"and on ({POD})", Style.WHOLE),
    ("not speculating", _WITHOUT, Style.PLAIN),
)


def against() -> Section:
    """Latency, throughput and KV cache of both groups, by model."""
    read = (
        "The mean over the pods of each group, by model. There is a comparison only if a model has pods in both groups."
    )
    return Section(
        "Pods with and without speculation, by model",
        [
            beside(
                9,
                (
                    _token(
                        "0.5",
                        "P50 of the time per output token",
                        read,
                        "Speculating pods should be clearly lower; otherwise the typical request gains nothing.",
                    ),
                    8,
                ),
                (
                    _token(
                        "0.99",
                        "P99 of the time per output token",
                        read,
                        "If speculating pods are higher here but lower at P50, the workload is mixed: route the slower "
                        "temperatures to the other pods. If they are higher in both, turn speculation off.",
                    ),
                    8,
                ),
                (
                    _compared(
                        "Gap between P99 and P50 of the time per output token",
                        read,
                        "The difference between the two groups is what speculation adds to the gap.",
                        series("engine_latency_gap_seconds", 'phase="tpot"'),
                        SECONDS,
                    ),
                    8,
                ),
            ),
            beside(9, (_throughput(read), 8), (_kv(read), 8), (_groups(), 8)),
        ],
    )


def _compared(title: str, read: str, do: str, expr: str, unit: str) -> timeseries.Panel:
    return over_time(title, read, do, _both(expr), unit)


def _both(expr: str) -> list[Query]:
    return [Query(_mean(expr, keep), f"{name} {{{{model_name}}}}", style) for name, keep, style in _GROUPS]


def _mean(expr: str, keep: str) -> str:
    return f"avg by (model_name) ({expr} {keep} {_DRAFTING})"


def _token(quantile: str, title: str, read: str, do: str) -> timeseries.Panel:
    """A quantile of the time per output token, with the limit for speculating pods."""
    expr = series("engine_latency_seconds", 'phase="tpot"', f'quantile="{quantile}"')
    limit = f"{_mean(expr, _WITHOUT)} * on () group_left () {threshold('slowdown')}"
    return over_time(title, read, do, [*_both(expr), Query(limit, "limit {{model_name}}", Style.LIMIT)], SECONDS)


def _throughput(read: str) -> timeseries.Panel:
    return _compared(
        "Tokens per second per pod",
        read,
        "At equal load per pod both are equal; when saturated, the group with the higher rate is better.",
        total(POD, "generation_tokens_total"),
        PER_SECOND,
    )


def _kv(read: str) -> timeseries.Panel:
    return _compared(
        "KV cache peak per pod",
        read,
        "Speculating pods need more KV cache. If they need much more at equal load, speculate fewer tokens.",
        series("kv_cache_usage_peak_ratio"),
        SHARE,
    )


def _groups() -> timeseries.Panel:
    queries = [
        Query(
            f"count by (model_name) ({total(POD, 'generation_tokens_total')} {keep} {_DRAFTING})",
            f"{name} {{{{model_name}}}}",
            style,
        )
        for name, keep, style in _GROUPS
    ]
    return over_time(
        "Pods in each group",
        "How many pods of each model speculate, and how many do not.",
        "Keep one pod of each model without speculation: it is the cheapest way to measure what speculation gains.",
        queries,
        "short",
    )
