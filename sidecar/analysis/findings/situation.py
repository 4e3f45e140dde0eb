"""What a model's findings follow from."""

from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.analysis.report import ModelReport
from sidecar.analysis.split.strata import Cell, Sums
from sidecar.settings.groups import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A model's report with what it does not show of the window's finished requests.

    ``sampling`` has these requests by temperature and how their tokens are chosen. ``forbidden``
    counts the tokens that structured requests without any draft decoded.
    """

    model: ModelReport
    sampling: Mapping[Cell, Sums]
    forbidden: int
    thresholds: Thresholds
