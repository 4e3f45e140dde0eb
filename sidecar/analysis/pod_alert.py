"""An alert of a pod: that something is so now, and that someone should know.

``alerts.py`` makes them; all that shows or pushes them decides nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Alert(StrEnum):
    """The alerts that one pod's report tells. Each is a rule in ``alerts/alerts.yaml``, too."""

    COLLAPSED = "SpecDecodeAcceptanceCollapsed"
    LOW = "SpecDecodeAcceptanceLow"
    LOW_AT_TEMPERATURE = "SpecDecodeAcceptanceLowAtTemperature"
    P10_LOW = "SpecDecodeAcceptanceP10Low"
    SLOWER = "SpecDecodeSlowerThanPlain"
    SLOWER_AT_TEMPERATURE = "SpecDecodeSlowerThanPlainAtTemperature"
    OUTPUT_WORSE = "SpecDecodeOutputWorse"
    NOT_SPECULATING = "SpecDecodeNotSpeculating"
    GAP_WIDE = "SpecDecodeLatencyGapWide"
    CACHE_PRESSURE = "SpecDecodeKVCachePressure"
    STALLED = "SpecDecodeEngineStalled"
    DOWN = "SpecDecodeVLLMDown"
    NEVER_UP = "SpecDecodeVLLMNeverUp"
    UNREADABLE = "SpecDecodeVLLMUnreadable"


class Severity(StrEnum):
    """Critical pages someone, a warning can wait for working hours, information for the asking."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAlert:
    """An alert whose condition holds at a poll.

    ``model_name`` is empty where it is on vLLM as a whole, ``temperature`` where it is on all of
    them. ``value`` is what the alert's text quotes. ``keeps_page``: once ``Alert.LOW`` has paged,
    that page goes on while this holds.
    """

    alert: Alert
    severity: Severity
    model_name: str = ""
    temperature: str = ""
    value: float = 0.0
    keeps_page: bool = False

    @property
    def labels(self) -> Mapping[str, str]:
        """What it is about, as the rules label it."""
        labels = {"model_name": self.model_name, "temperature": self.temperature}
        return {name: value for name, value in labels.items() if value}
