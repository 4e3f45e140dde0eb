"""How many series a pod exports at most, and the limits that follow from that.

This is the one place that says the number. What it costs is counted in ``tests/export``.
"""

from typing import Final

from sidecar.analysis.split.tallies import MOST_ADAPTERS
from sidecar.requests.keys import GROUPED
from sidecar.settings import Settings

PROMISED: Final = 1500
"""With the default limits, whatever vLLM and its traffic do."""

PLANNED: Final = 1388
"""With every setting at its default, or a baseline and adapters.

With so much, two engines still show 32 positions beside a baseline; more engines show fewer.

The rest is room for what is added, and for settings like ``temperature_buckets`` and
``limits.models``.
"""

# Series that do not depend on the number of positions:
OF_A_GROUP: Final = 4
_GROUPS: Final = sum(len(declared.labels) for declared in GROUPED.values())
# With those of the process, and of the models that are summed as "other".
_OF_A_POD: Final = 97 + OF_A_GROUP * _GROUPS
_OF_ADAPTERS: Final = OF_A_GROUP * (MOST_ADAPTERS + 1)  # with "other"
_OF_A_BASELINE: Final = 34
_OF_A_PROBE: Final = 8
OF_A_TEMPERATURE: Final = 71
OF_AN_ENGINE: Final = 81
OF_ITS_HISTOGRAMS: Final = 12

_FEW_ENGINES: Final = 4  # so many all have histograms
_MANY_ENGINES: Final = 8
_POSITION_METRICS: Final = 2  # by temperature; there is one more by engine
_NOT_A_BUCKET: Final = 2  # temperatures: those above the highest edge, and "other"


def shown_positions(settings: Settings, engines: int) -> int:
    """How many draft positions have label values of their own; the others are summed."""
    temperatures = len(settings.temperature_buckets) + _NOT_A_BUCKET
    measured = settings.measured
    has_baseline = bool(measured.baseline or measured.plain_steps or measured.plain_cache)

    others = (
        _OF_A_POD
        + (_OF_ADAPTERS if settings.plugin.adapters else 0)
        + (_OF_A_BASELINE if has_baseline else 0)
        + (_OF_A_PROBE if settings.probe.interval is not None else 0)
        + OF_A_TEMPERATURE * temperatures
        + OF_AN_ENGINE * engines
        + OF_ITS_HISTOGRAMS * engines_with_histograms(engines)
    )

    of_a_position = _POSITION_METRICS * temperatures + engines
    affordable = (PLANNED - others) // of_a_position
    if affordable >= settings.limits.positions:
        return settings.limits.positions
    return max(affordable - 1, 0)  # one is for the sum


def engines_with_histograms(engines: int) -> int:
    """Of how many engines of a pod histograms are exported: the engines of a vLLM are alike."""
    if engines <= _FEW_ENGINES:
        return engines
    return 1 if engines <= _MANY_ENGINES else 0
