"""Scenes for the alerts on load, on vLLM, on the plug-in and on the sidecar itself."""

from sidecar.errors import NoVllmMetrics
from sidecar.requests.messages import HelloState
from tests.alerts.pods import DASHBOARDS, DAY, POD, RUNBOOKS, Firing, Pod
from tests.alerts.scene import Scene, scenes
from tests.alerts.scenes_judged import LOW, NOT_JUDGED
from tests.alerts.vllm_pages import plan

NEVER_UP, UNSTABLE = "SpecDecodeVLLMNeverUp", "SpecDecodeVLLMUnstable"
STALLED = "SpecDecodeEngineStalled"
ABSENT, NO_SIDECAR = "SpecDecodeSidecarAbsent", "SpecDecodeNoSidecar"
UNSCRAPED, RESTARTING = "SpecDecodeSidecarUnscraped", "SpecDecodeSidecarRestarting"
SWITCH = "SpecDecodeDeadMansSwitch"
UNREADABLE = "SpecDecodeVLLMUnreadable"
PLUGIN, RULES = "SpecDecodePluginFailing", "SpecDecodeRulesFailing"
GAP, KV_CACHE = "SpecDecodeLatencyGapWide", "SpecDecodeKVCachePressure"


@scenes
def gap_wide():
    def pod(instance, p99=0.051, drafts=5.0, requests=4.2, then=None, **own):
        made = Pod(instance, **own).drafting(drafts, 0.8, requests=requests)
        return made.baseline(0.02, 0.04).tpot(0.02, p99, minutes=20, then=then)

    def engines(instance, second, requests=4.2):
        """The first one's gap is wide; the second has other quantiles."""
        return (
            pod(instance, requests=requests)
            .drafting(5, 0.8, requests=4.2, engine="1")
            .tpot(*second, engine="1")
        )

    yield Scene("against the baseline, with enough requests", GAP, at=(14, 27, 43)).with_pods(
        pod("wide").fires(1.55),
        engines("engines", (0.02, 0.03)).fires(1.55),
        engines("slower", (0.045, 0.05)).fires(1.55),
        engines("few-of-one", (0.02, 0.03), requests=3.8),
        pod("less", 0.049),
        pod("idle", 0.06, drafts=0.05),
        pod("few", 0.06, requests=3.8),
        pod("lenient", latency_gap_growth=2),
        # P50 and P99 are in one bucket, and in two with one between them.
        pod("one-bucket", 0.024).tpot(0.011, 0.024, edges=(0.01, 0.025, 0.05)),
        pod("apart").tpot(0.011, 0.06, edges=(0.01, 0.02, 0.0511, 0.1)).fires(1.555),
        pod("narrowed", then=(0.02, 0.021)).fires(1.55, until=27),
    )

    def returning(instance, minutes):
        made = Pod(instance, poll=60).drafting(5, 0.8).away(minutes, DAY)
        return made.tpot(0.02, 0.04, minutes=DAY, then=(0.02, 0.051))

    past, half = returning("past", 90), returning("half-an-hour", 26)

    def was(pod, quantile, value):
        return pod.own | {"model_name": "m", "quantile": quantile}, value

    yield Scene(
        "without a baseline against the same hour of the day before",
        GAP,
        at=(80, DAY + 10, DAY + 40),
        records={
            "pod_quantile:specdec_tpot_seconds:day_before": [
                was(pod, *one) for pod in (past, half) for one in (("0.5", 0.02), ("0.99", 0.04))
            ]
        },
    ).with_pods(
        past.fires(1.55, since=DAY + 40),
        half.fires(1.55, since=DAY + 40),
        returning("young", 12),
    )


