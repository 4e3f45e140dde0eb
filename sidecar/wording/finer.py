"""That a bucket of temperatures hides a difference, and the buckets that would show it."""

from collections.abc import Iterator

from sidecar.analysis.evidence import CONFIDENCE
from sidecar.analysis.report import ModelReport
from sidecar.wording.numbers import percent


def finer_hints(model: ModelReport) -> Iterator[str]:
    """For each bucket whose parts are told, these and the setting that splits it."""
    for bucket in model.temperatures:
        if not bucket.parts:
            continue

        rates = ", ".join(
            f"{percent(part.rate)} ± {100 * CONFIDENCE * part.error:.0f} at {part.temperature:g}"
            for part in bucket.parts
        )
        edges = ", ".join(f"{part.temperature:g}" for part in bucket.parts[:-1])
        yield (
            f"The row T {bucket.temperature} has temperatures that differ: {rates} (acceptance rate"
            f" of finished requests). To have a row for each, add {edges} to"
            " `temperature_buckets`."
        )
