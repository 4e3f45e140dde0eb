"""Scenes for the alerts on load, on vLLM, on the plug-in and on the sidecar itself."""

from sidecar.requests.messages import HelloState
from tests.alerts.pods import DASHBOARDS, POD, RUNBOOKS, Pod
from tests.alerts.scene import Firing, Scene, of, of_sidecar
from tests.alerts.series import DAY


def gap_wide():
    def pod(instance, p99=0.051, drafts=5.0, requests=4.2, **own):
        made = Pod(instance, minutes=45, **own).drafting(drafts, 0.8, requests=requests)
        return made.baseline(0.02, 0.04).tpot(0.02, p99)

    firing = [of("wide", 1.55), of("slow", 1.55)]
    yield Scene(
        "against the baseline, with as many requests as it takes",
        "SpecDecodeLatencyGapWide",
        [
            pod("wide"),
            pod("slow", drafts=1.05),
            pod("less", 0.049),
            pod("idle", 0.06, drafts=0.05),
            pod("few", 0.06, requests=3.8),
            Pod("unknown", minutes=45).drafting(5, 0.8).tpot(0.02, 0.06),
            pod("lenient", latency_gap_growth=2),
            pod("narrowed").tpot(0.02, 0.051, minutes=20, then=(0.02, 0.021)),
        ],
        [(14, []), (27, [*firing, of("narrowed", 1.55)]), (43, firing)],
    )
    past = Pod("past", minutes=DAY + 60, poll=60).drafting(5, 0.8).away(90, DAY)
    past.tpot(0.02, 0.04, minutes=DAY, then=(0.02, 0.051))
    young = Pod("young", minutes=DAY + 60, poll=60).drafting(5, 0.8).away(25, DAY)
    young.tpot(0.02, 0.04, minutes=DAY, then=(0.02, 0.051))
    yield Scene(
        "without a baseline against the same hour of the day before",
        "SpecDecodeLatencyGapWide",
        [past, young],
        [(80, []), (DAY + 10, []), (DAY + 40, [of("past", 1.55)])],
    )


def kv_cache():
    def pod(instance, peak, *waiting, capacity=None, **own):
        return Pod(instance, minutes=45, **own).drafting(5, 0.8).cache(peak, *waiting, capacity=capacity)

    several = pod("several", 0.5, (60, 1)).drafting(1, 0.8, engine="1").cache(0.95, (60, 3), engine="1")
    together = pod("together", 0.95, (60, 0.4)).drafting(1, 0.8, engine="1").cache(0.5, (60, 0.4), engine="1")
    parts = pod("parts", 0.91, (60, 9), capacity=0.3).cache(0.5, (60, 9), capacity=0.3, engine="1")
    parts.drafting(1, 0.8, engine="1")
    ended = of("ended", 0.91)
    expected = [
        of("full", 0.91),
        of("now-and-then", 0.91),
        of("capacity", 0.91),
        of("failing", 0.91),
        of("several", 0.95),
        of("together", 0.95),
        of("parts", 0.91),
    ]
    yield Scene(
        "full and waited for",
        "SpecDecodeKVCachePressure",
        [
            pod("full", 0.91, (60, 2)),
            pod("now-and-then", 0.91, *[(2, 0), (2, 3)] * 15),
            pod("less", 0.89, (60, 2)),
            pod("unwaited", 0.99, (60, 0)),
            pod("capacity", 0.91, (60, 9), capacity=0.6),
            pod("deferred", 0.99, (60, 9), capacity=0.4),
            pod("one-scrape", 0.99, *[(1, 1), (4, 0)] * 12),
            pod("one-burst", 0.99, (20, 0), (1, 50), (39, 0)),
            pod("lenient", 0.91, (60, 2), kv_cache_usage=0.95),
            pod("failing", 0.91, (60, 2)).failing(lambda number: number % 5 == 4),
            pod("ended", 0.91, (20, 2), (60, 0)),
            several,
            together,
            parts,
        ],
        [(9, []), (15, [*expected, ended]), (27, [*expected, ended]), (40, expected)],
    )


