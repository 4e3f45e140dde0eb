"""Scenes for the outages of a model: which of its pods serve, and what is known of the others."""

from sidecar.errors import NoVllmMetrics, TimedOut
from tests.alerts.pods import DASHBOARDS, DAY, POD, RUNBOOKS, Firing, Pod
from tests.alerts.scene import Scene, scenes
from tests.alerts.vllm_pages import after, plan

DOWN, GONE = "SpecDecodeVLLMDown", "SpecDecodeModelGone"
STALLED, NO_SIDECAR = "SpecDecodeEngineStalled", "SpecDecodeNoSidecar"


def of_its_model(instance, *phases, model=None, **own):
    """A pod that alone has a model, and its target."""
    pod = Pod(instance, model=model or instance, **own).drafting(5, 0.8)
    return pod.plain("up", *phases) if phases else pod


def down(pod, since, until=None):
    """The page on its model, and the warning on the pod, which Alertmanager holds back."""
    ends = {} if until is None else {"until": until}
    pod.outage_fires(since=since, **ends)
    return pod.fires(severity="warning", since=since, **ends)


def without_vllm(instance, *spans, **own):
    """Polls fail within spans of minutes."""
    pod = of_its_model(instance, **own)
    return pod.failing(lambda n: any(start <= n / 2 < end for start, end in spans))


def beside(instance, *phases, port=8000):
    """Another program at the same address."""
    made = Pod(instance, minutes=0).plain("up", *phases)
    made.own |= {"job": "another", "instance": f"{instance}:{port}"}
    return made


@scenes
def for_three_minutes():
    forgot = without_vllm("forgot", (20, 90)).away(22, 23)  # the sidecar restarts after vLLM died
    unreadable = of_its_model("unreadable")
    unreadable.failing(lambda n: n >= 40, NoVllmMetrics("none"))
    idle = Pod("idle", model="idle").drafting(plan((4, 5), (0, 0)), 0.8, requests=after(4, 10, 0))
    idle.failing(lambda n: n >= 40)
    lately = Pod("lately", model="lately")
    lately.drafting(plan((11, 5), (0, 0)), 0.8, requests=after(11, 10, 0)).failing(
        lambda n: n >= 40
    )
    waits = Pod("waits", model="waits").gauge("num_requests_running", 3)
    waits.drafting(plan((4, 5), (0, 0)), 0.8, requests=after(4, 10, 0)).failing(lambda n: n >= 40)
    yield Scene("no page where there was one", DOWN, at=(22, 25, 70)).with_pods(
        down(without_vllm("down", (20, 90)), since=25),
        without_vllm("short", (20, 22.5)),
        without_vllm("loading", (0, 90)),
        of_its_model("fine"),
        unreadable,
    )
    # It was asked for in its first outage; when the next one begins, nobody has for ten minutes.
    again = Pod("again", model="again")
    again.drafting(plan((19, 5), (0, 0)), 0.8, requests=after(19, 10, 0))
    again.failing(lambda n: 40 <= n < 52 or n >= 66).outage_fires(since=25, until=25)
    # Another program answers at the address after a while: that is no longer vLLM's outage.
    other = of_its_model("other")
    other.failing(
        lambda n: n >= 40, lambda n: NoVllmMetrics("none") if n >= 54 else TimedOut("no answer")
    )
    yield Scene(
        "no page where there was one, by Prometheus' memory",
        DOWN,
        at=(22, 25, 70),
        needs_prometheus=True,
    ).with_pods(
        down(forgot, since=25),
        idle.fires(severity="warning", since=25),
        down(lately, since=25),
        again.fires(severity="warning", since=25),
        down(waits, since=25),
        down(other, since=25, until=25),
    )


