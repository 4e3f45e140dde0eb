"""Alerts on what the others rest on: vLLM, the sidecar, and how much of the traffic is seen."""

from sidecar.alerting import conditions
from sidecar.alerting.alert import OF_POD, Alert, Reading, Severity, threshold_reading
from sidecar.alerting.promql import POD, both, compared, threshold
from sidecar.alerting.timing import Timing

_INSTANCE = ("job", "instance")
_MINUTE = 60.0


def health_alerts(timing: Timing) -> list[Alert]:
    """All of them, the most severe first."""
    return [
        _vllm_down(timing),
        _proxy_refusing(timing),
        _vllm_never_up(timing),
        _vllm_restarting(timing),
        _sidecar_absent(timing),
        _sidecar_failing(timing),
        _events_dropped(timing),
        _coverage(timing),
        _not_judged(timing),
    ]


def _was_up(timing: Timing) -> str:
    """By what the sidecar remembers, or, where it was restarted itself, by what Prometheus does."""
    return f"(specdec_last_scrape_timestamp_seconds or pod:specdec_up:max{timing.long} == 1)"


def _vllm_down(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeVLLMDown",
        Severity.CRITICAL,
        "vLLM does not answer",
        "The sidecar {instance} can't read vLLM's /metrics any more. While that lasts nothing is known of its "
        "speculative decoding, and vLLM itself is likely down.",
        both("specdec_up == 0", _was_up(timing)),
        wait=3 * _MINUTE,
        linked=_INSTANCE,
        condition=conditions.vllm_down,
    )


def _vllm_never_up(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeVLLMNeverUp",
        Severity.WARNING,
        "vLLM was never reached",
        "The sidecar {instance} has never read vLLM's /metrics: either vLLM does not come up, or vllm_url is wrong.",
        f"specdec_up == 0\nunless {_was_up(timing)}",
        wait=30 * _MINUTE,
        linked=_INSTANCE,
        condition=conditions.vllm_never_up,
    )


def _vllm_restarting(_timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeVLLMRestarting",
        Severity.WARNING,
        "vLLM restarts again and again",
        "vLLM beside {instance} restarted {value:d} times within an hour; {threshold:d} count as a crash loop.",
        compared("round(increase(specdec_vllm_restarts_total[1h]))", ">=", "restarts_per_hour"),
        wait=0,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("restarts_per_hour")},
        linked=_INSTANCE,
    )


def _sidecar_absent(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeSidecarAbsent",
        Severity.WARNING,
        "A sidecar can't be scraped, so its alerts can't fire",
        "Prometheus gets no page from {instance|any sidecar at all}. In proxy mode the traffic goes through the "
        "sidecar: look at once.",
        f"up == 0 and on ({POD}) pod:specdec_sidecar:seen{timing.long}\nor absent(specdec_build_info)",
        wait=5 * _MINUTE,
        linked=_INSTANCE,
    )


def _sidecar_failing(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeSidecarFailing",
        Severity.WARNING,
        "A part of the sidecar fails and is started again and again",
        "The part {part} of the sidecar {instance} failed {value:d} times within minutes; its numbers may stand still.",
        f"increase(specdec_internal_errors_total[{timing.window}]) > 0",
        wait=10 * _MINUTE,
        linked=_INSTANCE,
    )


def _proxy_refusing(timing: Timing) -> Alert:
    # Shorter than the wait, so that one refused connection has left the window before it could wake someone.
    w = timing.brief_window
    return Alert(
        "SpecDecodeProxyRefusing",
        Severity.CRITICAL,
        "The proxy turns clients away",
        "The proxy of {instance} refused {value:g} connections per second: it holds as many as proxy.max_connections "
        "allows.",
        f'rate(specdec_proxy_refused_total{{reason="too_many_connections"}}[{w}]) > 0',
        wait=5 * _MINUTE,
        keep=5 * _MINUTE,
        linked=_INSTANCE,
    )


def _events_dropped(timing: Timing) -> Alert:
    w = timing.window
    dropped = f"sum without (reason) (increase(specdec_request_events_dropped_total[{w}]))"
    seen = f"increase(specdec_request_events_total[{w}])"
    return Alert(
        "SpecDecodeEventsDropped",
        Severity.WARNING,
        "Requests are lost on their way to the sidecar",
        "The sidecar {instance} lost {value:%} of its request events, more than {threshold:%} (source {source}): "
        "acceptance by temperature leaves them out.",
        f"{dropped} / ({dropped} + {seen})\n> on ({POD}) group_left () {threshold('events_dropped')}",
        wait=10 * _MINUTE,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("events_dropped")},
        linked=_INSTANCE,
    )


def _coverage(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeCoverageLow",
        Severity.INFO,
        "The split by temperature leaves out much of the traffic",
        "Only {value:%} of the draft tokens of {model_name} on {instance} are attributed to requests, less than "
        "{threshold:%} (error of the inference: {residual:%}): traffic reaches vLLM past the request source.",
        both(
            compared("specdec_attribution_coverage_ratio", "<", "coverage"),
            compared(f"pod:specdec_engine_drafts:rate{timing.window}", ">=", "min_drafts_per_second"),
        ),
        wait=30 * _MINUTE,
        keep=5 * _MINUTE,
        readings={
            "threshold": threshold_reading("coverage"),
            "residual": Reading("specdec_attribution_residual_ratio", (*_INSTANCE, "target", "model_name")),
        },
        linked=OF_POD,
        condition=conditions.coverage_low,
    )


def _not_judged(_timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeNotJudged",
        Severity.INFO,
        "This vLLM's counters can't be used, so no acceptance alert can fire",
        "{model_name} on {instance} runs vLLM's V0 engine, whose speculation counters add their totals again and "
        "again; use the V1 engine.",
        'group without (engine, limitation) (specdec_engine_limitation{limitation="v0_counters"})',
        wait=15 * _MINUTE,
        condition=conditions.not_judged,
    )
