"""The part of an alert that is the same whenever it fires."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert at one severity, as ``alerts/alerts.yaml`` has it.

    Its condition must hold for ``wait`` seconds, and the alert outlasts it by ``keep`` seconds.
    ``summary`` and ``description`` have fields for labels, ``value`` and ``percent``. ``first``
    says in a few words what to do first, or is empty.
    """

    name: str
    severity: str
    scope: str
    wait: float
    keep: float
    summary: str
    description: str
    first: str = ""

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that do not depend on what fires."""
        return {"severity": self.severity, "scope": self.scope}


def filled(text: str, labels: Mapping[str, str], value: float) -> str:
    """A ``summary`` or ``description`` with an alert's labels and value; an unknown label is empty.

    The percentage is formatted as by Prometheus' ``humanizePercentage``.
    """
    fields: dict[str, object] = {**labels, "value": value, "percent": f"{100 * value:.4g}%"}
    return text.format_map(defaultdict(str, fields))