@scenes
def kv_cache():
    def pod(instance, peak, waiting, capacity=None, **own):
        return Pod(instance, **own).drafting(5, 0.8).cache(peak, waiting, capacity=capacity)

    def two(instance, first, second, **capacity):
        """With two engines; each is its peak and how many requests wait."""
        made = pod(instance, *first, **capacity).drafting(1, 0.8, engine="1")
        return made.cache(*second, **capacity, engine="1")

    yield Scene("full and waited for", KV_CACHE, at=(9, 15, 40)).with_pods(
        pod("full", 0.91, 2).fires(0.91),
        pod("less", 0.89, 2),
        pod("unwaited", 0.99, 0),
        pod("waits", 0.91, 9, capacity=1).fires(0.91),
        pod("waits-for-else", 0.99, 9, capacity=0),
        pod("lenient", 0.91, 2, kv_cache_usage=0.95),
        two("apart", (0.99, 0), (0.5, 9)),  # they wait for the engine that has room
    )
    yield Scene(
        "on the average of five minutes", KV_CACHE, at=(9, 15, 27, 40), needs_prometheus=True
    ).with_pods(
        pod("now-and-then", 0.91, plan(*[(2, 0), (2, 3)] * 15)).fires(0.91),
        pod("capacity", 0.91, 9, capacity=0.6).fires(0.91),
        pod("deferred", 0.99, 9, capacity=0.4),
        pod("one-scrape", 0.99, plan(*[(1, 1), (4, 0)] * 12)),
        pod("one-burst", 0.99, plan((20, 0), (1, 50), (39, 0))),
        pod("failing", 0.91, 2).failing(lambda number: number % 5 == 4).fires(0.91),
        pod("ended", 0.91, plan((20, 2), (0, 0))).fires(0.91, until=27),
        two("several", (0.5, 1), (0.95, 3)).fires(0.95),
        two("parts", (0.91, 9), (0.5, 9), capacity=0.6).fires(0.91),
    )


@scenes
def unread_from_the_start():
    def pod(instance, fails, **limits):
        return Pod(instance, **limits).drafting(5, 0.8).failing(lambda n: fails(n / 2))

    def unreadable(instance, up):
        """vLLM responds from then on, but with another page."""
        return Pod(instance).drafting(5, 0.8).failing(lambda n: n / 2 >= up, NoVllmMetrics("none"))

    for alert, name, at in (
        (NEVER_UP, "no page at all", (30, 33, 70)),
        (UNREADABLE, "another page", (9, 35, 70)),
    ):
        yield Scene(name, alert, at).with_pods(
            pod("down", lambda minute: minute >= 20),
            pod("starting", lambda _: True).sidecar_fires(alert=NEVER_UP, since=33),
            pod("patient", lambda minute: minute < 60, startup_time=4000),
            pod("slow", lambda minute: minute < 25),
            pod("recent", lambda _: True, start=45),
            Pod("fine").drafting(5, 0.8),
            unreadable("none", 0).sidecar_fires(alert=UNREADABLE, since=35),
            unreadable("silenced", 20).sidecar_fires(alert=UNREADABLE, since=35),
        )

    mended = Pod("mended").drafting(5, 0.8)
    mended.failing(lambda n: 20 <= n < 80, NoVllmMetrics("none"))
    yield Scene(
        "it ends five minutes after the page can be read", UNREADABLE, at=(9, 25, 43, 50)
    ).with_pods(mended.sidecar_fires(until=43))


@scenes
def engine_stalled():
    def pod(instance, *spans, **limits):
        """Requests run; within spans of minutes nothing moves."""
        return Pod(instance, **limits).drafting(5, 0.8).hanging(*spans)

    both = pod("both", (20, 80)).drafting(1, 0.8, engine="1").hanging((20, 80))
    yield Scene("requests run and nothing moves", STALLED, at=(21, 24, 60)).with_pods(
        pod("hangs", (20, 80)).sidecar_fires(0, since=24),
        both.sidecar_fires(0, since=24),
        pod("prefills", (20, 21.5)),
        pod("works"),
        Pod("idle").drafting(0, 0.8),
    )

    one_of_two = pod("one-of-two")
    labels = {"model_name": one_of_two.model, "engine": "1", "reason": "stalled"}
    one_of_two.plain("specdec_engine_healthy", (21.5, 1), (60, 0), **labels)
    yield Scene("one engine of two", STALLED, at=(21, 24), needs_prometheus=True).with_pods(
        one_of_two.sidecar_fires(0, since=24),
    )

    # Its machine is rebooted, with the sidecar, and is away for a quarter of an hour.
    away = pod("away", (20, 30)).away(30, 45).plain("up", (30, 1), (15, 0), (60, 1))
    restarted = pod("restarted", (20, 30)).restarting(40)
    restarted.failing(lambda n: 60 <= n < 80)
    yield Scene(
        "it goes on while vLLM is down after it, and nothing else says so",
        STALLED,
        at=(19, 24, 35, 39, 45, 70),
        needs_prometheus=True,
    ).with_pods(
        restarted.sidecar_fires(0, since=24, until=24)
        .sidecar_fires(since=35, until=39)
        .sidecar_fires(since=45, until=45),
        away.sidecar_fires(0, since=24, until=24).sidecar_fires(since=35, until=45),
        pod("returns", (20, 30))
        .sidecar_fires(0, since=24, until=24)
        .sidecar_fires(since=35, until=39),
    )


