"""What a model's findings follow from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.report import ModelReport
from sidecar.analysis.request_count import RequestCount
from sidecar.analysis.split.strata import Cell
from sidecar.settings.groups import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A model's report with what it does not show of the window's finished requests.

    ``sampling`` has these requests by temperature and how their tokens are chosen. ``counts`` has
    the rules' own numbers of them; one that is missing is 0.
    """

    model: ModelReport
    thresholds: Thresholds
    sampling: Mapping[Cell, Sums] = field(default_factory=dict)
    counts: Mapping[RequestCount, int] = field(default_factory=dict)
