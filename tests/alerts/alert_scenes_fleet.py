"""A fleet's recorded numbers, each worked out by hand; a healthy fleet; and an empty Prometheus."""

from tests.alerts.alert_series import DAY, Pod, counter, gauge
from tests.alerts.alert_tools import Scene


def key(name, instance=None, model="m", namespace="prod", **labels):
    """A sample's name and labels as promtool writes them."""
    own = {"instance": f"{instance}:9911", "job": "vllm"} if instance else {}
    pairs = {**own, "model_name": model, "namespace": namespace, **labels}
    shown = ", ".join(f'{label}="{pairs[label]}"' for label in sorted(pairs))
    return f"{name}{{{shown}}}"


def numbers():
    a = (
        Pod("a", minutes=40)
        .drafting(4, 0.8)
        .drafting(1, 0.3, engine="1")
        .generating(15)
        .generating(5, engine="1")
        .bucket("0", 4, 0.8)
        .bucket("1+", 1, 0.3)
        .tpot(0.02, 0.05)
        .tpot(0.03, 0.04, engine="1")
    )
    b = (
        Pod("b", minutes=40)
        .drafting(15, 0.6)
        .generating(40)
        .bucket("0", 5, 0.9)
        .bucket("1+", 10, 0.45)
        .tpot(0.04, 0.08)
    )
    c = Pod("c", minutes=40).generating(40).tpot(0.05, 0.1)
    other = Pod("d", namespace="staging", minutes=40).drafting(1, 0.2).generating(2).bucket("0", 1, 0.2)

    def of(record, value, instance=None, **labels):
        return (30, record, {key(record, instance, **labels): value})

    def pick(record, instance, value, **labels):
        wanted = ",".join(f'{name}="{one}"' for name, one in {"instance": f"{instance}:9911", **labels}.items())
        return (30, f"round({record}{{{wanted}}}, 1e-6)", {key("", instance, **labels): value})

    def model(record, value, **labels):
        wanted = ",".join(f'{name}="{one}"' for name, one in {"namespace": "prod", **labels}.items())
        return (30, f"round({record}{{{wanted}}}, 1e-6)", {key("", **labels): value})

    yield Scene(
        "every recorded number",
        None,
        "",
        [a, b, c, other],
        numbers=[
            pick("pod:specdec_engine_drafts:rate5m", "a", 5),
            pick("pod:specdec_engine_draft_tokens:rate5m", "a", 15),
            pick("pod:specdec_engine_accepted_tokens:rate5m", "a", 10.5),
            pick("pod:specdec_engine_acceptance:ratio_rate5m", "a", 0.7),
            pick("pod_temperature:specdec_draft_tokens:rate5m", "a", 12, temperature="0"),
            pick("pod_temperature:specdec_accepted_tokens:rate5m", "a", 0.9, temperature="1+"),
            pick("pod_temperature:specdec_acceptance:judged", "a", 0.3, temperature="1+"),
            pick("pod:specdec_generation_tokens:rate5m", "a", 20),
            pick("pod_quantile:specdec_tpot_seconds:max", "a", 0.03, quantile="0.5"),
            pick("pod_quantile:specdec_tpot_seconds:max", "a", 0.05, quantile="0.99"),
            pick("pod:specdec_speculates:bool", "a", 1),
            pick("pod:specdec_speculates:bool", "c", 0),
            model("model_quantile:specdec_tpot_seconds:avg", 0.035, quantile="0.5", speculates="yes"),
            model("model_quantile:specdec_tpot_seconds:avg", 0.1, quantile="0.99", speculates="no"),
            model("model_quantile:specdec_tpot:slowdown", 0.65, quantile="0.99"),
        ],
    )
    # The hour is a mean by tokens; what began within it counts for its part of it.
    hour = Pod("h", minutes=240).drafting(1, 0.5, minutes=90, then=(0.9, 3)).bucket("0", 1, 0.5, then=(90, 0.9, 3))
    late = Pod("l", start=90).drafting(2, 0.25, requests=10).bucket("1+", 2, 0.25, 6)
    yield Scene(
        "the last hour",
        None,
        "",
        [hour, late],
        numbers=[
            (120, f"round({record}, 1e-2)", {key("", instance, **labels): value})
            for record, instance, value, labels in (
                ('pod:specdec_engine_drafts:rate1h{instance="h:9911"}', "h", 2.08, {}),
                ('pod:specdec_engine_drafts:rate1h{instance="l:9911"}', "l", 1.0, {}),
                ('pod:specdec_engine_requests:rate1h{instance="l:9911"}', "l", 0.08, {}),
                ('pod:specdec_engine_acceptance:ratio_rate1h{instance="h:9911"}', "h", 0.79, {}),
                ('pod_temperature:specdec_draft_tokens:rate1h{instance="l:9911"}', "l", 3.0, {"temperature": "1+"}),
                ('pod_temperature:specdec_requests:increase1h{instance="l:9911"}', "l", 180, {"temperature": "1+"}),
                ('pod_temperature:specdec_acceptance:judged1h{instance="h:9911"}', "h", 0.79, {"temperature": "0"}),
                ('pod_temperature:specdec_acceptance:judged1h{instance="l:9911"}', "l", 0.25, {"temperature": "1+"}),
            )
        ],
    )
    # A day later: half of the hour at one acceptance and volume, half at another; "q" beside it, "y" too briefly.
    pod = Pod("p", minutes=DAY + 150).drafting(1, 0.5, minutes=60, then=(0.9, 3), k=(3, 5))
    pod.bucket("0", 1, 0.5, then=(60, 0.9, 3)).tpot(0.02, 0.04, minutes=60, then=(0.03, 0.06))
    pod.plain("specdec_up", gauge((200, 1))).plain("specdec_build_info", gauge((200, 1)), version="1")
    pod.plain("specdec_proxy_connections", gauge((200, 1)), side="client")
    steady = Pod("q", minutes=DAY + 150).drafting(2, 0.25)
    young = Pod("y", model="young", start=DAY - 30, minutes=100).drafting(1, 0.4)
    brief = Pod("b", model="m", minutes=15, start=60).drafting(9, 0.1).tpot(0.1, 0.2)
    instance = 'instance="p:9911", job="vllm", namespace="prod"'
    yield Scene(
        "the day before",
        None,
        "",
        [pod, steady, young, brief],
        numbers=[
            (
                DAY + 62,
                "round(pod:specdec_engine_acceptance:day_before, 1e-2)",
                {key("", "p"): 0.83, key("", "q"): 0.25},
            ),
            (
                DAY + 62,
                "round(pod:specdec_engine_draft_tokens:per_draft_day_before, 1e-2)",
                {key("", "p"): 4.49, key("", "q"): 3},
            ),
            (DAY + 62, "round(model:specdec_engine_acceptance:day_before, 1e-2)", {key(""): 0.6}),
            (DAY + 62, "round(model:specdec_engine_draft_tokens:per_draft_day_before, 1e-2)", {key(""): 3.74}),
            (
                DAY + 62,
                'round(pod_quantile:specdec_tpot_seconds:day_before{quantile="0.5"}, 1e-3)',
                {key("", "p", quantile="0.5"): 0.025},
            ),
            (220, 'round(pod:specdec_engine_drafts:max24h{instance="p:9911"}, 1e-3)', {key("", "p"): 3}),
            (230, "pod:specdec_up:max24h", {f"pod:specdec_up:max24h{{{instance}}}": 1}),
            (230, "pod:specdec_sidecar:seen24h", {f"pod:specdec_sidecar:seen24h{{{instance}}}": 1}),
            (230, "pod:specdec_proxy:seen24h", {f"pod:specdec_proxy:seen24h{{{instance}}}": 1}),
        ],
    )
    addresses = [Pod(name, minutes=30) for name in ("s", "t")]
    for one in addresses:
        one.series = {}
    addresses[0].add("specdec_links_info", gauge((30, 1)), runbooks="", dashboards="https://g.example")
    addresses[1].add("specdec_links_info", gauge((10, None), (20, 1)), runbooks="https://r.example", dashboards="")
    runbooks = "fleet:specdec_runbooks"
    yield Scene(
        "where links lead",
        None,
        "",
        addresses,
        numbers=[
            (5, f"{runbooks}:info", {}),
            (5, f"{runbooks}:any", {f'{runbooks}:any{{runbooks="http://s:9911/runbooks"}}': 1}),
            (5, "fleet:specdec_dashboards:info", {'fleet:specdec_dashboards:info{dashboards="https://g.example"}': 1}),
            (15, f"{runbooks}:info", {f'{runbooks}:info{{runbooks="https://r.example"}}': 1}),
            (15, f"{runbooks}:any", {f'{runbooks}:any{{runbooks="https://r.example"}}': 1}),
        ],
    )


