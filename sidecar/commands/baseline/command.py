"""``baseline``: measure a healthy vLLM's latencies and plain step times, for the sidecar to compare with later."""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from sidecar.analysis.engine.latency import latency
from sidecar.commands.arguments import base_url, duration, file_to_write, listed, whole, written
from sidecar.commands.baseline.watch import Watched, from_recording, watch
from sidecar.commands.sweep.options import MOST_AT_ONCE, add_request_arguments, request_options
from sidecar.engine.names import Phase
from sidecar.engine.snapshot import HistogramReading
from sidecar.settings import Settings
from sidecar.settings.baselines import PlainStepTimes

HELP = "measure the latencies of a healthy vLLM and its step times without speculation, and write them as a baseline"
_DIGITS: Final = 6
_REACHED: Final = 0.7  # share of the highest level that the step times must reach: while requests end, fewer run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``baseline``."""
    parser.add_argument("--url", type=base_url, help="the vLLM to measure (default: the setting vllm_url)")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument(
        "--load",
        type=listed(whole(MOST_AT_ONCE)),
        metavar="N,N",
        help="also send requests, at these concurrency levels: 1,2,4,8,16 (default: only watch)",
    )
    parser.add_argument("--duration", type=duration, metavar="TIME", help="such as 10m (default: 60s; 5m with --load)")
    parser.add_argument("--out", type=file_to_write, metavar="FILE", help="write to this file, not to the terminal")
    measured.add_argument("--recording", type=Path, metavar="DIR", help="measure a recording, as `record` writes it")
    parser.add_argument("--gpu", metavar="NAME", help="the GPU that vLLM runs on, noted in the file")
    add_request_arguments(parser, "with --load")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Returns 0 if a baseline was written or printed, 1 if there is nothing to write, 2 if the file cannot be written.

    Raises:
        InputError: ``--prompts`` cannot be used.
        MeasurementError: vLLM's page cannot be read, it speculates despite ``--load``, or it answers no request.
        RecordingError: the recording cannot be read.
        SettingsError: the API key cannot be used.
    """
    if arguments.recording is not None:
        found = from_recording(arguments.recording)
    else:
        url = arguments.url or settings.vllm_url
        seconds: float = arguments.duration or (300.0 if arguments.load else 60.0)
        options = request_options(arguments, settings)
        print(f"{'measuring' if arguments.load else 'watching'} for {seconds:g} s", file=sys.stderr)
        found = asyncio.run(watch(url, settings, seconds, arguments.load or (), options))
    models, curves = found.histograms(), found.curves()
    measured = {model: phases for model, grown in models.items() if (phases := _phases(model, grown))}
    plain = {model: _plain_steps(curve, found, arguments.gpu) for model, curve in curves.items()}
    for model in sorted(models.keys() - curves.keys()):
        drafted = model in found.drafted
        why = "it speculates" if drafted else "not enough tokens, or vLLM exports no step times"
        print(f"{model}: no plain step times ({why})", file=sys.stderr)
    for model, curve in curves.items():
        most, wanted = curve.running[-1], max(arguments.load or (0,))
        if most < _REACHED * wanted:
            fault = f"the plain step times reach {most:.3g} running requests, not {wanted}"
            print(f"{model}: {fault}: measure longer, with --duration", file=sys.stderr)
    if not measured and not plain:
        print("no requests finished, so there is nothing to write; watch longer, or send traffic", file=sys.stderr)
        return 1
    document = ({"baseline": measured} if measured else {}) | ({"plain_steps": plain} if plain else {})
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None)
    return _write(f"# Measured over {found.until - found.began:.0f} s.\n{text}", arguments.out)


def _write(text: str, out: Path | None) -> int:
    if out is None or not written("--out", out, text.encode()):
        print(text, end="")  # do not lose what took so long to measure
        return 0 if out is None else 2
    print(f"written to {out}; use it with SPECDEC_BASELINE_FILE={out}", file=sys.stderr)
    return 0


def _phases(model: str, grown: Mapping[Phase, HistogramReading]) -> dict[str, dict[str, float]]:
    found = {str(phase): known for phase, reading in grown.items() if (known := latency(reading)) is not None}
    if coarse := ", ".join(phase for phase, known in found.items() if known.gap_seconds is None):
        print(f"{model}: {coarse}: interpolated, since P99 is in vLLM's first bucket", file=sys.stderr)
    return {
        phase: {f"p{quantile * 100:.0f}": round(value, _DIGITS) for quantile, value in known.quantiles.items()}
        for phase, known in found.items()
    }


def _plain_steps(curve: PlainStepTimes, found: Watched, gpu: str | None) -> dict[str, Any]:
    steps: dict[str, Any] = {
        "running": [round(one, 2) for one in curve.running],
        "seconds": [round(one, _DIGITS) for one in curve.seconds],
        "errors": [round(one, _DIGITS) for one in curve.errors],
        "deviations": [[round(one, _DIGITS) for one in row] for row in curve.deviations],
        "prompt_share": round(curve.prompt_share, 3),
        "measured": datetime.fromtimestamp(found.until, UTC).isoformat(timespec="seconds"),
    }
    return steps | ({"gpu": gpu} if gpu else {})
