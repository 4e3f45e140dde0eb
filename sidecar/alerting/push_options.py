"""How alerts are pushed, from the settings."""

import socket
from dataclasses import dataclass

from sidecar.alerting.look import Baselines
from sidecar.settings import Settings
from sidecar.settings.groups import Thresholds


@dataclass(frozen=True, slots=True)
class PushOptions:
    """``alertmanagers`` are base URLs, which may hold credentials; times are seconds."""

    alertmanagers: tuple[str, ...]
    instance: str
    runbooks: str
    thresholds: Thresholds
    baselines: Baselines
    window: float
    interval: float = 15.0
    resend: float = 60.0
    timeout: float = 5.0
    pace: float = 1.0
    per_target: bool = False


def push_options(settings: Settings) -> PushOptions:
    """What the settings say."""
    alerting = settings.alerting
    return PushOptions(
        alerting.alertmanagers,
        alerting.instance or socket.gethostname(),
        alerting.runbooks,
        settings.thresholds,
        settings.baselines,
        settings.latency_window,
        alerting.interval,
        alerting.resend,
        alerting.timeout,
        alerting.pace,
        bool(settings.targets),
    )
