"""Scenes for the alerts on load, on vLLM, on the plug-in and on the sidecar itself."""

from sidecar.requests.messages import HelloState
from tests.alerts.pods import DASHBOARDS, DAY, POD, RUNBOOKS, Pod
from tests.alerts.scene import Firing, Scene, of, of_sidecar
from tests.alerts.vllm_pages import plan


def gap_wide():
    def pod(instance, p99=0.051, drafts=5.0, requests=4.2, then=None, **own):
        made = Pod(instance, **own).drafting(drafts, 0.8, requests=requests)
        return made.baseline(0.02, 0.04).tpot(0.02, p99, minutes=20, then=then)

    engines = pod("engines", requests=2.1).drafting(5, 0.8, requests=2.1, engine="1").tpot(0.02, 0.03, engine="1")
    firing = [of("wide", 1.55), of("engines", 1.55)]
    yield Scene(
        "against the baseline, with as many requests as it takes",
        "SpecDecodeLatencyGapWide",
        [
            pod("wide"),
            engines,
            pod("less", 0.049),
            pod("idle", 0.06, drafts=0.05),
            pod("few", 0.06, requests=3.8),
            pod("lenient", latency_gap_growth=2),
            pod("narrowed", then=(0.02, 0.021)),
        ],
        [(14, []), (27, [*firing, of("narrowed", 1.55)]), (43, firing)],
    )

    def returning(instance, minutes):
        made = Pod(instance, poll=60).drafting(5, 0.8).away(minutes, DAY)
        return made.tpot(0.02, 0.04, minutes=DAY, then=(0.02, 0.051))

    yield Scene(
        "without a baseline against the same hour of the day before",
        "SpecDecodeLatencyGapWide",
        [returning("past", 90), returning("young", 25)],
        [(80, []), (DAY + 10, []), (DAY + 40, [of("past", 1.55)])],
    )


def kv_cache():
    def pod(instance, peak, waiting, capacity=None, **own):
        return Pod(instance, **own).drafting(5, 0.8).cache(peak, waiting, capacity=capacity)

    def two(instance, first, second, **capacity):
        """With two engines; each is its peak and how many requests wait."""
        made = pod(instance, *first, **capacity).drafting(1, 0.8, engine="1")
        return made.cache(*second, **capacity, engine="1")

    names = {"full": 0.91, "now-and-then": 0.91, "capacity": 0.91, "failing": 0.91, "several": 0.95, "together": 0.95}
    expected = [of(name, peak) for name, peak in {**names, "parts": 0.91}.items()]
    ended = [*expected, of("ended", 0.91)]
    yield Scene(
        "full and waited for",
        "SpecDecodeKVCachePressure",
        [
            pod("full", 0.91, 2),
            pod("now-and-then", 0.91, plan(*[(2, 0), (2, 3)] * 15)),
            pod("less", 0.89, 2),
            pod("unwaited", 0.99, 0),
            pod("capacity", 0.91, 9, capacity=0.6),
            pod("deferred", 0.99, 9, capacity=0.4),
            pod("one-scrape", 0.99, plan(*[(1, 1), (4, 0)] * 12)),
            pod("one-burst", 0.99, plan((20, 0), (1, 50), (39, 0))),
            pod("lenient", 0.91, 2, kv_cache_usage=0.95),
            pod("failing", 0.91, 2).failing(lambda number: number % 5 == 4),
            pod("ended", 0.91, plan((20, 2), (0, 0))),
            two("several", (0.5, 1), (0.95, 3)),
            two("together", (0.95, 0.4), (0.5, 0.4)),
            two("parts", (0.91, 9), (0.5, 9), capacity=0.3),
        ],
        [(9, []), (15, ended), (27, ended), (40, expected)],
    )