@scenes
def by_count():
    """What comes and goes is counted over half an hour."""

    def flaps(instance, away, every, restarts=False):
        """From minute 30 to 80 it is away for a part of so many minutes."""
        pod = of_its_model(instance, minutes=130)
        pod.failing(lambda n: 60 <= n < 160 and (n / 2 - 30) % every < away)
        return pod.restarting(*range(30 + away, 80, every)) if restarts else pod

    def gone(instance, restarts, model=None):
        """Three of every six minutes the sidecar is away, perhaps with its vLLM."""
        pod = of_its_model(instance, model=model, minutes=130)
        pod.gap = {minute for minute in range(30, 80) if (minute - 30) % 6 < 3}
        pod.plain("up", (30, 1), *[(3, 0), (3, 1)] * 8, (60, 1))
        return pod.restarting(*range(33, 80, 6)) if restarts else pod

    unreadable = of_its_model("unreadable", minutes=130).restarting(29, 31)
    unreadable.failing(lambda n: n >= 66, NoVllmMetrics("none"))
    yield Scene(
        "it comes and goes", DOWN, at=(32, 43, 52, 70, 88, 110), needs_prometheus=True
    ).with_pods(
        down(flaps("half", 2, 4), since=52, until=88),
        flaps("a-fifth", 1, 5),
        down(flaps("crashes", 2, 4, restarts=True), since=52, until=88).outage_fires(
            since=43, until=43
        ),
        unreadable,
        gone("as-a-whole", restarts=True).outage_fires(since=43, until=88),
        gone("sidecar-only", restarts=False),
        gone("one-of-two", restarts=True, model="two").outage_fires(since=43, until=88),
        gone("other-of-two", restarts=False, model="two"),
        of_its_model("removed", minutes=34).restarting(30, 32),
    )


@scenes
def for_a_day():
    """Prometheus' clock begins at 0 here, so a day ago is before it."""

    def once(value):
        """Recorded in minute 0, and from then on by the rules."""
        return (1, value), (60, None)

    begins = 20 * 60 - 86_400  # of what was last known a day before minute 20
    late = of_its_model("late").failing(lambda _: True)
    before = Pod("late", minutes=0)
    named = {"model_name": "late"}
    before.plain("pod:specdec_served:timestamp_seconds", *once(begins), **named)
    model = Pod("late", minutes=0)
    model.own = {"namespace": "prod"}
    model.plain("model:specdec_requested:timestamp_seconds", *once(begins + 1200), **named)
    model.plain("workload:specdec_served:timestamp_seconds", *once(begins), job="vllm", **named)
    yield Scene(
        "what has been down for a day is no outage any more",
        DOWN,
        at=(2, 15, 38),
        needs_prometheus=True,
    ).with_pods(down(late, since=15, until=15), before, model)


@scenes
def around_a_gap():
    """Of four minutes before a gap of Prometheus too few are known to page anew at once."""
    gap = of_its_model("gap").failing(lambda n: n >= 48).away(29, 57)
    gap.outage_fires(since=28, until=28).outage_fires(since=58)
    gap.fires(severity="warning", since=28, until=28).fires(severity="warning", since=64)
    yield Scene(
        "what has paged goes on after it", DOWN, at=(22, 28, 50, 58, 64), needs_prometheus=True
    ).with_pods(gap)


@scenes
def half_of_a_model():
    def pods(model, number, *failing):
        """So many pods of a model, some of which fail from minute 20 on."""
        made = [of_its_model(f"{model}-{each}", model=model) for each in range(number)]
        for pod in made[: failing[0]] if failing else ():
            pod.failing(lambda n: n >= 40).fires(severity="warning", since=25)
        return made

    two, three, four = pods("two", 2, 1), pods("three", 3, 1), pods("four", 4, 2)
    two[0].outage_fires(since=25)
    four[0].outage_fires(since=25)
    # Nobody asks any more: what the pod that is down had last is no matter.
    idle, apart = pods("idle", 2, 1), pods("apart", 2, 1)
    for first, _ in (idle, apart):
        first.outage_fires(since=25, until=25)
    for pod in (*idle, *apart):
        pod.drafting(plan((22, 5), (0, 0)), 0.8, requests=after(22, 10, 0))
    for pod, workload in zip(apart, ("first", "second"), strict=True):
        pod.own["pod"] = POD.replace("vllm", workload)
        for firing in pod.firings:
            if "instance" in firing.labels:
                firing.labels["pod"] = pod.own["pod"]
    yield Scene(
        "a page for half of the pods, a warning for less",
        DOWN,
        at=(22, 25, 60),
        needs_prometheus=True,
    ).with_pods(*two, *three, *four, *idle, *apart)


