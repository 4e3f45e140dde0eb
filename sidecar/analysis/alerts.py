"""The alerts of a pod, from its values and verdicts alone.

The rules in ``alerts/alerts.yaml`` say the same of what Prometheus has recorded. How long an alert
must hold, and that one cause has one page, is for whoever sends them (``alerting/courses.py``).
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from sidecar.analysis.engine.latency import gap_growth
from sidecar.analysis.engine.polled_load import waiting_for_capacity
from sidecar.analysis.engine.scrape_report import ScrapeReport
from sidecar.analysis.judgement import Judgement, Verdict
from sidecar.analysis.pod_alert import Alert, PodAlert, Severity
from sidecar.analysis.report import ModelReport, Report
from sidecar.engine.names import Phase
from sidecar.errors import BadStatus, Interrupted, TimedOut, Unreachable
from sidecar.findings.ending import EndsBadly
from sidecar.findings.finding import advised
from sidecar.findings.not_speculating import NotSpeculating
from sidecar.requests.keys import EMPTY, LOOP
from sidecar.settings.groups import Thresholds

# The errors of a scrape that mean that vLLM may be down. After any other, something responded.
NO_ANSWER: Final = frozenset(
    error.reason for error in (BadStatus, Interrupted, TimedOut, Unreachable)
)
_DOWN_SECONDS: Final = 180.0  # as in the rule, whose `for` would begin anew with Prometheus


def vllm_alert(
    scrape: ScrapeReport,
    at: float,
    *,
    model_name: str,
    was_stalled: bool,
    startup_time: float,
    pace: float,
) -> PodAlert | None:
    """The alert on vLLM itself at ``at``, if any.

    ``model_name`` is the model that it serves, empty if it was never read: an outage is a model's.
    ``was_stalled``: an engine was, at the last good poll. ``pace`` multiplies how long vLLM must be
    down, and ``startup_time``, the seconds that it may take to start.
    """
    if was_stalled:  # also while vLLM is down after it: one cause, one page
        return PodAlert(alert=Alert.STALLED, severity=Severity.CRITICAL)

    # Without an error, no poll has ended yet.
    if scrape.up or scrape.last_error is None or scrape.began is None:
        return None
    if scrape.last_error.reason not in NO_ANSWER:
        return PodAlert(alert=Alert.UNREADABLE, severity=Severity.WARNING)

    if scrape.last_scrape is None:
        is_late = at - scrape.began > pace * startup_time
        return PodAlert(alert=Alert.NEVER_UP, severity=Severity.WARNING) if is_late else None

    is_down = at - scrape.last_scrape >= pace * _DOWN_SECONDS
    down = PodAlert(alert=Alert.DOWN, severity=Severity.CRITICAL, model_name=model_name)
    return down if is_down else None


def model_alerts(
    model: ModelReport, thresholds: Thresholds, *, has_dropped: bool
) -> Iterator[PodAlert]:
    """The alerts on a model and its temperatures, as of a good poll.

    ``has_dropped``: its acceptance rate is below its own past.
    """
    yield from _on_speculation(model, thresholds, has_dropped=has_dropped)

    values = {
        Alert.OUTPUT_WORSE: _bad_endings(model),
        Alert.NOT_SPECULATING: 1.0 if _drafts_nothing(model) else None,
        Alert.P10_LOW: _low_p10(model, thresholds),
        Alert.GAP_WIDE: _wide_gap(model, thresholds),
        Alert.CACHE_PRESSURE: _full_cache(model, thresholds),
    }
    warning = partial(PodAlert, severity=Severity.WARNING, model_name=model.model_name)
    for alert, value in values.items():
        if value is not None:
            yield warning(alert=alert, value=value)

    for part in model.temperatures:
        low = _losing_rate(part.judgement)
        if low is not None:
            yield warning(alert=Alert.LOW_AT_TEMPERATURE, temperature=part.temperature, value=low)
        slower = _slower(part.judgement)
        if slower is not None:
            yield warning(
                alert=Alert.SLOWER_AT_TEMPERATURE, temperature=part.temperature, value=slower
            )


def tells(report: Report, alert: PodAlert) -> bool:
    """Whether the report knows that an earlier alert, which it does not have, is over.

    After a restart of vLLM, what only the plug-in tells is unknown for a while.
    """
    model = report.model(alert.model_name)
    if model is None:
        return True
    if alert.alert is Alert.OUTPUT_WORSE:
        return model.endings is not None or model.judgement.has_collapsed
    if alert.alert is Alert.NOT_SPECULATING:
        return model.judgement.judged is not None
    if alert.temperature:
        return any(
            part.temperature == alert.temperature and part.judgement.judged is not None
            for part in model.temperatures
        )
    return True


def _on_speculation(
    model: ModelReport, thresholds: Thresholds, *, has_dropped: bool
) -> Iterator[PodAlert]:
    """That the model as a whole loses; of several critical ones, the first is to page.

    Where the rate collapsed, that is the alert; else a measured time decides; else the rate does.
    """
    whole = model.judgement
    rate = whole.acceptance
    alert = partial(PodAlert, model_name=model.model_name)
    if whole.has_collapsed and rate is not None:
        yield alert(alert=Alert.COLLAPSED, severity=Severity.CRITICAL, value=rate)

    losing = _losing_rate(whole)
    is_unmeasured = whole.by_speedup is None
    is_critical = has_dropped or thresholds.acceptance_low_is_critical
    if losing is not None and is_unmeasured:
        if is_critical and not whole.has_collapsed:
            yield alert(alert=Alert.LOW, severity=Severity.CRITICAL, value=losing)
        else:
            yield alert(alert=Alert.LOW, severity=Severity.WARNING, value=losing, keeps_page=True)

    slower = _slower(whole)
    if slower is not None:
        yield alert(alert=Alert.SLOWER, severity=Severity.CRITICAL, value=slower)

    if whole.is_low and rate is not None and (losing is None or not is_unmeasured):
        yield alert(
            alert=Alert.LOW,
            severity=Severity.INFO,
            value=rate,
            keeps_page=losing is not None,
        )


def _losing_rate(judgement: Judgement) -> float | None:
    """The acceptance rate if it is low and the verdict in force is net negative, else None."""
    is_losing = judgement.is_low and judgement.verdict is Verdict.NET_NEGATIVE
    return judgement.acceptance if is_losing else None


def _slower(judgement: Judgement) -> float | None:
    speedup = judgement.evidence.speedup
    if speedup is None or judgement.by_speedup is not Verdict.NET_NEGATIVE:
        return None
    return speedup.ratio


def _bad_endings(model: ModelReport) -> float | None:
    """The share of bad endings, if it is clearly above the usual; a collapse says so itself."""
    is_told = any(isinstance(finding, EndsBadly) for finding in advised(model.findings))
    if model.endings is None or not is_told or model.judgement.has_collapsed:
        return None
    return model.endings.shares[LOOP] + model.endings.shares[EMPTY]


def _drafts_nothing(model: ModelReport) -> bool:
    """Whether it is found to draft nothing although it should."""
    return any(isinstance(finding, NotSpeculating) for finding in model.findings)


def _low_p10(model: ModelReport, thresholds: Thresholds) -> float | None:
    """The 10th percentile of single requests' acceptance, where a rate tells anything."""
    whole = model.judgement
    if whole.judged is None or not whole.evidence.is_ruled or model.acceptance_p10 is None:
        return None
    return model.acceptance_p10 if model.acceptance_p10 < thresholds.acceptance_p10 else None


def _wide_gap(model: ModelReport, thresholds: Thresholds) -> float | None:
    """P99 - P50 of the time per output token / the baseline's, where it has grown most.

    It is what that is at least: within one bucket of vLLM's, nothing is known of a gap. P99 of
    fewer than ``min_requests`` is just the slowest one.
    """
    baseline = model.plain_latencies.get(Phase.TPOT)
    if baseline is None or model.judgement.judged is None:
        return None

    latencies = [engine.latencies.get(Phase.TPOT) for engine in model.engines]
    growth = _highest(
        gap_growth(latency, baseline)
        for latency in latencies
        if latency is not None and latency.count >= thresholds.min_requests
    )
    return growth if growth is not None and growth > thresholds.latency_gap_growth else None


def _full_cache(model: ModelReport, thresholds: Thresholds) -> float | None:
    """The fullest engine's peak, of those where requests wait for capacity."""
    waiting = [engine for engine in model.engines if waiting_for_capacity(engine.gauges) > 0]
    peak = _highest(engine.kv_cache_peak for engine in waiting)
    return peak if peak is not None and peak > thresholds.kv_cache_usage else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
