"""Scenes for the alerts on vLLM, on the sidecar and on the coverage."""

from tests.alerts.alert_series import Pod, counter, gauge
from tests.alerts.alert_tools import Firing, Scene

SEEN = 1_700_000_000


def of(instance, severity, description, **labels):
    return Firing(severity, description, {"instance": f"{instance}:9911"} | labels)


def up(instance, *phases, last_scrape=True, minutes=120, **options):
    pod = Pod(instance, minutes=minutes, **options).plain("specdec_up", gauge(*phases))
    if last_scrape is True:
        pod.plain("specdec_last_scrape_timestamp_seconds", gauge((minutes, SEEN)))
    return pod


def vllm_down():
    name, summary = "SpecDecodeVLLMDown", "vLLM does not answer"

    def firing(instance, **labels):
        text = (
            f"The sidecar {instance}:9911 can no longer read vLLM's /metrics. vLLM itself is likely down; until it "
            "answers, nothing is known about its speculative decoding."
        )
        return of(instance, "critical", text, **labels)

    forgot = up("forgot", (20, 1), (100, 0), last_scrape=False)  # the sidecar was restarted after vLLM went down
    forgot.plain("specdec_last_scrape_timestamp_seconds", gauge((22, SEEN), (100, None)))
    down = [firing("down"), firing("forgot"), firing("blue", target="blue")]
    yield Scene(
        "no page where there was one",
        name,
        summary,
        [
            up("down", (20, 1), (100, 0)),
            up("blue", (20, 1), (100, 0), target="blue"),
            forgot,
            up("fine", (120, 1)),
            up("short", (20, 1), (3, 0), (90, 1)),
            up("starting", (120, 0), last_scrape=False),
        ],
        [(19, []), (22, []), (24, down), (100, down), (130, [])],
    )


def vllm_never_up():
    name, summary = "SpecDecodeVLLMNeverUp", "vLLM was never reached"
    text = "The sidecar never:9911 has never read vLLM's /metrics: either vLLM does not come up, or vllm_url is wrong."
    never = of("never", "warning", text)
    yield Scene(
        "no page at all",
        name,
        summary,
        [
            up("never", (100, 0), last_scrape=False),
            up("down", (20, 1), (100, 0)),
            up("forgot", (20, 1), (100, 0), last_scrape=False),
            up("slow", (25, 0), (80, 1), last_scrape=False),
        ],
        [(29, []), (31, [never]), (90, [never]), (110, [])],
    )


def restarting():
    name, summary = "SpecDecodeVLLMRestarting", "vLLM keeps restarting"

    def firing(instance, times):
        text = (
            f"vLLM beside {instance}:9911 restarted {times} times within an hour, at least as often as "
            "restarts_per_hour."
        )
        return of(instance, "warning", text)

    def pod(instance, *restarts, **options):
        values, made = [0] * 120, Pod(instance, minutes=120, **options)
        for minute in restarts:
            values = [value + (index >= minute) for index, value in enumerate(values)]
        return made.plain("specdec_vllm_restarts_total", " ".join(map(str, values)))

    def _restarted_sidecar(instance):
        """One restart long ago; then the sidecar's own restart, and three more."""
        made = Pod(instance, minutes=120)
        return made.plain("specdec_vllm_restarts_total", gauge((80, 1), (6, 0), (3, 1), (20, 3), (11, 2)))

    three, ten, again = firing("three", 3), firing("ten", 10), firing("restarted", 3)
    yield Scene(
        "three within an hour",
        name,
        summary,
        [
            pod("three", 10, 12, 14),
            pod("two", 10, 12),
            pod("spread", 5, 70, 110),
            pod("ten", *range(5, 15), restarts_per_hour=10),
            pod("nine", *range(5, 14), restarts_per_hour=10),
            _restarted_sidecar("restarted"),
        ],
        [(13, []), (20, [three, ten]), (68, [three, ten]), (72, [three]), (95, [again]), (110, [again]), (118, [])],
    )


def scraped(instance, built, *phases, proxy=False):
    """A target's ``up``; for ``built`` minutes it was a sidecar, optionally with a ``proxy``."""
    made = Pod(instance, minutes=1)
    if built:
        made.plain("specdec_up", gauge((built, 1))).plain("specdec_build_info", gauge((built, 1)), version="1")
    if proxy:
        made.plain("specdec_proxy_connections", gauge((built, 3)), side="client")
    return made.plain("up", gauge(*phases))