def healthy():
    """Two pods that speculate, one of them restarted, and one that does not; the source loses nothing."""
    pods = []
    for instance in ("a", "b", "c"):
        pod = (
            Pod(instance)
            .generating(30)
            .tpot(0.02, 0.04)
            .gauge("specdec_kv_cache_usage_peak_ratio", (300, 0.6), engine="0")
        )
        if instance != "c":
            for metric, growth in (("drafts", 300), ("draft_tokens", 900), ("accepted_tokens", 720)):
                values = counter((150, growth), "reset", (150, growth))
                pod.of_model(f"specdec_engine_{metric}_total", values, engine="0")
            pod.of_model("specdec_engine_requests_total", counter((150, 10), "reset", (150, 10)), engine="0")
            pod.gauge("specdec_requests_running", (300, 2), engine="0")
            pod.bucket("0", 3, 0.85, reset_at=150).bucket("1+", 2, 0.66, reset_at=150)
            pod.p10(0.63).gauge("specdec_attribution_coverage_ratio", (300, 0.95))
        pod.gauge("specdec_requests_waiting", (300, 1), engine="0")
        pod.plain("specdec_up", gauge((150, 1), (1, 0), (149, 1)))
        pod.plain("specdec_last_scrape_timestamp_seconds", gauge((300, 1_700_000_000)))
        pod.plain("specdec_build_info", gauge((300, 1)), version="1").plain("up", gauge((300, 1)))
        pod.plain("specdec_vllm_restarts_total", gauge((150, 0), (150, 1)))
        pod.plain("specdec_proxy_upstream_errors_total", counter((300, 0.1)), kind="connect")
        pod.plain("specdec_proxy_exchanges_total", counter((300, 20)), outcome="completed")
        pod.plain("specdec_proxy_connections", gauge((300, 9)), side="client")
        pod.plain("specdec_scrape_errors_total", counter((300, 0.1)), reason="timeout")
        pod.plain("specdec_alerts_sent_total", gauge((300, 0)), alertmanager="am:9093", outcome="failed")
        pod.plain("specdec_internal_errors_total", gauge((300, 0)), part="vllm")
        pod.plain("specdec_request_events_total", counter((300, 20)), source="proxy")
        pod.plain("specdec_request_events_dropped_total", gauge((300, 0)), source="proxy", reason="gap")
        pods.append(pod)
    return pods


SCENES = [*numbers()]