def vllm_down():
    def pod(instance, up, down, **more):
        """Polls succeed for ``up`` minutes, and then fail for ``down``."""
        return Pod(instance, minutes=80, **more).drafting(5, 0.8).failing(lambda n: up <= n / 2 < up + down)

    forgot = pod("forgot", 20, 80)  # the sidecar is restarted after vLLM went down
    forgot.away(22, 23)
    down = [of_sidecar("down"), of_sidecar("forgot")]
    pods = [
        pod("down", 20, 80),
        forgot,
        pod("short", 20, 2.5),
        pod("starting", 0, 90),
        Pod("fine", minutes=80).drafting(5, 0.8),
    ]
    yield Scene("no page where there was one", "SpecDecodeVLLMDown", pods, [(22, []), (25, down), (70, down)])
    context = (
        "Failed polls in five minutes: [timeout] 10.",
        f"State: kubectl -n prod describe pod {POD}",
        f"Log: kubectl -n prod logs {POD} -c vllm --previous",
    )
    firing = [of_sidecar("down", pod=POD, context=context)]
    pods = [pod("down", 20, 80).in_kubernetes()]
    yield Scene("in Kubernetes it comes with commands", "SpecDecodeVLLMDown", pods, [(22, []), (27, firing)])
    never = [of_sidecar("starting")]
    pods = [pod("starting", 0, 90), pod("slow", 0, 25), pod("down", 20, 80)]
    yield Scene("no page at all", "SpecDecodeVLLMNeverUp", pods, [(29, []), (31, never), (70, never)])
    pods = [pod("starting", 0, 90), pod("forgot", 20, 80).away(22, 23)]
    yield Scene("no page where there was one", "SpecDecodeVLLMNeverUp", pods, [(29, []), (70, never)])


def restarting():
    def pod(instance, *minutes, **own):
        return Pod(instance, minutes=120, **own).drafting(5, 0.8).restarting(*minutes)

    yield Scene(
        "three within an hour",
        "SpecDecodeVLLMRestarting",
        [
            pod("three", 10, 12, 14),
            pod("two", 10, 12),
            pod("spread", 5, 70, 110),
            pod("many", *range(5, 15), restarts_per_hour=10),
            pod("less", *range(5, 14), restarts_per_hour=10),
            pod("sidecar-too", 10, 12, 72, 74, 76).away(65, 66),
        ],
        [
            (13, []),
            (20, [of_sidecar("three", 3), of_sidecar("many", 10)]),
            (69, [of_sidecar("three", 3), of_sidecar("many", 10)]),
            (85, [of_sidecar("sidecar-too", 3)]),
        ],
    )


def unstable():
    shaky = Pod("shaky", minutes=60).drafting(5, 0.8).failing(lambda number: number % 4 < 2)
    shaky.vllm.engine().peak = None
    some = []
    for instance, reasons in {"one": ["timeout"], "two": ["status", "timeout"]}.items():
        some.append(Pod(instance, minutes=60).drafting(5, 0.8))
        for reason in reasons:
            some[-1].plain("specdec_scrape_errors_total", (60, 0.6 / len(reasons)), grows=True, reason=reason)
    firing = [of_sidecar("shaky", 5), of_sidecar("one", 3), of_sidecar("two", 3)]
    ended = [of_sidecar("ended", failed) for failed in (4, 2)]
    yield Scene(
        "a page that fails every other minute is never down for three",
        "SpecDecodeVLLMUnstable",
        [
            shaky,
            Pod("ended", minutes=60).drafting(5, 0.8).failing(lambda number: number % 4 < 2 and number < 60),
            *some,
            Pod("rarely", minutes=60).drafting(5, 0.8).failing(lambda number: number % 20 == 4),
            Pod("down", minutes=60).drafting(5, 0.8).failing(lambda number: number > 20),
        ],
        [(14, []), (30, [*firing, ended[0]]), (36, [*firing, ended[1]]), (46, firing)],
    )


