"""*Speculative decoding*: the operator's one page."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from dashboards.builders.layout import place
from dashboards.builders.operator_acceptance import acceptance
from dashboards.builders.operator_groups import groups
from dashboards.builders.operator_latency import latency
from dashboards.builders.operator_load import load
from dashboards.builders.operator_sidecar import sidecar
from dashboards.builders.operator_speed import speed
from dashboards.builders.operator_top import alerting, top
from dashboards.builders.operator_trust import trust
from dashboards.builders.page import OPERATOR, new_page


def operator_page() -> Dashboard:
    """The first screen answers whether speculation pays, where not and since when; the rest says why."""
    page = new_page(
        OPERATOR,
        "Speculative decoding",
        "Whether speculative decoding pays, at which temperatures it does not, since when, and why.",
        since="now-6h",
    )
    place(page, [top(), alerting(), speed(), acceptance(), groups(), latency(), load(), trust(), sidecar()])
    return page
