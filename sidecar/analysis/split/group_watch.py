"""Follows which groups of a model's requests accept less than others that are otherwise alike."""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from sidecar.analysis.certainty.spread import Spread
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.split.strata import ENGINE, Cells, Difference, Kind, differences, told
from sidecar.analysis.windows.sums import SlidingSums
from sidecar.requests.keys import GROUPED

SPANS: Final = (900.0, 3600.0)
"""Seconds: the short one notices a large difference soon, the long one one of few requests."""
_SLICES: Final = 15
_EVERY: Final = 60.0  # seconds: a slice of the short span, before which little is new
_TABLES: Final = (*(by for by, table in GROUPED.items() if table.key_of is not None), ENGINE)


class GroupWatch:
    """One model's requests by what is told of them; bounded by the number of kinds."""

    def __init__(self) -> None:
        self._spans = [SlidingSums[Kind, Sums](span, _SLICES) for span in SPANS]
        self._judged = -inf
        # by table, or between engines, and group; empty until the short span is known
        self.differences: Mapping[str, Mapping[str, Difference]] = {}

    def add(self, at: float, cells: Cells) -> None:
        """Adds requests that finished by ``at``."""
        for span in self._spans:
            span.add(at, cells)

    @property
    def recent(self) -> Cells:
        """The requests of the short span."""
        return self._spans[0].sums

    def is_due(self, at: float) -> bool:
        """Whether to ``judge`` at ``at``, a good poll's time: once a minute."""
        return not self._judged <= at < self._judged + _EVERY

    def judge(self, at: float, spreads: Mapping[str, Spread], min_requests: int) -> None:
        """Compares the groups as of ``at``; ``spreads`` is by temperature."""
        self._judged = at
        for span in self._spans:
            span.drop(at)

        since = self._spans[-1].since
        before = self.differences
        self.differences = {}
        if since is None or at - since < SPANS[0]:
            return

        self.differences = {
            by: _told(
                [differences(by, span.sums, spreads, min_requests) for span in self._spans],
                before.get(by, {}),
            )
            for by in _TABLES
        }


def _told(
    spans: Sequence[Mapping[str, Difference]], before: Mapping[str, Difference]
) -> Mapping[str, Difference]:
    """By group, of what is known of it over the ``spans``, the shortest first."""
    found = {}
    for group in sorted({group for span in spans for group in span}):
        earlier = before.get(group)
        was_lower = earlier is not None and earlier.is_clearly_lower
        difference = told((span[group] for span in spans if group in span), was_lower=was_lower)
        if difference is not None:
            found[group] = difference
    return found