def sidecar_absent():
    name, summary = "SpecDecodeSidecarAbsent", "Prometheus cannot scrape a sidecar, so its alerts cannot fire"

    def firing(instance=""):
        text = f"Prometheus cannot scrape {instance or 'any sidecar at all'}."
        return Firing("warning", text, {"instance": instance} if instance else {})

    yield Scene(
        "no page where there was one; a pod that was scaled down is not missed, nor another job's, nor a proxy",
        name,
        summary,
        [
            scraped("gone", 20, (20, 1), (60, 0)),
            scraped("proxy", 20, (20, 1), (60, 0), proxy=True),
            scraped("fine", 80, (80, 1)),
            scraped("scaled-down", 20, (20, 1)),
            scraped("short", 20, (20, 1), (4, 0), (50, 1)),
            scraped("other", 0, (80, 0)),
            Pod("links"),
        ],
        [(24, []), (26, [firing("gone:9911")]), (70, [firing("gone:9911")])],
    )
    yield Scene(
        "no sidecar at all", name, summary, [scraped("other", 0, (80, 1)), Pod("links")], [(4, []), (6, [firing()])]
    )


def proxy_down():
    text = "Prometheus cannot scrape the sidecar proxy:9911, and clients reach vLLM through its proxy."
    down = of("proxy", "critical", text)
    yield Scene(
        "a dead proxy is an outage of its pod's traffic",
        "SpecDecodeProxyDown",
        "A proxy is down, so its clients cannot reach vLLM",
        [
            scraped("proxy", 20, (20, 1), (60, 0), proxy=True),
            scraped("sidecar", 20, (20, 1), (60, 0)),
            scraped("fine", 80, (80, 1), proxy=True),
            scraped("short", 20, (20, 1), (2, 0), (58, 1), proxy=True),
            scraped("scaled-down", 20, (20, 1), proxy=True),
            Pod("links"),
        ],
        [(22, []), (24, [down]), (75, [down]), (90, [])],
    )


def proxy_failing():
    def firing(instance, share):
        text = f"{share} of the requests through the proxy of {instance}:9911 got no complete response from vLLM."
        return of(instance, "critical", text)

    def pod(instance, failed, completed, minutes=60):
        made = Pod(instance)
        for kind in ("connect", "read"):
            made.plain("specdec_proxy_upstream_errors_total", counter((minutes, failed / 2), (60, 0)), kind=kind)
        made.plain("specdec_proxy_exchanges_total", counter((minutes, failed), (60, 0)), outcome="upstream_failed")
        return made.plain("specdec_proxy_exchanges_total", counter((minutes, completed), (60, 0)), outcome="completed")

    all_failed, most = firing("all", "100%"), firing("most", "55%")
    yield Scene(
        "requests that fail upstream, though vLLM's page answers",
        "SpecDecodeProxyFailing",
        "Most requests fail between the proxy and vLLM",
        [
            pod("all", 10, 0),
            pod("most", 55, 45),
            pod("less", 45, 55),
            pod("idle", 0, 0),
            pod("once", 1, 0, minutes=2),
        ],
        [(5, []), (12, [all_failed, most]), (60, [all_failed, most]), (70, [])],
    )
    ill = down_for_a_while("ill")
    ill.plain("specdec_proxy_upstream_errors_total", counter((20, 0), (100, 10)), kind="connect")
    ill.plain("specdec_proxy_exchanges_total", counter((120, 10)), outcome="upstream_failed")
    yield ends_with_vllm_down(
        "SpecDecodeProxyFailing", "Most requests fail between the proxy and vLLM", ill, firing("ill", "100%")
    )


DOWN = ("SpecDecodeVLLMDown",)


def down_for_a_while(instance):
    """vLLM is down from minute 20 to 40."""
    return up(instance, (20, 1), (20, 0), (80, 1))


def ends_with_vllm_down(name, summary, pod, alert):
    """The consequences of a vLLM that is down, some of which outlast it: inhibited meanwhile, and over then."""
    checks = [(38, [alert]), *((minute, []) for minute in (42, 46)), (65, [alert])]
    return Scene("it ends with the alert on vLLM", name, summary, [pod], checks, reads=DOWN)


def vllm_unstable():
    def firing(instance, times):
        text = (
            f"The sidecar {instance}:9911 failed to read vLLM's /metrics {times} times within five minutes, but "
            "succeeded in between: vLLM is overloaded or keeps restarting."
        )
        return of(instance, "warning", text)

    def pod(instance, up_phases, errors):
        made = up(instance, *up_phases)
        for reason in ("timeout", "unreachable"):
            made.plain("specdec_scrape_errors_total", counter(*[(m, e / 2) for m, e in errors]), reason=reason)
        return made

    yield Scene(
        "a page that fails every other minute",
        "SpecDecodeVLLMUnstable",
        "Reading vLLM's page keeps failing",
        [
            pod("alternating", [(1, 1), (1, 0)] * 30 + [(60, 1)], [(60, 4), (60, 0)]),
            pod("slowly", [(120, 1)], [(60, 0.42), (60, 0)]),
            pod("rarely", [(120, 1)], [(60, 0.36), (60, 0)]),
            pod("down", [(10, 1), (110, 0)], [(120, 4)]),
            pod("fine", [(120, 1)], [(120, 0)]),
        ],
        [
            (14, []),
            (30, [firing("alternating", 20), firing("slowly", 2)]),
            (59, [firing("alternating", 20), firing("slowly", 2)]),
            (80, []),
        ],
    )