def vllm_down():
    def pod(instance, up, down):
        """Polls succeed for ``up`` minutes, and then fail for ``down``."""
        return Pod(instance).drafting(5, 0.8).failing(lambda n: up <= n / 2 < up + down)

    def pods():
        return [
            pod("down", 20, 80),
            pod("forgot", 20, 80).away(22, 23),  # the sidecar is restarted after vLLM went down
            pod("short", 20, 2.5),
            pod("starting", 0, 90),
            pod("slow", 0, 25),
            Pod("fine").drafting(5, 0.8),
        ]

    down, never = [of_sidecar("down"), of_sidecar("forgot")], [of_sidecar("starting")]
    lost, unseen = "SpecDecodeVLLMDown", "SpecDecodeVLLMNeverUp"
    yield Scene("no page where there was one", lost, pods(), [(22, []), (25, down), (70, down)])
    yield Scene("no page at all", unseen, pods(), [(29, []), (31, never), (70, never)])
    context = (
        "Failed polls in the last 5 minutes: [timeout] 10.",
        f"State: kubectl -n prod describe pod {POD}",
        f"Log: kubectl -n prod logs {POD} -c vllm --previous",
    )
    firing = [of_sidecar("down", pod=POD, context=context)]
    in_kubernetes = [pod("down", 20, 80).in_kubernetes()]
    yield Scene("in Kubernetes it comes with commands", lost, in_kubernetes, [(22, []), (27, firing)])


def restarting():
    def pod(instance, *minutes, **own):
        return Pod(instance, **own).drafting(5, 0.8).restarting(*minutes)

    firing = [of_sidecar("three", 3), of_sidecar("many", 10)]
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
            (20, firing),
            (69, firing),
            (85, [of_sidecar("sidecar-too", 3)]),
            (115, [of_sidecar("sidecar-too", 3)]),
        ],
    )


def unstable():
    def pod(instance, fails):
        return Pod(instance).drafting(5, 0.8).failing(fails)

    def counting(instance, *reasons):
        made = Pod(instance).drafting(5, 0.8)
        for reason in reasons:
            made.plain("specdec_scrape_errors_total", (60, 0.6 / len(reasons)), grows=True, reason=reason)
        return made

    firing = [of_sidecar("shaky", 5), of_sidecar("one", 3), of_sidecar("two", 3)]
    yield Scene(
        "a page that fails every other minute is never down for three",
        "SpecDecodeVLLMUnstable",
        [
            pod("shaky", lambda number: number % 4 < 2),
            pod("ended", lambda number: number % 4 < 2 and number < 60),
            counting("one", "timeout"),
            counting("two", "status", "timeout"),
            pod("rarely", lambda number: number % 20 == 4),
            pod("down", lambda number: number > 20),
        ],
        [(14, []), (30, [*firing, of_sidecar("ended", 4)]), (36, [*firing, of_sidecar("ended", 2)]), (46, firing)],
    )


def plugin():
    def pod(instance, state):
        made = Pod(instance).bucket("0", 5, 0.8)
        made.vllm.plugin_state = state
        return made

    def fails(state, **more):
        return of_sidecar(state, engine="0", state=state, version="1", vllm_version="0.32.0", **more)

    firing = [fails("refused"), fails("disabled")]
    yield Scene(
        "where someone must act",
        "SpecDecodePluginFailing",
        [*[pod(state.value, state) for state in HelloState], Pod("without").drafting(5, 0.8)],
        [(13, []), (17, firing), (30, firing)],
    )
    advice = (
        "It does not support this vLLM's scheduler. Upgrade the sidecar, rewrite the plug-in "
        "(specdec-sidecar plugin DIR) and restart vLLM."
    )
    reason = f"To see the reason: kubectl -n prod exec {POD} -c specdec-sidecar -- specdec-sidecar report"
    yield Scene(
        "it says what to do about its state",
        "SpecDecodePluginFailing",
        [pod("refused", HelloState.REFUSED).in_kubernetes()],
        [(13, []), (17, [fails("refused", pod=POD, context=(advice, reason))])],
    )


def coverage():
    def pod(instance, told, counted, minutes=60):
        return Pod(instance, minutes=minutes).bucket("0", told, 0.8).drafting(counted, 0.8)

    low = {"part": 0.8186, "slow": 0.8186, "ended": 0.8205}
    yield Scene(
        "it reports less than vLLM counts",
        "SpecDecodeCoverageLow",
        [
            pod("part", 5, 6.25),
            pod("little", 5, 5.25, minutes=90),
            pod("ended", 5, 6.25, minutes=41),
            pod("nearly", 5, 5.05),
            pod("idle", 0.76, 0.95),
            pod("slow", 0.84, 1.05),
        ],
        [
            (28, []),
            (44, [of(name, value, engine="0") for name, value in low.items()]),
            (80, [of("little", 0.9644, engine="0")]),
        ],
    )


