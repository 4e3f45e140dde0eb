"""*Speculative decoding: fleet*: which models, temperatures and pods lose, and since when.

It also shows what the others gain.
"""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.builders.fleet_compare import against, over_the_fleet
from dashboards.builders.fleet_tables import models, pods, worst_temperatures
from dashboards.builders.fleet_top import counts, split, verdicts
from dashboards.builders.layout import Section, beside, place
from dashboards.builders.operator_top import firing
from dashboards.builders.page import FLEET, new_page
from dashboards.builders.panels import COUNT, PER_SECOND, Query, over_time
from dashboards.builders.query import series, total


def fleet_page() -> Dashboard:
    """The first screen, of eight panels, answers which models and which pods lose, since when.

    Temperatures, times and comparisons follow below, each under its question.
    """
    page = new_page(
        FLEET,
        "Speculative decoding: fleet",
        "At which models, temperatures and pods speculative decoding does not pay, and how pods"
        " without it compare.",
        since="now-6h",
    )
    top = Section(
        "",
        [
            counts(),
            beside(8, (verdicts(), 10), (firing("model_name"), 14)),
            beside(8, (models(), 24)),
            beside(12, (pods(), 24)),
        ],
    )
    temperatures = Section(
        "At which temperatures?", [beside(9, (worst_temperatures(), 24))], collapsed=True
    )
    place(page, [top, temperatures, over_the_fleet(), against(), _trust()])

    return page


def _trust() -> Section:
    lost = over_time(
        "Errors across the fleet",
        "Lost events, failed polls, vLLM restarts and restarted parts of sidecars, per second.",
        "A step on all pods at the same time is a rollout or a network problem; select an instance"
        " to see which.",
        [
            Query(
                f"topk(6, {total('reason', 'request_events_dropped_total')})", "lost: {{reason}}"
            ),
            Query(f"topk(6, {total('reason', 'scrape_errors_total')})", "poll failed: {{reason}}"),
            Query(total("", "vllm_restarts_total"), "vLLM restarts"),
            Query(total("part", "internal_errors_total"), "internal: {{part}}"),
        ],
        PER_SECOND,
    )
    versions = over_time(
        "Pods by version of vLLM and of the sidecar",
        "How many pods run each version of the sidecar, and how many engines run each version of"
        " vLLM, as far as the plug-in reports it.",
        "If acceptance changes when a new version appears here, that version is the cause.",
        [
            Query(f"count by (vllm_version) ({series('plugin_info')})", "vLLM {{vllm_version}}"),
            Query(f"count by (version) ({series('build_info')})", "sidecar {{version}}"),
        ],
        COUNT,
    )

    return Section(
        "Can the numbers be trusted?",
        [beside(8, (split(), 4), (lost, 10), (versions, 10))],
        collapsed=True,
    )
