"""Acceptance by prompt length, structured output and, if enabled, adapter."""

from grafana_foundation_sdk.builders import timeseries

from dashboards.builders.layout import Section, beside
from dashboards.builders.panels import SHARE, Query, over_time
from dashboards.builders.panels import Line as Style
from dashboards.builders.query import ratio, threshold, total

_GROUP = "model_name, by, group"


def groups() -> Section:
    """Empty without the plug-in."""
    return Section(
        "Acceptance by request group",
        [beside(9, (_acceptance("prompt_tokens", "prompt length in tokens"), 8), (_others(), 8), (_shares(), 8))],
    )


def _acceptance(by: str, what: str) -> timeseries.Panel:
    return over_time(
        f"Acceptance by {what}",
        "Accepted / draft tokens of the requests with prompts of that length.",
        "Drafts fail first on long prompts: if only those are low, route them to pods that do not speculate, or use a "
        "draft model that was trained on long contexts.",
        [
            Query(_ratio(by), "{{group}} {{model_name}}"),
            Query(threshold("acceptance_net_negative"), "does not pay below", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _others() -> timeseries.Panel:
    return over_time(
        "Acceptance by output and adapter",
        "Accepted / draft tokens of requests with free-form and with structured output and, if plugin.adapters is on, "
        "of each LoRA adapter.",
        "An adapter far below the rest needs its own draft model, or pods that do not speculate.",
        [
            Query(_ratio("output"), "{{group}} {{model_name}}"),
            Query(_ratio("adapter"), "adapter {{group}} {{model_name}}"),
            Query(threshold("acceptance_net_negative"), "does not pay below", Style.LIMIT),
        ],
        SHARE,
        high=1,
    )


def _shares() -> timeseries.Panel:
    drafted = total(_GROUP, "group_draft_tokens_total")
    whole = total("model_name, by", "group_draft_tokens_total")
    return over_time(
        "Share of the draft tokens, by group",
        "Each group's share of the draft tokens; the groups of one kind add up to 1.",
        "A group with a low acceptance rate and a small share matters little. The sidecar's status page names the "
        "groups with a lower acceptance rate.",
        [Query(f"{drafted} / on (model_name, by) group_left () ({whole} > 0)", "{{by}} {{group}} {{model_name}}")],
        SHARE,
        high=1,
    )


def _ratio(by: str) -> str:
    return ratio(_GROUP, "group_accepted_tokens_total", "group_draft_tokens_total", f'by="{by}"')
