"""The direct push's own counts as samples."""

from collections.abc import Mapping

from sidecar.export import metrics
from sidecar.export.families import Families


def add_push(families: Families, sent: Mapping[tuple[str, str], int]) -> None:
    """Adds what was sent, by replica and outcome."""
    for (alertmanager, outcome), count in sent.items():
        families.add(metrics.ALERTS_SENT, count, alertmanager, outcome)