@scenes
def restarting():
    def pod(instance, *minutes, **own):
        return Pod(instance, **own).drafting(5, 0.8).restarting(*minutes)

    yield Scene(
        "three within an hour", "SpecDecodeVLLMRestarting", at=(13, 20, 68, 85, 115)
    ).with_pods(
        pod("three", 10, 12, 14).sidecar_fires(3, until=68),
        pod("two", 10, 12),
        pod("spread", 5, 70, 110),
        pod("many", *range(5, 15), restarts_per_hour=10).sidecar_fires(10, until=68),
        pod("less", *range(5, 14), restarts_per_hour=10),
        pod("sidecar-too", 10, 12, 72, 74, 76).away(65, 66).sidecar_fires(3, since=85),
    )


@scenes
def unstable():
    def pod(instance, fails):
        return Pod(instance).drafting(5, 0.8).failing(fails)

    def counting(instance, *reasons):
        made = Pod(instance).drafting(5, 0.8)
        for reason in reasons:
            made.plain(
                "specdec_scrape_errors_total", (60, 0.6 / len(reasons)), grows=True, reason=reason
            )
        return made

    ended = pod("ended", lambda number: number % 4 < 2 and number < 60)
    yield Scene("a page that fails every other minute", UNSTABLE, at=(14, 30, 36, 46)).with_pods(
        pod("shaky", lambda number: number % 4 < 2).sidecar_fires(5),
        ended.sidecar_fires(4, until=30).sidecar_fires(2, since=36, until=36),
        counting("one", "timeout").sidecar_fires(3),
        counting("two", "status", "timeout").sidecar_fires(3),
        pod("rarely", lambda number: number % 20 == 4),
        pod("down", lambda number: number > 20),
    )


@scenes
def plugin():
    def pod(state):
        made = Pod(state.value).bucket("0", 5, 0.8)
        made.vllm.plugin_state = state
        if state in {HelloState.REFUSED, HelloState.DISABLED}:
            made.sidecar_fires(engine="0", state=state.value, version="1", vllm_version="0.32.0")
        return made

    pods = [*map(pod, HelloState), Pod("without").drafting(5, 0.8)]
    yield Scene("where someone must act", PLUGIN, at=(13, 17, 30)).with_pods(*pods)


@scenes
def coverage():
    def pod(instance, reported, counted, minutes=60):
        return Pod(instance, minutes=minutes).bucket("0", reported, 0.8).drafting(counted, 0.8)

    yield Scene(
        "it reports less than vLLM counts", "SpecDecodeCoverageLow", at=(28, 44, 80)
    ).with_pods(
        pod("part", 5, 6.25).fires(0.8, engine="0", until=44),
        pod("little", 5, 5.25, minutes=90).fires(0.9524, engine="0", since=44),
        pod("ended", 5, 6.25, minutes=41).fires(0.8, engine="0", until=44),
        pod("nearly", 5, 5.05),
        pod("idle", 0.76, 0.95),
        pod("slow", 28 / 30, 35 / 30).fires(0.8, engine="0", until=44),
    )


