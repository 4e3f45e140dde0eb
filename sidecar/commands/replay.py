"""``replay``: the live attribution run on a recording, offline and reproducibly."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from sidecar import wiring
from sidecar.analysis.request_window import SpeculationSummary
from sidecar.analysis.speedup import WITHHELD
from sidecar.commands.tables import aligned, count, ratio
from sidecar.errors import InputError, SettingsError
from sidecar.recording.replay import ReplayResult, replay
from sidecar.settings import Settings, load_settings

HELP = "attribute the requests of a recording and print acceptance by temperature"
_HEADER = (
    *("temperature", "requests", "draft tokens", "accepted tokens", "acceptance"),
    *("P10", "P50", "P90", "speedup", "attribution"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``replay``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a recording, as `record` writes it")
    parser.add_argument("--infer", action="store_true", help="ignore vLLM's own per-request numbers")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="plain step times, as `baseline` writes them")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0.

    Raises:
        InputError: the baseline cannot be used.
        RecordingError: the recording cannot be read.
    """
    result = replay(
        arguments.directory,
        infer=arguments.infer,
        buckets=wiring.buckets(settings),
        curves=wiring.plain_curves(settings if arguments.baseline is None else _with_baseline(arguments.baseline)),
    )
    if arguments.json:
        print(json.dumps(result.as_json(), indent=2, allow_nan=False))
    else:
        print("\n".join(_lines(result)))
    return 0


def _with_baseline(path: Path) -> Settings:
    try:
        return load_settings(None, {"SPECDEC_BASELINE_FILE": str(path)})
    except SettingsError as error:
        raise InputError(f"--baseline: {error}") from error


def _lines(result: ReplayResult) -> Iterator[str]:
    rows = [_row(label, bucket, result.speedup_at(label)) for label, bucket in result.temperatures.items()]
    yield from aligned(_HEADER, rows)
    if not result.temperatures:
        yield "the recording has no requests"
    yield ""
    yield f"coverage {ratio(result.coverage)}: the share of vLLM's draft tokens that is attributed to requests"
    yield f"residual {ratio(result.residual)}: the inference's deviation from vLLM's own sums"
    if result.speed is not None and (speedup := result.speed.whole.speedup) is not None:
        break_even = ratio(result.speed.whole.break_even_acceptance)
        yield f"speedup {speedup.ratio:.3f} ± {speedup.error:.3f} against plain decoding ({result.speed.reference})"
        yield f"break-even acceptance {break_even}: below it, this load is faster without speculation"
    elif result.speed is not None and result.speed.whole.withheld is not None:
        yield f"no speedup: {WITHHELD[result.speed.whole.withheld]}"


def _row(label: str, bucket: SpeculationSummary, speedup: float | None) -> tuple[str, ...]:
    return (
        label,
        count(bucket.requests),
        count(bucket.draft_tokens),
        count(bucket.accepted_tokens),
        ratio(bucket.acceptance),
        ratio(bucket.p10),
        ratio(bucket.p50),
        ratio(bucket.p90),
        ratio(speedup),
        bucket.attribution or "-",
    )