def plugin():
    def pod(instance, state):
        made = Pod(instance, minutes=60).bucket("0", 5, 0.8)
        made.vllm.plugin_state = state
        return made

    def fails(instance, state, **more):
        return of_sidecar(instance, engine="0", state=state, version="1", vllm_version="0.32.0", **more)

    firing = [fails("refused", "refused"), fails("disabled", "disabled")]
    yield Scene(
        "where someone must act",
        "SpecDecodePluginFailing",
        [
            pod("refused", HelloState.REFUSED),
            pod("disabled", HelloState.DISABLED),
            pod("observing", HelloState.OBSERVING),
            Pod("without", minutes=60).drafting(5, 0.8),
        ],
        [(13, []), (17, firing), (30, firing)],
    )
    advice = (
        "It does not know this vLLM's scheduler. Upgrade the sidecar, write the plug-in again "
        "(specdec-sidecar plugin DIR) and restart vLLM."
    )
    reason = f"The reason: kubectl -n prod exec {POD} -c specdec-sidecar -- specdec-sidecar report"
    refused = fails("refused", "refused", pod=POD, context=(advice, reason))
    yield Scene(
        "it says what to do about its state",
        "SpecDecodePluginFailing",
        [pod("refused", HelloState.REFUSED).in_kubernetes()],
        [(13, []), (17, [refused])],
    )
    part = Pod("part", minutes=60).bucket("0", 5, 0.8).drafting(6.25, 0.8)
    yield Scene(
        "it reports less than vLLM counts",
        "SpecDecodeCoverageLow",
        [
            part,
            Pod("little", minutes=90).bucket("0", 5, 0.8).drafting(5.25, 0.8),
            Pod("ended", minutes=41).bucket("0", 5, 0.8).drafting(6.25, 0.8),
            Pod("all", minutes=60).bucket("0", 5, 0.8),
            Pod("nearly", minutes=60).bucket("0", 5, 0.8).drafting(5.05, 0.8),
            Pod("idle", minutes=60).bucket("0", 0.76, 0.8).drafting(0.95, 0.8),
            Pod("slow", minutes=60).bucket("0", 0.84, 0.8).drafting(1.05, 0.8),
        ],
        [
            (28, []),
            (44, [of("part", 0.8167, engine="0"), of("slow", 0.8168, engine="0"), of("ended", 0.8184, engine="0")]),
            (80, [of("little", 0.9641, engine="0")]),
        ],
    )


def events_dropped():
    def pod(instance, lost, seen, **own):
        made = Pod(instance, minutes=60, **own).plain("specdec_request_events_total", (60, seen), grows=True)
        for reason in ("lost", "overflow"):
            made.plain("specdec_request_events_dropped_total", (60, lost / 2), grows=True, reason=reason)
        return made

    ill = Pod("ill", minutes=60).drafting(5, 0.8).failing(lambda number: 30 <= number < 80)
    ill.plain("specdec_request_events_total", (60, 50), grows=True)
    ill.plain("specdec_request_events_dropped_total", (15, 0), (29, 50), (16, 0), grows=True, reason="lost")
    firing = [of_sidecar("lossy", 0.0105)]
    yield Scene(
        "more than a hundredth; it ends with the alert on a vLLM that is down",
        "SpecDecodeEventsDropped",
        [
            pod("lossy", 10.5, 989.5),
            pod("less", 9.5, 990.5),
            pod("idle", 0, 0),
            pod("lenient", 10.5, 989.5, events_dropped=0.05),
            ill,
        ],
        [(10, []), (20, firing), (38, [*firing, of_sidecar("ill", 0.5)]), (42, firing)],
        reads=("SpecDecodeVLLMDown",),
    )


def not_judged():
    drafts = {"old": 1.05, "old-idle": 0.95}
    old = [
        Pod(one, minutes=60).drafting(each, 0.3).without("verdict|_acceptance_ratio$") for one, each in drafts.items()
    ]
    v0 = Pod("v0", minutes=60).plain(
        "specdec_engine_limitation", (60, 1), model_name="m", engine="0", limitation="v0_counters"
    )
    yield Scene(
        "the V0 engine, and a sidecar that is older than the rules",
        "SpecDecodeNotJudged",
        [*old, v0, Pod("fine", minutes=60).drafting(5, 0.3)],
        [(14, []), (25, [of("old", reason="old_sidecar"), of("v0", reason="v0_counters")])],
    )


