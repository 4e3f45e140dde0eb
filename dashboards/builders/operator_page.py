"""*Speculative decoding*: the operator's one page."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption

from dashboards.builders.layout import place
from dashboards.builders.operator_acceptance import acceptance
from dashboards.builders.operator_load import load
from dashboards.builders.operator_price import price
from dashboards.builders.operator_sidecar import sidecar
from dashboards.builders.operator_speed import speed
from dashboards.builders.operator_top import alerting, top
from dashboards.builders.operator_trust import trust
from dashboards.builders.page import OPERATOR, new_page

_PAST: Final = ("1h", "6h", "1d", "7d")


def operator_page() -> dashboard.Dashboard:
    """The first screen answers whether speculation pays.

    It also says where it does not, since when, why, and what to do.
    """
    page = new_page(
        OPERATOR,
        "Speculative decoding",
        "Whether speculative decoding pays, at which temperatures it does not, since when, and"
        " why.",
        since="now-6h",
    )
    page.with_variable(
        dashboard.CustomVariable("past")
        .label("Compare with")
        .description("How long ago the past lies that acceptance is compared with")
        .values(",".join(_PAST))
        .current(VariableOption(selected=True, text="1d", value="1d"))
        .options([VariableOption(selected=text == "1d", text=text, value=text) for text in _PAST])
    )
    place(page, [top(), alerting(), acceptance(), speed(), price(), load(), trust(), sidecar()])

    return page
