"""The fleet's first screen: how many models and pods lose, which, since when, and what fires."""

from typing import Final

from grafana_foundation_sdk.builders import stat, statetimeline
from grafana_foundation_sdk.models.common import BigValueTextMode

from dashboards.builders.expressions import JUDGED_BY_ACCEPTANCE, has_verdict, shown
from dashboards.builders.fleet_state import (
    DOWN,
    LOSE,
    LOSING,
    MODEL_STATES,
    MODELS,
    PODS,
    UNSCRAPED,
    UP,
    counted,
    model_state,
)
from dashboards.builders.layout import Line, beside
from dashboards.builders.panels import Mapping, Query, figure, states
from dashboards.builders.query import (
    MODEL,
    POD,
    alerts,
    lately,
    number,
    recorded,
    series,
    short_model,
    total,
    worst,
)
from dashboards.builders.verdicts import AMBER, GREY, PURPLE

_LIGHT: Final[Mapping] = {
    0: ("none", "green"),
    1: ("unknown", PURPLE),
    2: ("some", "orange"),
    3: ("some", "red"),
    4: ("nothing to do", GREY),
    5: ("not measured", AMBER),
}
_SPECULATES: Final = recorded("speculates:bool", "pod")
_KNOWN: Final = number(PODS)
_UP: Final = number(UP)
_MISSING: Final = f"({_KNOWN} - {_UP})"
_UNSCRAPED: Final = number(UNSCRAPED)
_JUDGED: Final = lately(series("model_verdict", 'verdict!="insufficient_data"'))


def counts() -> Line:
    """Four figures, each "x of y"."""
    return beside(3, (_models(), 6), (_pods(), 6), (_up(), 4), (_alerts(), 8))


def _told(title: str, read: str, do: str, expr: str, legend: str, *, empty: str) -> stat.Panel:
    """A figure whose legend is what it says, on a ground of its value's colour."""
    panel = figure(title, read, do, Query(expr, legend), values=_LIGHT, empty=empty)
    return panel.text_mode(BigValueTextMode.NAME)


def _losing(some: str, unmeasured: str, known: str, *, plain: str, of_all: str) -> str:
    """Red if some lose; else green only if all that is known is there, and was measured.

    Grey if all are ``plain``: what does not speculate neither pays nor loses.
    """
    return (
        f"3 + 0 * ({some} > 0) or 4 + 0 * ({plain} == {of_all} > 0)"
        f" or 1 + 0 * ({_MISSING} > 0 or {known} == 0)"
        f" or 5 + 0 * ({unmeasured} > 0) or vector(0)"
    )


def _models() -> stat.Panel:
    lose, known = number(LOSE), number(MODELS)
    part = number(f"{worst(MODEL, LOSING)} == 1 unless {LOSE}")
    unmeasured = number(worst(MODEL, JUDGED_BY_ACCEPTANCE))
    plain = number(f"{worst(MODEL, _SPECULATES)} == 0")
    or_not = _losing(part, unmeasured, known, plain=plain, of_all=known)
    color = f"3 + 0 * ({lose} > 0) or 2 + 0 * ({part} > 0) or {or_not}"

    return _told(
        "Models that do not pay",
        "Models of which at least half of the pods, over all their requests, lose by speculating;"
        " of all models. In part, orange: fewer of its pods do. Purple: none loses, but a pod is"
        " missing. Grey: none speculates. Amber: some pods have no baseline, so that only the rule"
        " of thumb judges them.",
        "One of many: that model's draft or traffic. All at the same time: a rollout or new"
        " prompts.",
        counted(color, losing=lose, known=known, part=part, unmeasured=unmeasured),
        "{{losing}} of {{known}}{{part}}{{unmeasured}}",
        empty="-",
    )