def events_dropped():
    def pod(instance, lost, seen, **own):
        made = Pod(instance, **own).plain("specdec_request_events_total", (60, seen), grows=True)
        for reason in ("lost", "overflow"):
            made.plain("specdec_request_events_dropped_total", (60, lost / 2), grows=True, reason=reason)
        return made

    yield Scene(
        "more than a hundredth",
        "SpecDecodeEventsDropped",
        [
            pod("lossy", 10.5, 989.5),
            pod("less", 9.5, 990.5),
            pod("idle", 0, 0),
            pod("lenient", 10.5, 989.5, events_dropped=0.05),
        ],
        [(10, []), (20, [of_sidecar("lossy", 0.0105)])],
    )


def not_judged():
    def old(instance, drafts):
        return Pod(instance).drafting(drafts, 0.3).without("_acceptance_low$|_collapsed$|_engine_verdict$")

    v0 = {"model_name": "m", "engine": "0", "limitation": "v0_counters"}
    yield Scene(
        "the V0 engine, and a sidecar that is older than the rules",
        "SpecDecodeNotJudged",
        [
            old("old", 1.05),
            old("old-idle", 0.95),
            Pod("v0").plain("specdec_engine_limitation", (60, 1), **v0),
            Pod("fine").drafting(5, 0.3),
        ],
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

    part = {"part": "scrape"}
    often, ended = (of_sidecar(f"part-{kind}", 5, **part) for kind in ("often", "ended"))
    yield Scene(
        "a part that keeps failing",
        "SpecDecodeSidecarFailing",
        failing("part", "specdec_internal_errors_total", part),
        [(9, []), (14, [often, ended]), (28, [often])],
    )
    am = {"alertmanager": "am:9093"}
    both = [of_sidecar(one, **am) for one in ("am-often", "am-ended")]
    refused = failing("am", "specdec_alerts_sent_total", *(am | {"outcome": one} for one in ("failed", "rejected")))
    yield Scene(
        "an Alertmanager that refuses",
        "SpecDecodePushRefused",
        [*refused, Pod("fine", minutes=0).plain("specdec_alerts_sent_total", (60, 5), grows=True, outcome="accepted")],
        [(9, []), (14, both), (28, both), (35, both[:1])],
    )


def rules_failing():
    group = "/etc/specdec.yaml;specdec-pod"
    prometheus = Pod("prometheus").plain(
        "prometheus_rule_evaluation_failures_total", (60, 1), grows=True, rule_group=group
    )
    prometheus.own = {}
    yield Scene(
        "series without their thresholds, and rules that fail",
        "SpecDecodeRulesFailing",
        [
            Pod("bare").drafting(5, 0.8).without("specdec_threshold"),
            prometheus,
            Pod("fine").drafting(5, 0.8),
        ],
        [
            (9, []),
            (
                14,
                [
                    of("bare", fault="no thresholds"),
                    Firing({"rule_group": group, "fault": "errors", "namespace": None}),
                ],
            ),
        ],
    )


def links():
    """A pod's alert links to the pod itself, one on a dead sidecar to a living one, and no dashboard is made up."""
    for name, firing in (("SpecDecodeAcceptanceLow", of("low", 0.3)), ("SpecDecodeSidecarAbsent", of_sidecar("gone"))):
        low = Pod("low").drafting(5, 0.3)
        del low.environment["SPECDEC_ALERTING__RUNBOOKS"], low.environment["SPECDEC_ALERTING__DASHBOARDS"]
        gone = Pod("gone", minutes=0).plain("specdec_up", (20, 1)).plain("up", (20, 1), (60, 0))
        firing.annotations = {"runbook_url": f"http://low:9911/runbooks/{name}.md", "dashboard_url": ""}
        yield Scene("links without addresses lead to the sidecars", name, [low, gone], [(40, [firing])])


SCENES = [
    scene
    for scenes in (
        gap_wide, kv_cache, vllm_down, restarting, unstable, plugin, coverage, events_dropped, not_judged,
        sidecar_absent, own, rules_failing, links,
    )
    for scene in scenes()
]  # fmt: skip