def push_refused():
    text = "The sidecar refused:9911 cannot deliver its alerts to am:9093."

    def pod(instance, rejected, failed=0):
        made = Pod(instance)
        for outcome, per_minute in (("accepted", 2), ("rejected", rejected), ("failed", failed)):
            values = counter((40, per_minute), (60, 0 if outcome != "accepted" else 2))
            made.plain("specdec_alerts_sent_total", values, alertmanager="am:9093", outcome=outcome)
        return made

    refused = of("refused", "warning", text, alertmanager="am:9093")
    failed = of("failed", "warning", text.replace("refused", "failed"), alertmanager="am:9093")
    yield Scene(
        "alerts that Alertmanager does not take",
        "SpecDecodePushRefused",
        "Alertmanager does not accept the sidecar's alerts",
        [pod("refused", 1), pod("failed", 0, 1), pod("fine", 0)],
        [(9, []), (20, [refused, failed]), (48, [refused, failed]), (60, [])],
    )


def rules_failing():
    def firing(fault, where, **labels):
        text = (
            f"{fault}: {where}. No thresholds: its series have no specdec_threshold with the same labels. Not "
            "recorded, errors: Prometheus fails to evaluate a rule."
        )
        return Firing("warning", text, {"fault": fault} | labels)

    def strange(instance, drop=()):
        pod = Pod(instance).drafting(5, 0.2)
        pod.series = {one: values for one, values in pod.series.items() if not any(word in one for word in drop)}
        return pod

    group = "/rules/recording.yaml;specdec-pod"
    errors = "prometheus_rule_evaluation_failures_total"
    expected = [
        firing("no thresholds", "blind:9911", instance="blind:9911", model_name="m"),
        firing("errors", group, rule_group=group),
    ]
    monitor = Pod("prometheus", minutes=1)
    monitor.add(errors, counter((60, 1), (60, 0)), rule_group=group)
    monitor.add(errors, counter((60, 1), (60, 0)), rule_group="/rules/other.yaml;other")
    monitor.add(errors, counter((120, 0)), rule_group="/rules/alerts.yaml;specdec-alerts")
    yield Scene(
        "no thresholds, or a rule of ours that errors",
        "SpecDecodeRulesFailing",
        "The rules for speculative decoding do not work, so its alerts cannot fire",
        [strange("blind", ["specdec_threshold"]), Pod("fine").drafting(5, 0.8), Pod("links"), monitor],
        [(9, []), (20, expected), (100, expected[:1])],
    )


def sidecar_failing():
    name, summary = "SpecDecodeSidecarFailing", "A part of the sidecar keeps failing"
    text = (
        "The part vllm of the sidecar failing:9911 failed 50 times within minutes and was restarted each time; its "
        "numbers may be stale."
    )
    failing = of("failing", "warning", text, part="vllm")
    yield Scene(
        "failures that go on",
        name,
        summary,
        [
            Pod("failing").plain("specdec_internal_errors_total", counter((60, 10), (60, 0)), part="vllm"),
            Pod("once").plain("specdec_internal_errors_total", "0x20 1x100", part="vllm"),
            Pod("fine").plain("specdec_internal_errors_total", counter((120, 0)), part="vllm"),
        ],
        [(10, []), (20, [failing]), (80, [])],
    )


def proxy_refusing():
    name, summary = "SpecDecodeProxyRefusing", "The proxy refuses connections"

    def full(count):
        text = (
            f"The proxy of full:9911 refused {count} connections within five minutes: it already holds "
            "proxy.max_connections."
        )
        return of("full", "critical", text, reason="too_many_connections")

    many = counter((60, 6), (60, None))
    yield Scene(
        "for want of connections, not for requests that are wrong",
        name,
        summary,
        [
            Pod("full").plain("specdec_proxy_refused_total", many, reason="too_many_connections"),
            Pod("wrong").plain("specdec_proxy_refused_total", many, reason="bad_request"),
            Pod("fine").plain("specdec_proxy_refused_total", counter((90, 0)), reason="too_many_connections"),
        ],
        [(5, []), (9, [full(30)]), (20, [full(30)]), (63, [full(9)]), (67, [])],
        edges=(63,),
    )
    ill = down_for_a_while("full")
    ill.plain("specdec_proxy_refused_total", counter((20, 0), (100, 6)), reason="too_many_connections")
    yield ends_with_vllm_down(name, summary, ill, full(30))
    yield Scene(
        "not for one connection, nor for one now and then",
        name,
        summary,
        [
            Pod("full").plain("specdec_proxy_refused_total", many, reason="too_many_connections"),
            Pod("once").plain("specdec_proxy_refused_total", "0x20 1x80", reason="too_many_connections"),
            Pod("stray").plain("specdec_proxy_refused_total", _staircase(100, 4), reason="too_many_connections"),
        ],
        [(minute, [full(30)]) for minute in range(20, 40)],
    )