def _pods() -> stat.Panel:
    some, judged = number(f"{LOSING} == 1"), number(f"{_JUDGED} == 1")
    unmeasured = number(worst(POD, JUDGED_BY_ACCEPTANCE))

    return _told(
        "Pods that do not pay",
        "Pods that take longer than without speculation, as measured, of all. A verdict stands for"
        " three minutes after its pod's end. Purple: none loses, but nothing is known now of a pod"
        " that should be there, or none has a verdict yet. Grey: none speculates. Amber: some have"
        " no baseline.",
        "The table of pods has their findings. One pod of many: compare its traffic. All: stop"
        " speculating.",
        counted(
            _losing(some, unmeasured, judged, plain=number(f"{_SPECULATES} == 0"), of_all=_KNOWN),
            losing=some,
            known=_KNOWN,
            missing=_MISSING,
            unmeasured=unmeasured,
        ),
        "{{losing}} of {{known}}{{missing}}{{unmeasured}}",
        empty="-",
    )


def _up() -> stat.Panel:
    color = (
        f"3 + 0 * ({number(DOWN)} > 0 or {_UNSCRAPED} > 0)"
        f" or 1 + 0 * ({_MISSING} > 0 or {_KNOWN} == 0) or vector(0)"
    )

    return _told(
        "Pods up",
        "Pods whose sidecar and vLLM both answer, out of all, including targets that Prometheus"
        " could never scrape, whichever model is selected. Red: one is down. Purple: the last pod"
        " of a model is gone, although it had requests. A model that was idle when it was scaled to"
        " zero does not count.",
        "Check what is down first, on top of the table of pods: nothing is known about it.",
        counted(color, up=_UP, known=_KNOWN),
        "{{up}} of {{known}}",
        empty="-",
    )


def _alerts() -> stat.Panel:
    by = {name: number(_rows(name)) for name in ("critical", "warning", "info")}
    color = f"3 + 0 * ({by['critical']} > 0) or 2 + 0 * ({by['warning']} > 0) or vector(4)"

    return _told(
        "Alerts",
        "How many rows of each severity the table below has. It is never green: alerts need"
        " minutes, and rules.",
        "Critical ones first. Alerts for information need no action.",
        # Without our rules there is nothing to count, rather than none.
        f"{counted(color, **by)} and on () (group({alerts()}) or"
        " group(fleet:specdec_runbooks:any))",
        "{{critical}} critical, {{warning}} warning, {{info}} info",
        empty="no rules are loaded",
    )


def _rows(severity: str) -> str:
    """The rows of the table of alerts."""
    firing = shown(alerts('alertstate="firing"', f'severity="{severity}"'))
    return f"group by (alertname, model_name, temperature, engine, sign) ({firing})"


def split() -> stat.Panel:
    """Whether verdicts by temperature are known at all."""
    whole_split = number(f"group by ({POD}) ({has_verdict('verdict', 'net_negative')})")
    drafting = number(f"{total(POD, 'engine_drafts_total')} > 0")

    return _told(
        "Split by temperature",
        "Pods with verdicts by temperature, of all. Orange: some draft without a split. A pod that"
        " is down, or does not speculate, has none.",
        "Where it is missing, no alert by temperature can fire. The sidecar's status page says why:"
        " mostly vLLM was started without the plug-in.",
        counted(
            f"2 + 0 * ({whole_split} < {drafting}) or 1 + 0 * ({_MISSING} > 0) or vector(0)",
            split=whole_split,
            known=_KNOWN,
        ),
        "{{split}} of {{known}}",
        empty="-",
    )


def verdicts() -> statetimeline.Panel:
    """A band a model."""
    return states(
        "Worst verdict by model: which, and since when",
        "One band per model: red, a pod loses over all its requests; orange, at a temperature or on"
        " an engine only, or by the rule of thumb where nothing was measured; purple, of a pod that"
        " should be there nothing is known; all pods down is red as well.",
        "Find the temperature and the pod in the tables below. The marks are alerts, restarts and"
        " changes of the configuration.",
        Query(short_model(model_state(over_time=True)), "{{model_name}} {{namespace}} {{cluster}}"),
        values=MODEL_STATES,
        empty="no pod: scaled to zero, or check Prometheus' targets",
    )
