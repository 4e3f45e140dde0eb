"""What a model's findings follow from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.report import ModelReport
from sidecar.settings.groups import Thresholds


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A model's report with what it does not show of finished requests.

    ``sampling`` has those of the last quarter of an hour by temperature and how their tokens are
    chosen, ``spreads`` how much those at each temperature differ. ``structured_undrafted``
    is what structured requests of the window decoded without any draft, in tokens.
    """

    model: ModelReport
    thresholds: Thresholds
    sampling: Mapping[tuple[str, str], Sums] = field(default_factory=dict)
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    structured_undrafted: int = 0