@scenes
def events_dropped():
    def pod(instance, lost, seen, **own):
        made = Pod(instance, **own).plain("specdec_request_events_total", (60, seen), grows=True)
        for reason in ("lost", "overflow"):
            made.plain(
                "specdec_request_events_dropped_total", (60, lost / 2), grows=True, reason=reason
            )
        return made

    yield Scene("more than a hundredth", "SpecDecodeEventsDropped", at=(10, 20)).with_pods(
        pod("lossy", 10.5, 989.5).sidecar_fires(0.0105),
        pod("less", 9.5, 990.5),
        pod("idle", 0, 0),
        pod("lenient", 10.5, 989.5, events_dropped=0.05),
    )


@scenes
def not_judged():
    def old(instance, drafts):
        return (
            Pod(instance)
            .drafting(drafts, 0.3)
            .without("_acceptance_low$|_collapsed$|_engine_verdict$")
        )

    v0 = {"model_name": "m", "engine": "0", "limitation": "v0_counters"}
    yield Scene(
        "the V0 engine, and a sidecar that is older than the rules", NOT_JUDGED, at=(13, 25)
    ).with_pods(
        old("old", 1.05).fires(reason="old_sidecar"),
        old("old-idle", 0.95),
        Pod("v0").plain("specdec_engine_limitation", (60, 1), **v0).fires(reason="v0_counters"),
        Pod("fine").drafting(5, 0.3),
    )


def scraped(instance, built, *phases):
    """A target's ``up``; for ``built`` minutes it was a sidecar."""
    made = Pod(instance, minutes=0)
    if built:
        made.plain("specdec_up", (built, 1)).plain("specdec_build_info", (built, 1), version="1")
        made.plain("specdec_links_info", (built, 1), runbooks=RUNBOOKS, dashboards=DASHBOARDS)
    return made.plain("up", *phases)


@scenes
def sidecar_absent():
    yield Scene(
        "no page where there was one; no pod that was scaled down, no other job's",
        ABSENT,
        at=(28, 35),
    ).with_pods(
        scraped("gone", 20, (20, 1), (60, 0)).sidecar_fires(),
        scraped("fine", 80, (80, 1)),
        scraped("scaled-down", 20, (20, 1)),
        scraped("short", 20, (20, 1), (9, 0), (50, 1)),
        scraped("flaps", 80, (20, 1), (6, 0), (4, 1), (6, 0), (44, 1)),
        scraped("back", 10, (10, 1), (22, None), (40, 0)),  # known to be down for three minutes
        scraped("other", 0, (80, 0)),
    )
    nothing = Pod("none", minutes=0).plain(
        "specdec_links_info", (60, 1), runbooks=RUNBOOKS, dashboards=DASHBOARDS
    )
    nothing.own = {}
    other = scraped("other", 0, (60, 0))
    other.own["instance"] = "other:9100"
    yield Scene("no sidecar at all", NO_SIDECAR, at=(9, 12), fleet=[Firing({})]).with_pods(
        nothing, other
    )
    yield Scene("scaled to zero", NO_SIDECAR, at=(29, 40), fleet=[Firing({})]).with_pods(
        nothing, scraped("scaled-down", 20, (20, 1))
    )
    yield Scene("of one that died, one alert", NO_SIDECAR, at=(30, 40, 80)).with_pods(
        nothing, scraped("gone", 20, (20, 1), (90, 0))
    )


