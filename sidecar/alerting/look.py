"""What the direct push judges by: one server's report and the settings' thresholds, nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.target_state import TargetReport
from sidecar.settings.groups import Thresholds

Baselines = Mapping[str, Mapping[str, Mapping[float, float]]]  # seconds by model, phase and quantile


@dataclass(frozen=True, slots=True)
class Look:
    """One server at one moment. ``window`` is that of the report's sliding windows, in seconds."""

    report: TargetReport
    thresholds: Thresholds
    baselines: Baselines
    window: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing for which a condition holds: what it is (``labels``), how much (``value``), and what is quoted."""

    labels: Mapping[str, str]
    value: float
    readings: Mapping[str, float | None] = field(default_factory=dict)