@scenes
def before_prometheus():
    """Prometheus is new; the sidecars are not, and one has read its vLLM."""

    def seen(instance, **read):
        made = Pod(instance, minutes=0).plain("process_start_time_seconds", (30, 0))
        for metric, value in ({"specdec_up": 0} | read).items():
            made.plain(metric, (30, value))
        return made

    loads = seen("loads")
    yield Scene(
        "what was read before is not loading",
        None,
        at=(20,),
        records={"pod:specdec_loading:seconds": [(loads.own, 1200)]},
    ).with_pods(loads, seen("was-read", specdec_last_scrape_timestamp_seconds=1))
    # The new sidecar has never read it, and the one before it has.
    yield Scene(
        "nor is what was read before its sidecar restarted",
        None,
        at=(20,),
        records={"pod:specdec_loading:seconds": ()},
    ).with_pods(of_its_model("down").failing(lambda n: n >= 20).away(12, 13))


@scenes
def a_day_later():
    """What Prometheus hands on from evaluation to evaluation ends after a day."""
    dead = of_its_model("dead", (20, 1), (DAY + 60, 0), minutes=20).failing(lambda n: n < 10)
    dead.own |= {"pod": POD}
    remembered = (
        "pod:specdec_served:timestamp_seconds",
        "workload:specdec_served:timestamp_seconds",
        "model:specdec_requested:timestamp_seconds",
        "workload:specdec_load_seconds:last",
        "pod_temperature:specdec_acceptance:mean8h",
        "pod_temperature:specdec_acceptance:minutes2d",
        "pod_temperature:specdec_acceptance:variance2d",
        "model_temperature:specdec_acceptance:mean8h",
    )
    yield Scene(
        "a day later nothing of a model is remembered",
        None,
        at=(DAY + 40,),
        records=dict.fromkeys(remembered, ()),
    ).with_pods(dead)


@scenes
def with_its_sidecar():
    """It was down before its sidecar went, or everything at its address is."""

    def dying(instance, up, failing, *phases):
        pod = without_vllm(instance, (up, up + failing), minutes=up + failing)
        return pod.plain("up", (up + failing, 1), *phases)

    silenced = of_its_model("silenced", (26, 1), (200, 0), minutes=26)
    silenced.failing(lambda n: n >= 40, NoVllmMetrics("none"))
    yield Scene(
        "it outlasts the sidecar", DOWN, at=(19, 24, 40, 70), needs_prometheus=True
    ).with_pods(
        down(dying("both", 20, 6, (200, 0)), since=24),
        down(dying("at-once", 20, 2, (200, 0)), since=24),
        down(dying("removed", 20, 6), since=24, until=24),
        dying("sidecar-only", 20, 0, (200, 0)),
        dying("never-up", 0, 20, (200, 0)),
        silenced,
    )

    def dead(instance, *phases, **own):
        return of_its_model(instance, (20, 1), *phases, minutes=20, **own)

    ready = dead("ready", (80, 0))
    ready.own |= {"pod": "ready"}
    ready.plain("kube_pod_status_ready", (100, 1), condition="true")
    shared = dead("shared", (80, 0), model="shared"), of_its_model("other", model="shared")
    third = of_its_model("third", model="shared")
    yield Scene(
        "everything at its address is down", DOWN, at=(21, 25, 90), needs_prometheus=True
    ).with_pods(
        down(dead("dead", (80, 0)), since=25),
        beside("dead", (20, 1), (80, 0)),
        dead("alone", (80, 0)),
        dead("deleted", (1, 0)),  # its targets fail once or twice, and are then gone
        beside("deleted", (20, 1), (1, 0)),
        dead("machine-lives", (80, 0)),
        beside("machine-lives", (20, 1), (80, 0)),
        beside("machine-lives", (100, 1), port=9100),
        shared[0].fires(severity="warning", since=25),
        *shared[1:],
        third,
        beside("shared", (20, 1), (80, 0)),
        dead("brief", (2, 0), (78, 1)),
        beside("brief", (20, 1), (2, 0), (78, 1)),
        ready,
        beside("ready", (20, 1), (80, 0)),
        beside("no-sidecar", (20, 1), (80, 0)),
    )


@scenes
def after_a_hang():
    """One cause, one page, also where vLLM comes back more than once before it works."""
    hangs = of_its_model("hangs").hanging((20, 26)).failing(lambda n: 52 <= n < 90)
    crashes = of_its_model("crashes").hanging((20, 26)).restarting(28, 32, 36)
    crashes.failing(lambda n: 52 <= n < 78 and (n / 2 - 26) % 4 < 2)
    yield Scene(
        "a hang has paged already",
        DOWN,
        at=(19, 24, 36, 40),
        reads=(STALLED,),
        needs_prometheus=True,
    ).with_pods(hangs, crashes)


