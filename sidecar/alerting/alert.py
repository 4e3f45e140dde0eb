"""What an alert is, and how its text becomes Prometheus' template or, pushed directly, plain words."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.alerting.look import Finding, Look

# Rules are files, so what they point to is written into them; scripts/rules --runbooks and --dashboards set it.
RUNBOOKS: Final = "https://specdec-sidecar.example/alerts/runbooks"
DASHBOARDS: Final = "https://grafana.example"
DASHBOARD: Final = "/d/specdec-operator"
OF_POD: Final = ("job", "instance", "model_name")  # what the dashboard narrows down to

Condition = Callable[[Look], Iterable[Finding]]

_PLACE = re.compile(r"\{(\w+)(?::([%sgd])|\|([^{}]+))?\}", re.ASCII)
_TEMPLATE_FORMS = {"%": "humanizePercentage", "s": "humanizeDuration", "g": 'printf "%.3g"', "d": 'printf "%.0f"'}


class Severity(StrEnum):
    """``critical`` wakes someone, ``warning`` is for working hours, ``info`` is for the dashboard."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Reading:
    """A number that a description quotes: the series to look up, by those of its labels that the alert has too."""

    series: str
    labels: tuple[str, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Links:
    """Where runbooks and dashboards are, without a slash at the end."""

    runbooks: str = RUNBOOKS
    dashboards: str = DASHBOARDS


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``wait`` is how long its condition has to hold, ``keep`` how long it lasts after that: seconds.

    ``linked`` are the labels that the dashboard's link selects by, as far as they are there. ``description`` quotes
    labels as ``{model_name}``, or ``{instance|any}`` with what to say where there is none, the value as ``{value:%}``,
    readings as ``{threshold:%}``; the forms are ``%`` (of a share), ``s`` (of seconds), ``g`` and ``d``. ``condition``
    is ``expr`` over the sidecar's own state, for the direct push; None where one sidecar's present can't tell.
    """

    name: str
    severity: Severity
    summary: str
    description: str
    expr: str
    wait: float
    keep: float = 0
    readings: Mapping[str, Reading] = field(default_factory=dict)
    linked: tuple[str, ...] = OF_POD
    condition: Condition | None = None


def threshold_reading(name: str) -> Reading:
    """The pod's own threshold."""
    return Reading("specdec_threshold", ("job", "instance"), {"name": name})


def rule_annotations(alert: Alert, links: Links) -> dict[str, str]:
    """The annotations as Prometheus expands them."""
    variables = "".join(_variable(name, "&" if index else "") for index, name in enumerate(alert.linked))
    return {
        "summary": alert.summary,
        "description": _PLACE.sub(lambda place: _templated(alert, *place.groups()), alert.description),
        "runbook_url": f"{links.runbooks}/{alert.name}.md",
        "dashboard_url": f"{links.dashboards}{DASHBOARD}" + (f"?{variables}" if variables else ""),
    }


def finding_annotations(alert: Alert, finding: Finding, runbooks: str) -> dict[str, str]:
    """The same with a finding's labels and numbers in them; no dashboard, since there is no Prometheus behind it."""
    return {
        "summary": alert.summary,
        "description": _PLACE.sub(lambda place: _filled(finding, *place.groups()), alert.description),
        "runbook_url": f"{runbooks}/{alert.name}.md",
    }


def _variable(name: str, separator: str) -> str:
    """A dashboard's variable; an empty one would select nothing, so without the label it is left out."""
    return f"{{{{ with $labels.{name} }}}}{separator}var-{name}={{{{ . | urlquery }}}}{{{{ end }}}}"


def _templated(alert: Alert, name: str, form: str | None = None, absent: str | None = None) -> str:
    if name == "value":
        return f"{{{{ $value | {_TEMPLATE_FORMS[form]} }}}}" if form else "{{ $value }}"
    reading = alert.readings.get(name)
    if reading is None and absent:
        return f"{{{{ with $labels.{name} }}}}{{{{ . }}}}{{{{ else }}}}{absent}{{{{ end }}}}"
    if reading is None:
        return f"{{{{ $labels.{name} }}}}"
    shown = _TEMPLATE_FORMS[form or "g"]
    return f"{{{{ with {_query(reading)} }}}}{{{{ . | first | value | {shown} }}}}{{{{ else }}}}unknown{{{{ end }}}}"


def _query(reading: Reading) -> str:
    matchers = ",".join(
        [*(f"{name}='{value}'" for name, value in reading.fixed.items()), *(f"{name}=%q" for name in reading.labels)]
    )
    values = " ".join(f"$labels.{name}" for name in reading.labels)
    return f'printf "{reading.series}{{{matchers}}}" {values} | query'


def _filled(finding: Finding, name: str, form: str | None = None, absent: str | None = None) -> str:
    if name == "value":
        return _shown(finding.value, form)
    if name in finding.readings:
        return _shown(finding.readings[name], form)
    return finding.labels.get(name) or absent or ("unknown" if form else "")


def _shown(value: float | None, form: str | None) -> str:
    if value is None:
        return "unknown"
    if form == "%":
        return f"{100 * value:.4g}%"
    if form == "s":
        return f"{value:.3g}s"
    return f"{value:.0f}" if form == "d" else f"{value:.3g}"
