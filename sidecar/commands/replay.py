"""``replay``: the live attribution run on a recording, offline and reproducibly."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from sidecar import wiring
from sidecar.commands.tables import aligned, count, ratio
from sidecar.errors import RecordingError
from sidecar.recording.replay import BucketSummary, ReplayResult, replay
from sidecar.settings import Settings

HELP = "attribute the requests of a recording and print acceptance by temperature"
_HEADER = (
    "temperature",
    "requests",
    "draft tokens",
    "accepted tokens",
    "acceptance",
    "P10",
    "P50",
    "P90",
    "attribution",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``replay`` takes."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a recording, as `record` writes it")
    parser.add_argument("--infer", action="store_true", help="ignore vLLM's own per-request numbers")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0, or 1 if the recording cannot be read."""
    try:
        result = replay(arguments.directory, infer=arguments.infer, buckets=wiring.buckets(settings))
    except RecordingError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(result.as_json(), indent=2, allow_nan=False))
    else:
        print("\n".join(_lines(result)))
    return 0


def _lines(result: ReplayResult) -> Iterator[str]:
    yield from aligned(_HEADER, [_row(label, bucket) for label, bucket in result.temperatures.items()])
    if not result.temperatures:
        yield "the recording has no requests"
    yield ""
    yield f"coverage {ratio(result.coverage)}: the share of vLLM's draft tokens that is attributed to requests"
    yield f"residual {ratio(result.residual)}: the inference's deviation from vLLM's own sums"


def _row(label: str, bucket: BucketSummary) -> tuple[str, ...]:
    return (
        label,
        count(bucket.requests),
        count(bucket.draft_tokens),
        count(bucket.accepted_tokens),
        ratio(bucket.acceptance),
        ratio(bucket.p10),
        ratio(bucket.p50),
        ratio(bucket.p90),
        bucket.attribution,
    )