@scenes
def loading():
    """All pods of a model are replaced, as by the strategy Recreate."""

    def replaced(name, loads, first=0.0, **limits):
        """A pod that loads for ``first`` minutes, and at minute 40 one that loads longer."""
        old = Pod(f"{name}-old", model=name, namespace=name, minutes=38).drafting(5, 0.8)
        old.failing(lambda n: n < 2 * first)
        new = Pod(f"{name}-new", model=name, namespace=name, start=40, **limits).drafting(5, 0.8)
        return old, new.failing(lambda n: n < 2 * loads)

    def pages(pods, since, until=None):
        pods[1].outage_fires(since=since, **({} if until is None else {"until": until}))
        return pods

    # What answers at the new pod's address is not vLLM: nobody knows whether that loads.
    blind = replaced("blind", 90)
    blind[1].failing(lambda _: True, NoVllmMetrics("none"))
    other = Pod("other", namespace="served", minutes=100).drafting(5, 0.8)
    renamed = Pod("name-old", model="before", namespace="rename", minutes=38).drafting(5, 0.8)
    yield Scene(
        "late by startup_time, or by its last load",
        DOWN,
        at=(39, 46, 52, 58, 68, 72, 95),
        needs_prometheus=True,
    ).with_pods(
        *pages(replaced("never", 90), since=72),
        *replaced("slow", 25),
        *pages(replaced("patient", 90, startup_time=900), since=58),
        *pages(replaced("quick", 90, first=7), since=52, until=95),
        *replaced("as-ever", 8, first=7),
        *blind,
        *pages(replaced("at-once", 90, first=1), since=46),
        renamed,
        Pod("name-new", model="after", namespace="rename", start=40).drafting(5, 0.8),
        other,
        Pod("rolls", namespace="served", start=40).drafting(5, 0.8).failing(lambda _: True),
    )


@scenes
def gone():
    """Targets that are gone say nothing; kube-state-metrics may."""

    def kube(name, metric, *phases, namespace, **labels):
        made = Pod(name, minutes=0).plain(metric, *phases, **labels)
        made.own = {"namespace": namespace, "job": "kube-state-metrics", "instance": "ksm:8080"}
        return made

    def evicted(namespace, name=POD, minutes=40):
        pod = Pod(name, model=namespace, namespace=namespace, minutes=minutes).drafting(5, 0.8)
        pod.own |= {"pod": name}
        return pod

    def wanted(namespace, replicas=1, name="vllm"):
        return kube(
            f"ksm-{namespace}", "kube_deployment_spec_replicas", (100, replicas),
            namespace=namespace, deployment=name,
        )  # fmt: skip

    def paged(namespace, since=52):
        return Firing({"namespace": namespace, "model_name": namespace}, 0, since=since)

    new = Pod("new", model="new-name", namespace="renamed", start=42, minutes=58)
    loads = Pod("loads", model="loads", namespace="loads", start=44).failing(lambda _: True)
    for pod, suffix in ((new, "aaaaa"), (loads, "bbbbb")):
        pod.drafting(5, 0.8).own["pod"] = f"vllm-7d9c4bf6c5-{suffix}"
    leader = kube(
        "ksm-set", "kube_statefulset_replicas", (100, 2), namespace="set", statefulset="vllm"
    )
    pending = kube(
        "ksm-pending", "kube_pod_status_phase", (41, 0), (59, 1),
        namespace="pending", phase="Pending", pod="vllm-7d9c4bf6c5-ccccc",
    )  # fmt: skip
    pods = (
        evicted("evicted"), wanted("evicted"),
        evicted("zero"), wanted("zero", replicas=0),
        evicted("other"), wanted("other", name="another"),
        evicted("set", "vllm-0"), leader,
        evicted("pending"), pending,
        evicted("renamed"), wanted("renamed"), new,
        evicted("loads"), wanted("loads"), loads,
    )  # fmt: skip
    known = [paged("evicted"), paged("set"), paged("pending")]
    yield Scene(
        "a page where there should be pods", DOWN, at=(47, 52, 70), fleet=known,
        needs_prometheus=True,
    ).with_pods(*pods)  # fmt: skip
    yield Scene("what kube-state-metrics knows is no question", GONE, at=(47, 52, 90)).with_pods(
        *pods
    )

    unknown = evicted("unknown")
    idle = Pod("idle", model="idle", namespace="idle", minutes=40)
    idle.drafting(plan((20, 5), (0, 0)), 0.8, requests=after(20, 10, 0))
    plain = Pod("plain", model="plain", namespace="plain", minutes=40).drafting(5, 0.8)
    loading_anew = Pod("anew", model="anew", namespace="anew", minutes=40).drafting(5, 0.8)
    anew = Pod("next", model="anew", namespace="anew", start=44).drafting(5, 0.8)
    sets = evicted("sets", "vllm-0")
    none = kube("ksm-none", "kube_statefulset_replicas", (120, 0), namespace="sets")
    for made in (sets, none):
        made.own |= {"cluster": "with-sets"}
    told = [
        Firing({"namespace": name, "model_name": name}, since=since, until=until)
        for name, since, until in (("unknown", 50, 90), ("plain", 50, 90), ("paged-first", 52, 52))
    ]
    # It was down before it was gone: that has paged, and goes on for ten minutes.
    paged_first = evicted("paged-first").failing(lambda n: n >= 54)
    yield Scene(
        "a warning where nobody knows, for an hour",
        GONE,
        at=(47, 50, 52, 90, 105),
        fleet=told,
        reads=(DOWN,),
        needs_prometheus=True,
    ).with_pods(
        paged_first,
        unknown, idle, plain, loading_anew, anew.failing(lambda n: n < 120), sets, none,
        Pod("links", minutes=120, namespace="links", model="links").drafting(5, 0.8),
    )  # fmt: skip

    nothing = Pod("none", minutes=0).plain(
        "specdec_links_info", (90, 1), runbooks=RUNBOOKS, dashboards=DASHBOARDS
    )
    nothing.own = {}
    yield Scene("one alert on it", NO_SIDECAR, at=(41, 70), reads=(GONE,)).with_pods(
        nothing, evicted("last")
    )


