"""``replay``: a recording through the code that a running sidecar runs, offline and reproducibly."""

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sidecar.analysis.report import ModelReport, TemperatureReport
from sidecar.analysis.speedup import WITHHELD
from sidecar.commands.tables import aligned, count, ratio
from sidecar.errors import InputError, SettingsError
from sidecar.recording.replay import replay
from sidecar.settings import Settings, load_settings

HELP = "replay a recording and print acceptance by temperature"
_HEADER = (
    *("temperature", "requests", "draft tokens", "accepted tokens", "acceptance"),
    *("P10", "P50", "P90", "speedup"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``replay``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a recording, as `record` writes it")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="plain step times, as `baseline` writes them")
    parser.add_argument("--json", action="store_true", help="print JSON rather than a table")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0.

    Raises:
        InputError: the baseline cannot be used.
        RecordingError: the recording cannot be read.
    """
    if arguments.baseline is not None:
        settings = _with_baseline(settings, arguments.baseline)
    models = replay(arguments.directory, settings).models
    model = max(models, key=lambda one: sum(bucket.draft_tokens for bucket in one.temperatures), default=None)
    if model is None:
        raise InputError(f"{arguments.directory}: no page of the recording shows a model")
    print(json.dumps(_as_json(model), indent=2, allow_nan=False) if arguments.json else "\n".join(_lines(model)))
    return 0


def _with_baseline(settings: Settings, path: Path) -> Settings:
    try:
        measured = load_settings(None, {"SPECDEC_BASELINE_FILE": str(path)}).baseline_file
    except SettingsError as error:
        raise InputError(f"--baseline: {error}") from error
    return settings.model_copy(update={"baseline_file": measured})


def _coverage(model: ModelReport) -> float | None:
    """The engine's that is farthest from 1; None if none is known."""
    known = [engine.coverage for engine in model.engines if engine.coverage is not None]
    return max(known, key=lambda one: abs(one - 1), default=None)


def _as_json(model: ModelReport) -> dict[str, Any]:
    speed = model.speed
    speedup = None if speed is None else speed.speedup
    return {
        "model": model.model_name,
        "temperatures": {one.temperature: _bucket(one) for one in model.temperatures if sum(one.requests.values())},
        "coverage": _coverage(model),
        "speedup": None if speedup is None else speedup.ratio,
        "break_even_acceptance": None if speed is None else speed.break_even_acceptance,
        "reference": model.reference,
        "withheld": None if speed is None else speed.withheld,
    }


def _bucket(one: TemperatureReport) -> dict[str, Any]:
    return {
        "requests": sum(one.requests.values()),
        "draft_tokens": one.draft_tokens,
        "accepted_tokens": one.accepted_tokens,
        "acceptance": one.accepted_tokens / one.draft_tokens if one.draft_tokens else None,
        "p10": one.acceptance_quantiles[0.1],
        "p50": one.acceptance_quantiles[0.5],
        "p90": one.acceptance_quantiles[0.9],
        "speedup": None if one.speedup is None else one.speedup.ratio,
    }


def _lines(model: ModelReport) -> Iterator[str]:
    found = _as_json(model)
    rows = [(label, *_cells(bucket)) for label, bucket in found["temperatures"].items()]
    yield from aligned(_HEADER, rows)
    if not rows:
        yield model.split_withheld or "the recording has no requests"
    yield ""
    yield f"coverage {ratio(found['coverage'])}: the plug-in's draft tokens divided by vLLM's"
    yield "Requests and tokens count from vLLM's start, which may be before the recording's."
    speed = model.speed
    if speed is not None and speed.speedup is not None:
        speedup, break_even = speed.speedup, ratio(speed.break_even_acceptance)
        yield f"speedup {speedup.ratio:.3f} ± {speedup.error:.3f} against plain decoding ({model.reference})"
        yield f"break-even acceptance {break_even}: below it, this load is faster without speculation"
    elif speed is not None and speed.withheld is not None:
        yield f"no speedup: {WITHHELD[speed.withheld]}"


def _cells(bucket: Mapping[str, Any]) -> tuple[str, ...]:
    counts = ("requests", "draft_tokens", "accepted_tokens")
    return (*(count(bucket[key]) for key in counts), *(ratio(bucket[key]) for key in list(bucket)[len(counts) :]))