@scenes
def never_scraped():
    """Targets that were down from the first scrape on, which nobody would miss."""

    def target(instance, *phases, job="vllm", port=9911, namespace="prod"):
        made = Pod(instance, minutes=0).plain("up", *phases)
        made.own = {"namespace": namespace, "job": job, "instance": f"{instance}:{port}"}
        return made

    fine, other = scraped("fine", 90, (90, 1)), scraped("ported", 90, (90, 1))
    other.own |= {"job": "ports", "instance": "ported:21405"}
    told = [
        Firing({"namespace": "prod", "job": "vllm"}, 2, since=14),
        Firing({"namespace": "prod", "job": "ports"}, 1, since=14),
        Firing({"namespace": "none", "job": "alone"}, 1, since=14),
    ]
    pods = (
        fine,
        other,
        target("b", (90, 0)),
        target("c", (90, 0)),
        target("starts", (9, 0), (80, 1)),
        target("same-port", (90, 0), job="ports", port=21405),
        target("other-port", (90, 0), job="ports", port=8000),
        target("up", (90, 1), job="alone", namespace="none"),
        target("alone", (90, 0), job="alone", namespace="none"),
        target("exporter", (90, 0), job="node", port=9100),
        scraped("gone", 20, (20, 1), (70, 0)),
    )
    yield Scene("by job, and by port", UNSCRAPED, at=(9, 14, 60), fleet=told).with_pods(*pods)

    named = Firing({"namespace": "prod", "job": "vllm"}, 2, since=14)
    named.annotations |= {"context": "Never scraped: b:9911 c:9911."}
    yield Scene("it names them", UNSCRAPED, at=(9, 14), fleet=[named]).with_pods(
        fine, target("b", (90, 0)), target("c", (90, 0))
    )

    links = Pod("links", minutes=0).plain(
        "specdec_links_info", (90, 1), runbooks=RUNBOOKS, dashboards=DASHBOARDS
    )
    links.own = {}
    late = target("late", (30, None), (14, 0), (20, 1))
    ended = Firing({"namespace": "prod", "job": "vllm"}, 1, since=42, until=47)
    yield Scene(
        "after ten minutes, and for five after it", UNSCRAPED, at=(38, 42, 47, 51), fleet=[ended]
    ).with_pods(links, late)
    yield Scene("of targets that were never scraped, one alert", NO_SIDECAR, at=(14, 60)).with_pods(
        links, target("b", (90, 0))
    )


@scenes
def sidecar_restarting():
    def pod(instance, *starts, **limits):
        made = Pod(instance, **limits).drafting(5, 0.8)
        made.gap = set(starts)
        return made

    yield Scene("three times within an hour", RESTARTING, at=(25, 45, 79, 110)).with_pods(
        pod("three", 10, 20, 30).sidecar_fires(3, since=45, until=79),
        pod("two", 10, 20),
        pod("spread", 10, 55, 100),
        pod("lenient", 10, 20, 30, restarts_per_hour=4),
        pod("many", *range(12, 32, 2), restarts_per_hour=10).sidecar_fires(10, since=45, until=79),
        pod("less", *range(14, 32, 2), restarts_per_hour=10),
        Pod("fine").drafting(5, 0.8),
    )
    killed = pod("killed", 10, 20, 30).in_kubernetes()
    exit_of = {"container": "specdec-sidecar", "reason": "OOMKilled"}
    killed.plain("kube_pod_init_container_status_last_terminated_reason", (60, 1), **exit_of)
    log = f"Details: kubectl -n prod logs {POD} -c specdec-sidecar --previous"
    yield Scene("it says how it ended, where that is known", RESTARTING, at=(25, 45)).with_pods(
        killed.sidecar_fires(3, context=("Its last exit: OOMKilled.", log))
    )


@scenes
def another_program():
    other = Pod("other", minutes=0).plain("process_start_time_seconds", (10, 0))
    yield Scene(
        "another program is no sidecar",
        None,
        at=(9,),
        records={"sidecar:specdec_start:timestamp_seconds": ()},
    ).with_pods(other)


@scenes
def dead_mans_switch():
    off = Pod("off").drafting(5, 0.8)
    yield Scene("where it is on", SWITCH, at=(2, 30, 60), fleet=[Firing({}, since=30)]).with_pods(
        off, Pod("on", start=10, dead_mans_switch=True).drafting(5, 0.8)
    )
    yield Scene("nowhere", SWITCH, at=(2, 30)).with_pods(Pod("off").drafting(5, 0.8))