@scenes
def the_way_to_a_runbook():
    """Through a pod that lives, of the same model if there is one, and at its own port."""

    def pod(name, port, *phases, model="m"):
        made = of_its_model(name, *phases, model=model, minutes=phases[0][0])
        made.own |= {"pod": name, "instance": f"{name}:{port}"}
        del made.environment["SPECDEC_ALERTING__RUNBOOKS"]
        return made

    way = "For the runbook, first: kubectl -n prod port-forward alike 9911:21405"
    where = {"runbook_url": f"http://localhost:9911/runbooks/{DOWN}.md"}
    states = (
        "Last answer 0s ago.",
        "Down: dead.",
        "Look: kubectl -n prod get pods; describe pod POD; logs POD -c vllm --previous",
        way,
    )
    page = Firing({"namespace": "prod", "model_name": "m"}, 0, since=30)
    page.annotations |= where | {"context": "\n".join(states)}
    dead = pod("dead", 21401, (20, 1), (40, 0)).fires(severity="warning", since=30)
    dead.firings[0].annotations |= where | {"context": f"\n{way}"}
    yield Scene(
        "the runbook is behind a pod that lives",
        DOWN,
        at=(19, 30),
        fleet=[page],
        needs_prometheus=True,
    ).with_pods(
        dead,
        beside("dead", (20, 1), (40, 0)),
        pod("another", 21409, (60, 1), model="another"),
        pod("alike", 21405, (60, 1)),
    )


@scenes
def what_is_known_of_its_pods():
    """Of a page: which pods are down, of which nobody knows, and which have never been read."""
    first = without_vllm("dead-1", (20, 60), model="m")
    second = without_vllm("dead-2", (22, 60), model="m")
    first.away(25, 26)  # its sidecar, which is no new pod for that
    new = Pod("new", model="m", start=22).failing(lambda _: True)
    silent = of_its_model("silent", (20, 1), (40, 0), model="m", minutes=20)
    states = (
        "Last answer 9m 0s ago.",
        "Down: dead-1:9911 dead-2:9911.",
        "Unknown, as only the sidecar is gone: silent:9911.",
        "New, and never read yet: new:9911 (8m 0s).",
        "Look: kubectl -n prod get pods; describe pod POD; logs POD -c vllm --previous",
    )
    page = Firing({"namespace": "prod", "model_name": "m"}, 0, since=30)
    page.annotations |= {"context": "\n".join(states)}
    for pod in (first, second):
        pod.fires(severity="warning", since=30, context=("",))
    yield Scene(
        "its pods by state", DOWN, at=(19, 30), fleet=[page], needs_prometheus=True
    ).with_pods(first, second, silent, new)
