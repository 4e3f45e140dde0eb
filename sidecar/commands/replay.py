"""``replay``: feeds a recording to the code of the running sidecar, offline and reproducibly."""

import argparse
import json
from pathlib import Path
from typing import Any

from sidecar.analysis.report import ModelReport, TemperatureReport
from sidecar.commands.sidecar_status import status_lines
from sidecar.errors import InputError, SettingsError
from sidecar.export.declaration import Shown
from sidecar.export.status import status
from sidecar.recording.recording import replay
from sidecar.settings import Settings, load_settings

HELP = "replay a recording and print acceptance by temperature"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``replay``."""
    parser.add_argument("directory", type=Path, metavar="DIR", help="a recording, as `record` writes it")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="plain step times, as `baseline` writes them")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON rather than what `report` prints")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0.

    Raises:
        InputError: the baseline cannot be used, or no page of the recording shows a model.
        RecordingError: the recording cannot be read.
    """
    if arguments.baseline is not None:
        settings = _with_baseline(settings, arguments.baseline)
    report = replay(arguments.directory, settings)
    if not report.models:
        raise InputError(f"{arguments.directory}: no page of the recording shows a model")
    if arguments.json:
        model = max(report.models, key=lambda model: sum(part.window.draft_tokens for part in model.temperatures))
        print(json.dumps(_as_json(model), indent=2, allow_nan=False))
    else:
        print("\n".join(status_lines(status(Shown(report, settings)), f"recording {arguments.directory}")))
    return 0


def _with_baseline(settings: Settings, path: Path) -> Settings:
    try:
        measured = load_settings(None, {"SPECDEC_BASELINE_FILE": str(path)}).baseline_file
    except SettingsError as error:
        raise InputError(f"--baseline: {error}") from error
    return settings.model_copy(update={"baseline_file": measured})


def _as_json(model: ModelReport) -> dict[str, Any]:
    """The model over the whole recording; ``coverage`` is that of the engine farthest from 1."""
    coverages = [engine.coverage for engine in model.engines if engine.coverage is not None]
    speed = model.speed
    return {
        "model": model.model_name,
        "temperatures": {part.temperature: _bucket(part) for part in model.temperatures if part.window.requests},
        "coverage": max(coverages, key=lambda coverage: abs(coverage - 1), default=None),
        "speedup": speed.speedup.ratio if speed and speed.speedup else None,
        "break_even_acceptance": speed.break_even_acceptance if speed else None,
        "withheld": speed.withheld if speed else None,
    }


def _bucket(part: TemperatureReport) -> dict[str, Any]:
    return {
        "requests": part.window.requests,
        "draft_tokens": part.window.draft_tokens,
        "accepted_tokens": part.window.accepted_tokens,
        "acceptance": part.window.rate,
        "p10": part.acceptance_quantiles[0.1],
        "p50": part.acceptance_quantiles[0.5],
        "p90": part.acceptance_quantiles[0.9],
        "speedup": part.speedup.ratio if part.speedup else None,
    }