@scenes
def own():
    def failing(instance, value, until, metric, *labels, **shown):
        """Three counters: one keeps growing, one ends, and one grew once.

        The alert on the one that ends fires until then.
        """
        often = Pod(f"{instance}-often", minutes=60)
        ended = Pod(f"{instance}-ended", minutes=60)
        once = Pod(f"{instance}-once", minutes=60)

        for label_set in labels:
            often.plain(metric, (60, 1), grows=True, **label_set)
            ended.plain(metric, (20, 1), (40, 0), grows=True, **label_set)
            once.plain(metric, (20, 0), (40, 1), **label_set)

        return [
            often.sidecar_fires(value, **shown),
            ended.sidecar_fires(value, until=until, **shown),
            once,
        ]

    part = failing(
        "part", 5, 14, "specdec_internal_errors_total", {"part": "scrape"}, part="scrape"
    )
    failing_part = Scene("a part that keeps failing", "SpecDecodeSidecarFailing", at=(9, 14, 28))
    yield failing_part.with_pods(*part)

    metric = "specdec_settings_invalid"
    wrong = Pod("wrong", minutes=0).plain(metric, (60, 2)).sidecar_fires(2)
    mended = Pod("mended", minutes=0).plain(metric, (20, 1), (40, 0)).sidecar_fires(1, until=20)
    brief = Pod("brief", minutes=0).plain(metric, (4, 1), (56, 0))
    yield Scene(
        "settings that are invalid", "SpecDecodeSettingsInvalid", at=(3, 7, 14, 28)
    ).with_pods(wrong, mended, brief, Pod("valid").drafting(5, 0.8))

    sent, am = "specdec_alerts_sent_total", {"alertmanager": "am:9093"}
    refused = failing(
        "am", 1, 28, sent, *(am | {"outcome": outcome} for outcome in ("failed", "rejected")), **am
    )
    fine = Pod("fine", minutes=0).plain(sent, (60, 5), grows=True, outcome="accepted")
    yield Scene(
        "an Alertmanager that refuses", "SpecDecodePushRefused", at=(9, 14, 28, 35)
    ).with_pods(*refused, fine)


@scenes
def rules_failing():
    group = {"rule_group": "/etc/specdec.yaml;specdec-pod"}
    prometheus = Pod("prometheus").plain(
        "prometheus_rule_evaluation_failures_total", (60, 1), grows=True, **group
    )
    prometheus.own = {}
    bare = Pod("bare").drafting(5, 0.8).without("specdec_threshold").fires(fault="no thresholds")
    yield Scene(
        "series without thresholds, and rules that fail",
        RULES,
        at=(9, 14),
        fleet=[Firing(group | {"fault": "errors"})],
    ).with_pods(
        bare,
        prometheus,
        Pod("fine").drafting(5, 0.8),
    )


@scenes
def links():
    """Without addresses alerts link to a sidecar, and no dashboard is made up.

    The alert on a dead sidecar links to a living one. In a cluster the link is to a forwarded port.
    """
    for alert, address in ((LOW, "low"), (LOW, "localhost"), (ABSENT, "low")):
        low = Pod("low").drafting(5, 0.3)
        context = ()
        if address == "localhost":
            low.in_kubernetes()
            low.own["instance"] = "low:21405"  # its sidecar listens elsewhere than the other one
            context = (
                "Acceptance rate 30% (threshold 50%).",
                "Why (docs/why.md): too_many_tokens.",
                f"Details: kubectl -n prod exec {POD} -c specdec-sidecar -- specdec-sidecar report",
                f"For the runbook, first: kubectl -n prod port-forward {POD} 9911:21405",
            )
        low.fires(0.3, alert=LOW, severity="warning", context=context)
        del low.environment["SPECDEC_ALERTING__RUNBOOKS"]
        del low.environment["SPECDEC_ALERTING__DASHBOARDS"]

        gone = Pod("gone", minutes=0).plain("specdec_up", (20, 1)).plain("up", (20, 1), (60, 0))
        gone.sidecar_fires(alert=ABSENT)

        for firing in (*low.firings, *gone.firings):
            firing.annotations |= {
                "runbook_url": f"http://{address}:9911/runbooks/{alert}.md",
                "dashboard_url": "",
            }
        fine = Pod("fine").drafting(5, 0.8)
        fine.own |= {"pod": "fine"} if address == "localhost" else {}
        del fine.environment["SPECDEC_ALERTING__RUNBOOKS"]
        del fine.environment["SPECDEC_ALERTING__DASHBOARDS"]
        yield Scene(f"links without addresses lead to {address}", alert, at=(9, 40)).with_pods(
            low, gone, *([fine] if address == "localhost" else [])
        )
