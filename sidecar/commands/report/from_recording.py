"""A report from a recording, all of which is one period, judged as the live program judges its sliding window."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from sidecar.analysis.attribution.result import AttributedRequest, Attribution
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.quantile import quantile
from sidecar.analysis.request_window import SlidingRequests, SpeculationSummary
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import Estimate, Evidence, VerdictThresholds, judge
from sidecar.commands.report.report import ModelTable, Report, Row, Times
from sidecar.recording.replay import ReplayResult, replay
from sidecar.requests.record import Outcome


def recording_report(
    directory: Path,
    buckets: TemperatureBuckets,
    thresholds: VerdictThresholds,
    baselines: Mapping[str, PlainCurve],
) -> Report:
    """Replays ``directory``; ``baselines`` are plain step times by model.

    Raises:
        RecordingError: it cannot be read.
    """
    result = replay(directory, infer=False, buckets=buckets, baselines=baselines)
    requests = result.requests
    span = 0.0
    if requests:
        span = max(one.end for one in requests) - min(one.end - one.duration for one in requests)
    judged_by = replace(thresholds, window=max(span, 1.0))
    return Report(
        origin=f"recording {directory}",
        period=f"{span:,.0f} s",
        models=(_table(result, buckets, judged_by),) if requests else (),
        engines=(),
        thresholds={
            name: value for name, value in asdict(thresholds).items() if name in {"net_negative", "break_even"}
        },
        notes=() if requests else ("There are no requests in the recording.",),
    )


def _table(result: ReplayResult, buckets: TemperatureBuckets, thresholds: VerdictThresholds) -> ModelTable:
    by_label: dict[str, list[AttributedRequest]] = defaultdict(list)
    for request in result.requests:
        by_label[request.temperature].append(request)
    works = {label: _work(by_label[label]) for label in buckets.labels if label in by_label}
    total = sum(work.draft_tokens for work in works.values())
    names = {request.model for request in result.requests if request.model is not None}
    return ModelTable(
        ", ".join(sorted(names)) or "not named",
        result.coverage,
        result.residual,
        tuple(
            _row(label, work, by_label[label], _evidence(label, work, total, result), thresholds)
            for label, work in works.items()
        ),
    )


def _evidence(label: str, work: SpeculationSummary, total: float, result: ReplayResult) -> Evidence:
    speed = result.speed
    found = speed.temperatures.get(label) if speed else None
    estimate = Estimate(found.speedup.ratio, found.speedup.error) if found and found.speedup else None
    return replace(work.evidence(total), speedup=estimate, costs=speed.whole.costs if speed else None)


def _work(requests: Sequence[AttributedRequest]) -> SpeculationSummary:
    window = SlidingRequests(math.inf, most=len(requests) + 1)
    for request in requests:
        window.add(request, 0.0)
    return window.read(0.0)


def _row(
    label: str,
    work: SpeculationSummary,
    requests: Sequence[AttributedRequest],
    evidence: Evidence,
    thresholds: VerdictThresholds,
) -> Row:
    kinds = sorted({one.attribution for one in requests} - {Attribution.NONE})
    completed = [one for one in requests if one.outcome is Outcome.COMPLETED]
    judged = judge(evidence, thresholds)
    return Row(
        temperature=label,
        verdict=judged.verdict,
        advice=judged.advice,
        requests=work.requests,
        draft_tokens=work.draft_tokens,
        share=evidence.share,
        acceptance=work.acceptance,
        p10=work.p10,
        p50=work.p50,
        p90=work.p90,
        attribution=", ".join(kinds) or None,
        ttft=_times([one.ttft for one in completed]),
        tpot=_times([one.tpot for one in completed]),
        speedup=evidence.speedup.value if evidence.speedup else None,
    )


def _times(values: Sequence[float | None]) -> Times:
    known = sorted(value for value in values if value is not None)
    return Times(quantile(known, 0.5), quantile(known, 0.99))