def scraped(instance, built, *phases):
    """A target's ``up``; for ``built`` minutes it was a sidecar."""
    made = Pod(instance, minutes=0)
    if built:
        made.plain("specdec_up", (built, 1)).plain("specdec_build_info", (built, 1), version="1")
        made.plain("specdec_links_info", (built, 1), runbooks=RUNBOOKS, dashboards=DASHBOARDS)
    return made.plain("up", *phases)


def sidecar_absent():
    name = "SpecDecodeSidecarAbsent"
    yield Scene(
        "no page where there was one; a pod that was scaled down is not missed, nor another job's",
        name,
        [
            scraped("gone", 20, (20, 1), (60, 0)),
            scraped("fine", 80, (80, 1)),
            scraped("scaled-down", 20, (20, 1)),
            scraped("short", 20, (20, 1), (4, 0), (50, 1)),
            scraped("other", 0, (80, 0)),
        ],
        [(23, []), (30, [of_sidecar("gone")])],
    )
    nothing = Pod("none", minutes=0).plain("specdec_links_info", (60, 1), runbooks=RUNBOOKS, dashboards=DASHBOARDS)
    nothing.own = {}
    yield Scene("no sidecar at all", name, [nothing], [(4, []), (7, [Firing({})])])


def own():
    def failing(instance, metric, *labels):
        growing, ended, once = (Pod(f"{instance}-{kind}", minutes=60) for kind in ("often", "ended", "once"))
        for one in labels:
            growing.plain(metric, (60, 1), grows=True, **one)
            ended.plain(metric, (20, 1), (40, 0), grows=True, **one)
            once.plain(metric, (20, 0), (40, 1), **one)
        return [growing, ended, once]

    yield Scene(
        "a part that keeps failing",
        "SpecDecodeSidecarFailing",
        failing("part", "specdec_internal_errors_total", {"part": "scrape"}),
        [
            (9, []),
            (14, [of_sidecar("part-often", 5, part="scrape"), of_sidecar("part-ended", 5, part="scrape")]),
            (28, [of_sidecar("part-often", 5, part="scrape")]),
        ],
    )
    am = {"alertmanager": "am:9093"}
    both = [of_sidecar(one, 10, **am) for one in ("am-often", "am-ended")]
    refused = failing("am", "specdec_alerts_sent_total", *(am | {"outcome": one} for one in ("failed", "rejected")))
    yield Scene(
        "an Alertmanager that refuses",
        "SpecDecodePushRefused",
        [*refused, Pod("fine", minutes=0).plain("specdec_alerts_sent_total", (60, 5), grows=True, outcome="accepted")],
        [(9, []), (14, both), (28, both), (35, both[:1])],
    )


def rules_failing():
    bare = Pod("bare", minutes=60).drafting(5, 0.8).without("specdec_threshold")
    errors, group = Pod("prometheus", minutes=60), "/etc/specdec.yaml;specdec-pod"
    errors.plain("prometheus_rule_evaluation_failures_total", (60, 1), grows=True, rule_group=group)
    errors.own = {}
    other = Firing({"rule_group": group, "fault": "errors"})
    other.labels |= {"namespace": None}
    yield Scene(
        "series without their thresholds, and rules that fail",
        "SpecDecodeRulesFailing",
        [bare, errors, Pod("fine", minutes=60).drafting(5, 0.8)],
        [(9, []), (14, [of("bare", fault="no thresholds"), other])],
    )


SCENES = [
    *gap_wide(),
    *kv_cache(),
    *vllm_down(),
    *restarting(),
    *unstable(),
    *plugin(),
    *events_dropped(),
    *not_judged(),
    *sidecar_absent(),
    *own(),
    *rules_failing(),
]
