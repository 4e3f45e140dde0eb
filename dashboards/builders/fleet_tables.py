"""The fleet's tables: models, temperatures, pods; each row links to the operator's dashboard for its subject."""

from grafana_foundation_sdk.builders import table

from dashboards.builders.expressions import ACCEPTANCE_BY_NAMESPACE, ACCEPTANCE_BY_POD, verdict_code
from dashboards.builders.operator_top import VERDICTS
from dashboards.builders.panels import COUNT, PER_SECOND, SECONDS, SHARE, Mapping
from dashboards.builders.query import MODEL, POD, SIDECAR, at_least, least, quantile, ratio, series, total, worst
from dashboards.builders.tables import Label, Value, operator_link, rows

_UP: Mapping = {0: ("down", "red"), 1: ("up", "green")}
_POD_BUCKET = f"{POD}, temperature"
_SELECTED = ("cluster", "namespace", "job", "instance", "pod")
_SPECULATION = (
    "method",
    "num_speculative_tokens",
    "adaptive_verification",
    "rejection_sample_method",
    "draft_sample_method",
)
_FOUND: Mapping = {0: ("no", "green"), 1: ("yes", "orange")}
_ROWS = 50  # worst buckets that are listed


def _pod_labels(*more: str) -> list[Label]:
    """A pod's columns; its instance and each of ``more`` link to the operator's page."""
    link = operator_link(*_SELECTED, "model_name", *more)
    plain = [Label("model_name"), Label("cluster"), Label("namespace"), Label("pod", link), Label("instance", link)]
    return [*(Label(name, link) for name in more), *plain, Label("job")]


def models() -> table.Panel:
    """One row per model and namespace."""
    drafting = f"count by ({MODEL}) ({total(POD, 'engine_draft_tokens_total')})"
    slow = series("engine_latency_seconds", 'phase="tpot"', 'quantile="0.99"')
    return rows(
        "Models, worst first",
        (
            (
                "Worst: the verdict on the model's worst temperature on any pod. Speculating: pods with draft "
                "counters, including idle ones. P99 and KV peak are those of the worst pod."
            ),
            (
                "Click a model for its dashboard. A model with a good acceptance rate whose worst verdict is 'does not "
                "pay' has mixed traffic: look at its temperatures below."
            ),
        ),
        [
            Label("model_name", operator_link("cluster", "namespace", "model_name")),
            Label("cluster"),
            Label("namespace"),
        ],
        [
            Value(verdict_code(MODEL), "Worst", COUNT, VERDICTS),
            Value(ACCEPTANCE_BY_NAMESPACE, "Acceptance", SHARE),
            Value(quantile(0.1, MODEL, "request_acceptance_ratio"), "P10 of requests", SHARE),
            Value(f"count by ({MODEL}) ({total(POD, 'generation_tokens_total')})", "Pods", COUNT),
            Value(drafting, "Speculating", COUNT),
            Value(total(MODEL, "generation_tokens_total"), "Tokens/s", PER_SECOND),
            Value(worst(MODEL, slow), "P99 per token", SECONDS),
            Value(worst(MODEL, series("kv_cache_usage_peak_ratio")), "KV peak", SHARE),
            Value(least(MODEL, series("request_coverage_ratio")), "Coverage", SHARE),
        ],
        sort="Worst",
        empty="no model: check the selection and Prometheus' targets",
    )


def worst_buckets() -> table.Panel:
    """The pods' temperatures with the lowest acceptance."""
    acceptance = ratio(_POD_BUCKET, "accepted_tokens_total", "draft_tokens_total")
    whole = total(POD, "draft_tokens_total")
    share = f"{total(_POD_BUCKET, 'draft_tokens_total')} / on ({POD}) group_left () ({whole} > 0)"
    judged = at_least(share, "min_bucket_share", as_number=False)
    lowest = f"bottomk({_ROWS}, ({acceptance}) and ({judged}))"
    return rows(
        "Worst temperatures",
        (
            f"The {_ROWS} lowest acceptance rates by pod and temperature, if the share of draft tokens is significant.",
            (
                "Click a temperature for the dashboard of that pod and temperature. If many pods have the same "
                "temperature here, route it to pods without speculation. If it is one pod, look at that pod."
            ),
        ),
        _pod_labels("temperature"),
        [
            Value(lowest, "Acceptance", SHARE),
            Value(f"({judged}) and on ({_POD_BUCKET}) ({lowest})", "Share of draft tokens", SHARE),
            Value(f"({verdict_code(_POD_BUCKET)}) and on ({_POD_BUCKET}) ({lowest})", "Verdict", COUNT, VERDICTS),
        ],
        sort="Acceptance",
        descending=False,
        empty="no temperature with enough drafts",
    )


def pods() -> table.Panel:
    """One row per pod and model."""
    slow = series("engine_latency_seconds", 'phase="tpot"', 'quantile="0.99"')
    up = f"max by ({SIDECAR}) ({series('up')})"
    findings = worst(f"{POD}, finding", series("finding"))
    none = f'label_replace({worst(POD, findings)} == 0, "finding", "none", "", "")'
    reached = f"{total(POD, 'generation_tokens_total')} * 0 + on ({SIDECAR}) group_left () {up}"
    return rows(
        "Pods",
        (
            (
                "Every pod and, if the plug-in is connected, its speculative configuration. A pod without an "
                "acceptance rate does not draft. Gap: P99 - P50 of the time per output token. Finding: the first "
                "reason why speculation loses, or could gain more."
            ),
            "Sort by the column you need; click an instance for its dashboard. docs/why.md says what to change.",
        ),
        [*_pod_labels(), Label("finding"), *map(Label, _SPECULATION)],
        [
            Value(reached, "vLLM", COUNT, _UP),
            Value(f"topk by ({POD}) (1, {findings} == 1) or {none}", "Finding", COUNT, _FOUND),
            Value(verdict_code(POD), "Worst", COUNT, VERDICTS),
            Value(ACCEPTANCE_BY_POD, "Acceptance", SHARE),
            Value(total(POD, "engine_drafts_total"), "Drafts/s", PER_SECOND),
            Value(total(POD, "generation_tokens_total"), "Tokens/s", PER_SECOND),
            Value(worst(POD, slow), "P99 per token", SECONDS),
            Value(worst(POD, series("engine_latency_gap_seconds", 'phase="tpot"')), "Gap", SECONDS),
            Value(worst(POD, series("kv_cache_usage_peak_ratio")), "KV peak", SHARE),
            Value(f"sum by ({POD}) ({series('requests_waiting')})", "Waiting", COUNT),
            Value(least(POD, series("request_coverage_ratio")), "Coverage", SHARE),
            Value(worst(f"{POD}, {', '.join(_SPECULATION)}", series("speculation_info")), "Configured", COUNT),
        ],
        sort="Acceptance",
        descending=False,
    )
