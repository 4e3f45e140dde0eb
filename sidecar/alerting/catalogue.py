"""Every alert, in one list: the rules are generated from it, and the direct push judges by it."""

from sidecar.alerting.acceptance_alerts import acceptance_alerts
from sidecar.alerting.alert import Alert
from sidecar.alerting.health_alerts import health_alerts
from sidecar.alerting.latency_alerts import latency_alerts
from sidecar.alerting.timing import SHIPPED, Timing


def catalogue(timing: Timing = SHIPPED) -> list[Alert]:
    """All alerts."""
    return [*acceptance_alerts(timing), *latency_alerts(timing), *health_alerts(timing)]
