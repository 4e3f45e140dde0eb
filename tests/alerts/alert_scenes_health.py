"""What each alert on vLLM, on the sidecar and on the coverage is held to."""

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
            f"The sidecar {instance}:9911 can no longer read vLLM's /metrics. Until it can, nothing is known of its "
            "speculative decoding, and vLLM itself is likely down."
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
    name, summary = "SpecDecodeVLLMRestarting", "vLLM restarts again and again"

    def firing(instance, times):
        text = f"vLLM beside {instance}:9911 restarted {times} times within an hour, restarts_per_hour or more."
        return of(instance, "warning", text)

    def pod(instance, *restarts, **options):
        values, made = [0] * 120, Pod(instance, minutes=120, **options)
        for minute in restarts:
            values = [value + (index >= minute) for index, value in enumerate(values)]
        return made.plain("specdec_vllm_restarts_total", " ".join(map(str, values)))

    three, ten = firing("three", 3), firing("ten", 10)
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
        ],
        [(13, []), (20, [three, ten]), (68, [three, ten]), (74, [three]), (95, [])],
    )


def sidecar_absent():
    name, summary = "SpecDecodeSidecarAbsent", "Prometheus cannot scrape a sidecar, so its alerts cannot fire"

    def firing(instance=""):
        text = (
            f"Prometheus gets no page from {instance or 'any sidecar at all'}. In proxy mode the traffic goes through "
            "the sidecar: look at once."
        )
        if not instance:
            return Firing("warning", text, {})
        return Firing("warning", text, {"instance": instance})

    def pod(instance, built, *scraped):
        made = Pod(instance, minutes=1)
        if built:
            made.plain("specdec_build_info", gauge((built, 1)), version="1")
        return made.plain("up", gauge(*scraped))

    yield Scene(
        "no page where there was one; a pod that was scaled down is not missed, nor another job's",
        name,
        summary,
        [
            pod("gone", 20, (20, 1), (60, 0)),
            pod("fine", 80, (80, 1)),
            pod("scaled-down", 20, (20, 1)),
            pod("short", 20, (20, 1), (4, 0), (50, 1)),
            pod("other", 0, (80, 0)),
        ],
        [(24, []), (26, [firing("gone:9911")]), (70, [firing("gone:9911")])],
    )
    yield Scene("no sidecar at all", name, summary, [pod("other", 0, (80, 1))], [(4, []), (6, [firing()])])


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

    def full(rate):
        text = f"The proxy of full:9911 refuses {rate} connections per second: it holds proxy.max_connections already."
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
        [(5, []), (7, [full("0.1")]), (20, [full("0.1")]), (65, [full("0.05")]), (75, [])],
    )
    yield Scene(
        "not for one connection, nor for one now and then",
        name,
        summary,
        [
            Pod("full").plain("specdec_proxy_refused_total", many, reason="too_many_connections"),
            Pod("once").plain("specdec_proxy_refused_total", "0x20 1x80", reason="too_many_connections"),
            Pod("stray").plain("specdec_proxy_refused_total", _staircase(100, 4), reason="too_many_connections"),
        ],
        [(minute, [full("0.1")]) for minute in range(20, 40)],
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
        [(10, []), (20, [lossy, many]), (66, [lossy, many]), (75, [])],
    )


def coverage_low():
    name, summary = "SpecDecodeCoverageLow", "The split by temperature leaves out much of the traffic"

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
    name, summary = "SpecDecodeNotJudged", "vLLM's counters are unusable, so no acceptance alert can fire"
    text = (
        "m on old:9911 runs vLLM's V0 engine, which adds its speculation totals to its counters again and again. Use "
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
    *sidecar_failing(),
    *proxy_refusing(),
    *events_dropped(),
    *coverage_low(),
    *not_judged(),
]