def _staircase(minutes, every):
    return " ".join(str(minute // every) for minute in range(minutes))


def events_dropped():
    name, summary = "SpecDecodeEventsDropped", "Request events are lost on their way to the sidecar"

    def firing(instance, share):
        text = (
            f"The sidecar {instance}:9911 lost {share} of its request events (source middleware), more than "
            "events_dropped: acceptance by temperature leaves those requests out."
        )
        return of(instance, "warning", text, source="middleware")

    def pod(instance, lost, seen, minutes=100, **options):
        made = Pod(instance, **options)
        for reason in ("queue_full", "gap"):
            values = counter((minutes, lost / 2))
            made.plain("specdec_request_events_dropped_total", values, source="middleware", reason=reason)
        return made.plain("specdec_request_events_total", counter((minutes, seen)), source="middleware")

    lossy, many = firing("lossy", "1.05%"), firing("many", "60%")
    yield Scene(
        "more than a hundredth",
        name,
        summary,
        [
            pod("lossy", 10.5, 989.5, minutes=60),
            pod("less", 9.5, 990.5),
            pod("fine", 0, 1000),
            pod("idle", 0, 0),
            pod("lenient", 10.5, 989.5, events_dropped=0.05),
            pod("many", 600, 400, minutes=60, events_dropped=0.55),
        ],
        [(10, []), (20, [lossy, many]), (63, [lossy, many]), (70, [])],
        edges=(63,),
    )
    ill = down_for_a_while("ill")
    ill.plain("specdec_request_events_dropped_total", counter((20, 0), (100, 50)), source="middleware", reason="gap")
    ill.plain("specdec_request_events_total", counter((20, 0), (100, 50)), source="middleware")
    yield ends_with_vllm_down(name, summary, ill, firing("ill", "50%"))


def coverage_low():
    name, summary = "SpecDecodeCoverageLow", "MODEL: the split by temperature leaves out much of the traffic"

    def firing(instance):
        text = (
            f"Only 79% of the draft tokens of m on {instance}:9911 are attributed to requests, less than coverage: "
            "traffic reaches vLLM without passing the request source."
        )
        return Firing("info", text, {"instance": f"{instance}:9911", "model_name": "m"})

    def pod(instance, share, /, drafts=5.0, **options):
        made = Pod(instance, minutes=60, **options).drafting(drafts, 0.8)
        return made.gauge("specdec_attribution_coverage_ratio", (60, share))

    low, slow = firing("low"), firing("slow")
    yield Scene(
        "much of what is drafted belongs to no request",
        name,
        summary,
        [
            pod("low", 0.79),
            pod("fine", 0.81),
            pod("idle", 0.5, drafts=0.95),
            pod("slow", 0.79, drafts=1.05),
            pod("lenient", 0.79, coverage=0.7),
        ],
        [(28, []), (40, [low, slow]), (63, [low, slow]), (75, [])],
    )


def not_judged():
    name, summary = "SpecDecodeNotJudged", "MODEL: vLLM's counters are unusable, so no acceptance alert can fire"
    text = (
        "m on old:9911 runs vLLM's V0 engine, which adds its speculation totals to its counters again every 5 s. Use "
        "the V1 engine."
    )
    old = Firing("info", text, {"instance": "old:9911", "model_name": "m"})
    yield Scene(
        "the V0 engine, and nothing less",
        name,
        summary,
        [
            Pod("old").gauge("specdec_engine_limitation", (60, 1), engine="0", limitation="v0_counters"),
            Pod("other").gauge("specdec_engine_limitation", (60, 1), engine="0", limitation="no_speculation"),
        ],
        [(14, []), (16, [old]), (70, [])],
    )


SCENES = [
    *vllm_down(),
    *vllm_never_up(),
    *restarting(),
    *sidecar_absent(),
    *proxy_down(),
    *proxy_failing(),
    *vllm_unstable(),
    *push_refused(),
    *rules_failing(),
    *sidecar_failing(),
    *proxy_refusing(),
    *events_dropped(),
    *coverage_low(),
    *not_judged(),
]
