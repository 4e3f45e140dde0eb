"""Alerts on acceptance, all gated on draft volume: an idle pod, or one whose dynamic K is 0, has nothing to judge."""

from sidecar.alerting import conditions
from sidecar.alerting.alert import OF_POD, Alert, Reading, Severity, threshold_reading
from sidecar.alerting.promql import FLEET, both, compared
from sidecar.alerting.timing import Timing

_SERIES = ("job", "instance", "target", "model_name")
_MINUTE = 60.0
_HOUR = 3600.0


def acceptance_alerts(timing: Timing) -> list[Alert]:
    """All of them, the most severe first."""
    return [
        _low(timing),
        _low_at_temperature(timing),
        _p10(timing),
        _regressed(timing),
        _break_even(timing),
        _stopped(timing),
    ]


def _drafting(timing: Timing) -> str:
    return compared(f"pod:specdec_engine_drafts:rate{timing.window}", ">=", "min_drafts_per_second")


def _low(timing: Timing) -> Alert:
    return Alert(
        "SpecDecodeAcceptanceLow",
        Severity.CRITICAL,
        "Speculative decoding costs more than it gives",
        "{model_name} on {instance} accepts {value:%} of its draft tokens, below {threshold:%}: each step computes "
        "drafts that are mostly thrown away. Speculate less, or not at all.",
        both(
            compared(f"pod:specdec_engine_acceptance:ratio_rate{timing.window}", "<", "acceptance_net_negative"),
            _drafting(timing),
        ),
        wait=10 * _MINUTE,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("acceptance_net_negative")},
        condition=conditions.acceptance_low,
    )


def _low_at_temperature(timing: Timing) -> Alert:
    w, long = timing.window, timing.long
    bucket = (*_SERIES, "temperature")
    return Alert(
        "SpecDecodeAcceptanceLowAtTemperature",
        Severity.WARNING,
        "Speculative decoding loses at one temperature",
        "{model_name} on {instance} accepts {value:%} of the draft tokens at temperature {temperature}, below "
        "{threshold:%}. That temperature has {share:%} of the draft tokens; its own past: {past:%}; the whole "
        "pod: {whole:%}.",
        compared(f"pod_temperature:specdec_acceptance:judged_rate{w}", "<", "acceptance_net_negative"),
        wait=10 * _MINUTE,
        keep=5 * _MINUTE,
        readings={
            "threshold": threshold_reading("acceptance_net_negative"),
            "share": Reading(f"pod_temperature:specdec_draft_tokens:share_rate{w}", bucket),
            "past": Reading(f"pod_temperature:specdec_acceptance:ratio_past{long}", bucket),
            "whole": Reading(f"pod:specdec_engine_acceptance:ratio_rate{w}", _SERIES),
        },
        linked=(*OF_POD, "temperature"),
        condition=conditions.acceptance_low_at_temperature,
    )


def _p10(timing: Timing) -> Alert:
    w = timing.window
    quantile = f'pod:specdec_request_acceptance:quantile_rate{w}{{quantile="0.1"}}'
    count = f"pod:specdec_request_acceptance_count:increase{w}"
    return Alert(
        "SpecDecodeAcceptanceP10Low",
        Severity.WARNING,
        "A tenth of the requests loses by speculation",
        "A tenth of the requests for {model_name} on {instance} have {value:%} of their draft tokens accepted or less, "
        "below {threshold:%}.",
        f"{compared(quantile, '<', 'acceptance_p10')}\n"
        f"and ignoring (quantile) {_drafting(timing)}\n"
        f"and ignoring (quantile) {compared(count, '>=', 'min_requests')}",
        wait=15 * _MINUTE,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("acceptance_p10")},
    )


def _regressed(timing: Timing) -> Alert:
    w, long = timing.window, timing.long
    now = f"pod:specdec_engine_acceptance:ratio_rate{w}"
    # A rollout makes new pods, which have no past: theirs is that of the model.
    past = (
        f"(pod:specdec_engine_acceptance:ratio_past{long}\n"
        f"or {now} * 0 + on ({FLEET}) group_left () model:specdec_engine_acceptance:ratio_past{long})"
    )
    return Alert(
        "SpecDecodeAcceptanceRegressed",
        Severity.WARNING,
        "Acceptance fell below its own past",
        "The acceptance of {model_name} on {instance} lies {value:%} of all draft tokens below its past, more than "
        "{threshold:%}; it is {now:%} now. Find out what changed: the draft model, the quantization, the traffic.",
        both(compared(f"({past}\n- {now})", ">", "acceptance_regression"), _drafting(timing)),
        wait=30 * _MINUTE,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("acceptance_regression"), "now": Reading(now, _SERIES)},
    )


def _break_even(timing: Timing) -> Alert:
    ratio = f"pod:specdec_engine_acceptance:ratio_rate{timing.window}"
    return Alert(
        "SpecDecodeBreakEven",
        Severity.INFO,
        "Speculative decoding about breaks even",
        "{model_name} on {instance} accepts {value:%} of its draft tokens, below {threshold:%}: whether that pays "
        "depends on the load. Compare P99 with and without speculation.",
        both(
            compared(ratio, ">=", "acceptance_net_negative"),
            compared(ratio, "<", "acceptance_break_even"),
            _drafting(timing),
        ),
        wait=_HOUR,
        keep=5 * _MINUTE,
        readings={"threshold": threshold_reading("acceptance_break_even")},
        condition=conditions.break_even,
    )


def _stopped(timing: Timing) -> Alert:
    w, long = timing.window, timing.long
    return Alert(
        "SpecDecodeStopped",
        Severity.WARNING,
        "vLLM generates without speculating, and did speculate before",
        "{model_name} on {instance} generates {value:g} tokens/s and drafts nothing; within the last day it drafted "
        "up to {before:g} times/s.",
        both(
            compared(f"pod:specdec_generation_tokens:rate{w}", ">=", "min_drafts_per_second"),
            compared(f"pod:specdec_engine_drafts:max{long}", ">=", "min_drafts_per_second"),
        )
        + f"\nunless pod:specdec_engine_drafts:rate{w} > 0",
        wait=15 * _MINUTE,
        readings={"before": Reading(f"pod:specdec_engine_drafts:max{long}", _SERIES)},
    )
