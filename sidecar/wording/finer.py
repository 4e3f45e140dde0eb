"""That a bucket of temperatures hides a difference, and the buckets that would show it."""

from collections.abc import Iterator
from itertools import pairwise

from sidecar.analysis.report import ModelReport
from sidecar.wording.numbers import rate_within


def finer_hints(model: ModelReport) -> Iterator[str]:
    """For each bucket whose parts are told, these and the setting that splits it."""
    for bucket in model.temperatures:
        if not bucket.parts:
            continue

        rates = ", ".join(
            f"{rate_within(part.rate, part.error)} at {part.temperature:g}" for part in bucket.parts
        )
        # The edge at the largest step: there may be only eight.
        cooler, _ = max(pairwise(bucket.parts), key=lambda pair: abs(pair[0].rate - pair[1].rate))
        yield (
            f"The row T {bucket.temperature} has temperatures that differ: {rates} (acceptance rate"
            f" of finished requests). To have two rows, add {cooler.temperature:g} to"
            " `temperature_buckets` (at most eight edges)."
        )
