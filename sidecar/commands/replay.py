"""``replay``: what the live attribution makes of a recording, offline and always the same."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from sidecar import wiring
from sidecar.recording.recording import RecordingError
from sidecar.recording.replay import BucketSummary, ReplayResult, replay
from sidecar.reporting.table import aligned, count, ratio
from sidecar.settings import Settings

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
    parser.add_argument("--infer", action="store_true", help="ignore vLLM's own numbers for each request")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0, or 1 where the recording can't be read."""
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
        yield "no request is in the recording"
    yield ""
    yield f"coverage {ratio(result.coverage)} of vLLM's draft tokens are attributed to requests"
    yield f"residual {ratio(result.residual)} is how far the inference is off vLLM's own sums"


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
