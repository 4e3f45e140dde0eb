"""A report from a recording: all of it is one period, judged as the live program judges its sliding window."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import Estimate, VerdictThresholds, judge
from sidecar.commands.report.report import ModelTable, Report, Row, row
from sidecar.export.status import temperature_speed, temperature_status
from sidecar.recording.replay import ReplayResult, replay


def recording_report(
    directory: Path,
    buckets: TemperatureBuckets,
    thresholds: VerdictThresholds,
    curves: Mapping[str, PlainCurve],
) -> Report:
    """Replays ``directory``; ``curves`` are plain step times by model.

    Raises:
        RecordingError: it cannot be read.
    """
    result = replay(directory, infer=False, buckets=buckets, curves=curves)
    requests = result.requests
    span = 0.0
    if requests:
        span = max(one.end for one in requests) - min(one.end - one.duration for one in requests)
    rows = tuple(_rows(result, replace(thresholds, window=max(span, 1.0))))
    names = ", ".join(sorted({request.model for request in requests if request.model is not None}))
    return Report(
        origin=f"recording {directory}",
        period=f"{span:,.0f} s",
        models=(ModelTable(names or "not named", result.coverage, result.residual, rows),) if requests else (),
        engines=(),
        thresholds={"net_negative": thresholds.net_negative, "break_even": thresholds.break_even},
        notes=() if requests else ("There are no requests in the recording.",),
    )


def _rows(result: ReplayResult, thresholds: VerdictThresholds) -> Iterator[Row]:
    total = sum(summary.draft_tokens for summary in result.temperatures.values())
    for label, summary in result.temperatures.items():
        speed = result.speed.temperatures.get(label) if result.speed else None
        estimate = Estimate(speed.speedup.ratio, speed.speedup.error) if speed and speed.speedup else None
        costs = result.speed.whole.costs if result.speed else None
        judged = judge(replace(summary.evidence(total), speedup=estimate, costs=costs), thresholds)
        yield row(label, {**temperature_status(summary, judged), "speed": temperature_speed(speed)})
