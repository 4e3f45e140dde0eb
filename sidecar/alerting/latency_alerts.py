"""Alerts on latency and the KV cache. Latency is time per output token: the inter-token latency has a sample a step."""

from sidecar.alerting import conditions
from sidecar.alerting.alert import Alert, Reading, Severity, threshold_reading
from sidecar.alerting.promql import both, compared, threshold
from sidecar.alerting.timing import Timing

_SERIES = ("job", "instance", "target", "model_name")
_TPOT = "pod_quantile:specdec_tpot_seconds:max"
_REFERENCE = "pod_quantile:specdec_tpot_seconds:reference"
_GROWTH = "pod:specdec_tpot_gap:growth"
_MINUTE = 60.0


def latency_alerts(timing: Timing) -> list[Alert]:
    """All of them, the most severe first."""
    return [_net_negative(timing), _gap(timing), _kv_cache(timing), _mixed(timing)]


def _drafting(timing: Timing) -> str:
    return compared(f"pod:specdec_engine_drafts:rate{timing.window}", ">=", "min_drafts_per_second")


def _tpot(quantile: str) -> Reading:
    return Reading(_TPOT, _SERIES, {"quantile": quantile})


def _net_negative(_timing: Timing) -> Alert:
    # Many pods, one comparison: the most patient of their settings counts.
    patient = f"max by (cluster, namespace) ({threshold('slowdown')})"
    return Alert(
        "SpecDecodeNetNegative",
        Severity.WARNING,
        "Pods that speculate are slower than those that don't",
        "The pods of {model_name} that speculate take {value:g} times as long per output token (quantile {quantile}) "
        "as those that don't, on average.",
        f"model_quantile:specdec_tpot:slowdown > on (cluster, namespace) group_left () {patient}",
        wait=30 * _MINUTE,
        keep=5 * _MINUTE,
        linked=("model_name",),
    )


def _gap(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeLatencyGapWide",
        Severity.WARNING,
        "The tail of the latency has moved away from the median",
        "P99 - P50 of the time per output token of {model_name} on {instance} is {value:g} times what its baseline or, "
        "without one, its past says; more than {threshold:g}. P50 {p50:g} s, P99 {p99:g} s.",
        both(compared(_GROWTH, ">", "latency_gap_growth"), _drafting(timing)),
        wait=15 * _MINUTE,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("latency_gap_growth"), "p50": _tpot("0.5"), "p99": _tpot("0.99")},
        condition=conditions.latency_gap_wide,
    )


def _kv_cache(timing: Timing) -> Alert:
    waiting = f"pod:specdec_requests_waiting:max{timing.window}"  # a preempted request waits as well
    return Alert(
        "SpecDecodeKVCachePressure",
        Severity.WARNING,
        "The KV cache is full and requests wait for it",
        "The KV cache of {model_name} on {instance} is in use up to {value:%}, above {threshold:%}, while {waiting:d} "
        "requests wait; preemptions/s: {preemptions:g}.",
        both(
            compared("pod:specdec_kv_cache_usage_peak_ratio:max", ">", "kv_cache_usage"),
            f"{waiting} > 0",
        ),
        wait=5 * _MINUTE,
        keep=5 * _MINUTE,
        readings={
            "threshold": threshold_reading("kv_cache_usage"),
            "waiting": Reading(waiting, _SERIES),
            "preemptions": Reading(f"pod:specdec_preemptions:rate{timing.window}", _SERIES),
        },
        condition=conditions.kv_cache_pressure,
    )


def _mixed(timing: Timing) -> Alert:
    w = timing.window
    judged = f"pod_temperature:specdec_acceptance:judged_rate{w}"
    faster = f'{_TPOT}{{quantile="0.5"}} < {_REFERENCE}{{quantile="0.5"}}'
    slower = f'{_TPOT}{{quantile="0.99"}} > {_REFERENCE}{{quantile="0.99"}}'
    apart = both(
        f"(max without (temperature) ({judged}) - min without (temperature) ({judged}))",
        compared(f"max without (temperature) ({judged})", ">=", "acceptance_break_even"),
        compared(f"min without (temperature) ({judged})", "<", "acceptance_net_negative"),
    )
    widened = (
        f"{compared(_GROWTH, '>', 'latency_gap_growth')}\n"
        f"and {_drafting(timing)}\n"
        f"and ignoring (quantile) {faster}\n"
        f"and ignoring (quantile) {slower}"
    )
    return Alert(
        "SpecDecodeMixedWorkload",
        Severity.INFO,
        "One pod serves traffic that gains by speculation and traffic that loses",
        "{model_name} on {instance}, by its {sign}: {value:g} (temperatures: the best one's acceptance less the worst "
        "one's; latency: the growth of P99 - P50 while P50 fell).",
        f'label_replace({apart}, "sign", "temperatures", "", "")\n'
        f'or label_replace({widened}, "sign", "latency", "", "")',
        wait=15 * _MINUTE,
        keep=5 * _MINUTE,
    )
