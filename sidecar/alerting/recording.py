"""The recording rules: what alerts and dashboards read rather than the raw series.

A name is ``level:metric:operation``. ``pod`` is one vLLM behind one sidecar and one model, ``model`` a model's pods in
a namespace. Numerators and denominators are added up apart and divided last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.alerting.promql import FLEET, POD, both, compared, growth, rate
from sidecar.alerting.timing import Timing

QUANTILES = ("0.1", "0.5", "0.9")  # of single requests' acceptance
_BUCKET = f"{FLEET}, temperature"


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    record: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)


def pod_rules(timing: Timing) -> list[Recording]:
    """What is known of each pod, and of each temperature in it."""
    return [*_engine(timing), *_temperature(timing), *_requests(timing), *_load(timing)]


def fleet_rules(timing: Timing) -> list[Recording]:
    """What is known of each model over its pods."""
    w = timing.window
    rules = [
        Recording(
            f"model:specdec_engine_acceptance:ratio_rate{w}",
            f"sum by ({FLEET}) (pod:specdec_engine_accepted_tokens:rate{w})\n"
            f"/ (sum by ({FLEET}) (pod:specdec_engine_draft_tokens:rate{w}) > 0)",
        ),
        Recording(
            f"model:specdec_engine_acceptance_length:ratio_rate{w}",
            f"1 + sum by ({FLEET}) (pod:specdec_engine_accepted_tokens:rate{w})\n"
            f"/ (sum by ({FLEET}) (pod:specdec_engine_drafts:rate{w}) > 0)",
        ),
        Recording(
            f"model_temperature:specdec_draft_tokens:rate{w}",
            f"sum by ({_BUCKET}) (pod_temperature:specdec_draft_tokens:rate{w})",
        ),
        Recording(
            f"model_temperature:specdec_acceptance:ratio_rate{w}",
            f"sum by ({_BUCKET}) (pod_temperature:specdec_accepted_tokens:rate{w})\n"
            f"/ (model_temperature:specdec_draft_tokens:rate{w} > 0)",
        ),
        Recording(
            f"model_temperature:specdec_draft_tokens:share_rate{w}",
            f"model_temperature:specdec_draft_tokens:rate{w}\n"
            f"/ on ({FLEET}) group_left () (sum by ({FLEET}) (model_temperature:specdec_draft_tokens:rate{w}) > 0)",
        ),
        Recording(
            f"model:specdec_generation_tokens:rate{w}",
            f"sum by ({FLEET}) (pod:specdec_generation_tokens:rate{w})",
        ),
    ]
    buckets = f"sum by ({FLEET}, le) (pod:specdec_request_acceptance_bucket:rate{w})"
    rules += [
        Recording(
            f"model:specdec_request_acceptance:quantile_rate{w}",
            f"histogram_quantile({quantile}, {buckets})",
            {"quantile": quantile},
        )
        for quantile in QUANTILES
    ]
    return [*rules, *_against_each_other(timing)]


def past_rules(timing: Timing) -> list[Recording]:
    """What was: a day back, less the last hour. Evaluated less often, since each looks at a day."""
    w, long, past = timing.window, timing.long, timing.over_past
    drafted = f"pod:specdec_engine_draft_tokens:rate{w}"
    bucket = f"pod_temperature:specdec_draft_tokens:rate{w}"
    tpot = "pod_quantile:specdec_tpot_seconds:max"
    return [
        Recording(
            f"pod:specdec_engine_acceptance:ratio_past{long}",
            f"sum_over_time({past(f'pod:specdec_engine_accepted_tokens:rate{w}')})\n"
            f"/ (sum_over_time({past(drafted)}) > 0)\n"
            f"and count_over_time({past(drafted)}) >= {timing.past_samples}",
        ),
        Recording(
            f"pod_temperature:specdec_acceptance:ratio_past{long}",
            f"sum_over_time({past(f'pod_temperature:specdec_accepted_tokens:rate{w}')})\n"
            f"/ (sum_over_time({past(bucket)}) > 0)\n"
            f"and count_over_time({past(bucket)}) >= {timing.past_samples}",
        ),
        Recording(
            f"model:specdec_engine_acceptance:ratio_past{long}",
            f"sum by ({FLEET}) (sum_over_time({past(f'pod:specdec_engine_accepted_tokens:rate{w}')}))\n"
            f"/ (sum by ({FLEET}) (sum_over_time({past(drafted)})) > 0)\n"
            f"and sum by ({FLEET}) (count_over_time({past(drafted)})) >= {timing.past_samples}",
        ),
        Recording(
            f"pod_quantile:specdec_tpot_seconds:avg_past{long}",
            f"avg_over_time({past(tpot)})\nand count_over_time({past(tpot)}) >= {timing.past_samples}",
        ),
        Recording(
            f"pod:specdec_engine_drafts:max{long}",
            f"max_over_time(pod:specdec_engine_drafts:rate{w}[{long}])",
        ),
        Recording(f"pod:specdec_up:max{long}", f"max_over_time(specdec_up[{long}])"),
        Recording(
            f"pod:specdec_sidecar:seen{long}",
            f"group by ({POD}) (last_over_time(specdec_build_info[{long}]))",
        ),
    ]


def _engine(timing: Timing) -> list[Recording]:
    w = timing.window
    return [
        Recording(f"pod:specdec_engine_drafts:rate{w}", rate("specdec_engine_drafts_total", w, "engine")),
        Recording(f"pod:specdec_engine_draft_tokens:rate{w}", rate("specdec_engine_draft_tokens_total", w, "engine")),
        Recording(
            f"pod:specdec_engine_accepted_tokens:rate{w}", rate("specdec_engine_accepted_tokens_total", w, "engine")
        ),
        Recording(
            f"pod:specdec_engine_acceptance:ratio_rate{w}",
            f"pod:specdec_engine_accepted_tokens:rate{w} / (pod:specdec_engine_draft_tokens:rate{w} > 0)",
        ),
        Recording(
            f"pod:specdec_engine_acceptance_length:ratio_rate{w}",
            f"1 + pod:specdec_engine_accepted_tokens:rate{w} / (pod:specdec_engine_drafts:rate{w} > 0)",
        ),
        Recording(
            f"pod_position:specdec_engine_acceptance:ratio_rate{w}",
            f"{rate('specdec_engine_accepted_tokens_per_position_total', w, 'engine')}\n"
            f"/ ignoring (position) group_left () (pod:specdec_engine_drafts:rate{w} > 0)",
        ),
    ]


def _temperature(timing: Timing) -> list[Recording]:
    w = timing.window
    drafted = f"pod_temperature:specdec_draft_tokens:rate{w}"
    return [
        Recording(f"pod_temperature:specdec_drafts:rate{w}", rate("specdec_drafts_total", w, "attribution")),
        Recording(drafted, rate("specdec_draft_tokens_total", w, "attribution")),
        Recording(
            f"pod_temperature:specdec_accepted_tokens:rate{w}", rate("specdec_accepted_tokens_total", w, "attribution")
        ),
        Recording(
            f"pod_temperature:specdec_acceptance:ratio_rate{w}",
            f"pod_temperature:specdec_accepted_tokens:rate{w} / ({drafted} > 0)",
        ),
        Recording(
            f"pod_temperature:specdec_draft_tokens:share_rate{w}",
            f"{drafted}\n/ ignoring (temperature) group_left () (sum without (temperature) ({drafted}) > 0)",
        ),
        Recording(
            f"pod_temperature:specdec_requests:increase{w}",
            growth('specdec_requests_total{attribution!="none"}', w, "attribution, outcome"),
        ),
        # The acceptance of the temperatures that have enough traffic to be judged, and are known well enough.
        Recording(
            f"pod_temperature:specdec_acceptance:judged_rate{w}",
            both(
                f"pod_temperature:specdec_acceptance:ratio_rate{w}",
                compared(f"pod_temperature:specdec_draft_tokens:share_rate{w}", ">=", "min_bucket_share"),
                compared(f"pod_temperature:specdec_drafts:rate{w}", ">=", "min_drafts_per_second"),
                compared(f"pod_temperature:specdec_requests:increase{w}", ">=", "min_requests"),
            )
            + '\nunless ignoring (verdict) specdec_verdict{verdict="insufficient_data"} == 1',
        ),
    ]


def _requests(timing: Timing) -> list[Recording]:
    w = timing.window
    buckets = f"pod:specdec_request_acceptance_bucket:rate{w}"
    return [
        Recording(buckets, rate("specdec_request_acceptance_ratio_bucket", w, "temperature, attribution")),
        Recording(
            f"pod:specdec_request_acceptance_count:increase{w}",
            growth("specdec_request_acceptance_ratio_count", w, "temperature, attribution"),
        ),
        *(
            Recording(
                f"pod:specdec_request_acceptance:quantile_rate{w}",
                f"histogram_quantile({quantile}, {buckets})",
                {"quantile": quantile},
            )
            for quantile in QUANTILES
        ),
    ]


def _load(timing: Timing) -> list[Recording]:
    w, long = timing.window, timing.long
    tpot = "pod_quantile:specdec_tpot_seconds:max"
    reference = "pod_quantile:specdec_tpot_seconds:reference"
    return [
        Recording(f"pod:specdec_generation_tokens:rate{w}", rate("specdec_generation_tokens_total", w, "engine")),
        Recording(
            "pod:specdec_kv_cache_usage_peak_ratio:max", "max without (engine) (specdec_kv_cache_usage_peak_ratio)"
        ),
        Recording(f"pod:specdec_preemptions:rate{w}", rate("specdec_preemptions_total", w, "engine")),
        Recording(
            f"pod:specdec_requests_waiting:max{w}",
            f"sum without (engine) (max_over_time(specdec_requests_waiting[{w}]))",
        ),
        Recording(
            "pod_phase:specdec_engine_latency_gap_seconds:max",
            "max without (engine) (specdec_engine_latency_gap_seconds)",
        ),
        # Time per output token of whole requests: the inter-token latency has one sample a step, not one a token.
        Recording(
            tpot, 'max without (engine, phase) (specdec_engine_latency_seconds{phase="tpot", quantile=~"0.5|0.99"})'
        ),
        # What it is compared with: the configured baseline, else the pod's own past.
        Recording(
            reference,
            f"{tpot} * 0\n"
            f"+ on ({POD}, model_name, quantile) group_left ()\n"
            f'specdec_latency_baseline_seconds{{phase="tpot"}}\n'
            f"or pod_quantile:specdec_tpot_seconds:avg_past{long}",
        ),
        Recording(
            "pod:specdec_tpot_gap:growth",
            f'({tpot}{{quantile="0.99"}} - ignoring (quantile) {tpot}{{quantile="0.5"}})\n'
            f'/ ({reference}{{quantile="0.99"}} - ignoring (quantile) '
            f'{reference}{{quantile="0.5"}} > 0)',
        ),
    ]


def _against_each_other(timing: Timing) -> list[Recording]:
    """Speculating pods against the others of their model. A pod that drafted within the day is none of the others."""
    w, long = timing.window, timing.long
    drafting = compared(f"pod:specdec_engine_drafts:rate{w}", ">=", "min_drafts_per_second")
    generating = compared(f"pod:specdec_generation_tokens:rate{w}", ">=", "min_drafts_per_second")
    speculates = "pod:specdec_speculates:bool"
    tpot = "pod_quantile:specdec_tpot_seconds:max"
    average = "model_quantile:specdec_tpot_seconds:avg"
    return [
        Recording(
            speculates,
            f"({drafting}) * 0 + 1\nor ({generating}\nunless pod:specdec_engine_drafts:max{long} > 0) * 0",
        ),
        Recording("model:specdec_pods:count", f"count by ({FLEET}) ({speculates} == 1)", {"speculates": "yes"}),
        Recording("model:specdec_pods:count", f"count by ({FLEET}) ({speculates} == 0)", {"speculates": "no"}),
        Recording(
            average,
            f"avg by ({FLEET}, quantile) ({tpot} and ignoring (quantile) {speculates} == 1)",
            {"speculates": "yes"},
        ),
        Recording(
            average,
            f"avg by ({FLEET}, quantile) ({tpot} and ignoring (quantile) {speculates} == 0)",
            {"speculates": "no"},
        ),
        Recording(
            "model_quantile:specdec_tpot:slowdown",
            f'{average}{{speculates="yes"}} / ignoring (speculates) ({average}{{speculates="no"}} > 0)',
        ),
    ]
