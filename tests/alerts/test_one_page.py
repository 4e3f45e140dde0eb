"""What people on call have lived through: each outage pages once, and nothing else pages."""

from dataclasses import dataclass

import pytest

from tests.alerts.notified import firing, notices
from tests.alerts.pods import DAY, Pod
from tests.alerts.vllm_pages import after, plan

LOW, COLLAPSED, SLOWER = (
    f"SpecDecode{name}" for name in ("AcceptanceLow", "AcceptanceCollapsed", "SlowerThanPlain")
)
ACROSS, DOWN = "SpecDecodeAcceptanceLowAcrossPods", "SpecDecodeVLLMDown"
STALLED = "SpecDecodeEngineStalled"


@dataclass(frozen=True)
class Situation:
    """``page`` is the only alert that pages, between ``start`` and ``within`` minutes later.

    Without one, nothing pages.
    """

    name: str
    pods: tuple
    minutes: int
    page: str | None = None
    start: float = 0
    within: float = 0


def good(name, **lives):
    """A pod with the plug-in whose speculation pays by its rates."""
    return Pod(name, **lives).bucket("0", 3, 0.85).bucket("1+", 2, 0.7).finishing(0.7)


def target(pod, *phases):
    """With what Prometheus knows of its target, from the pod's start on."""
    return pod.plain("up", *(phases or ((pod.minutes, 1),)))


def without_vllm(pod, *spans):
    """vLLM does not respond within spans of minutes, and has restarted after each."""
    pod.failing(lambda n: any(start * 2 <= n < end * 2 for start, end in spans))
    return pod.restarting(*(end for _, end in spans))


def again_and_again(pod):
    """Its sidecar restarts every ten minutes, and is away for one."""
    pod.gap = set(range(20, pod.minutes, 10))
    return target(pod, *[(1, 0 if minute in pod.gap else 1) for minute in range(pod.minutes)])


def machine_of(pod):
    """The pod, and its machine's exporter, which dies with it."""
    exporter = Pod(pod.own["instance"], minutes=0).plain("up", (pod.minutes, 1), (80, 0))
    address = pod.own["instance"].partition(":")[0]
    exporter.own |= {"job": "node", "instance": f"{address}:9100"}
    return pod, exporter


def quiet():
    """Nothing that anyone should get up for."""
    old = (good(f"old{n}", minutes=40 + 5 * n) for n in range(3))
    new = (good(f"new{n}", start=34 + 5 * n) for n in range(3))
    for pod in (rolled := [*old, *new]):
        pod.minutes = pod.minutes or 100 - pod.start
        target(pod)
    for pod in rolled[3:]:
        pod.failing(lambda n: n < 12)
    yield Situation("a rollout", tuple(rolled), 100)

    slow = target(good("slow", minutes=100)).failing(lambda n: n < 70)
    yield Situation("a model that loads for 35 minutes", (slow,), 100)

    night = [target(good(name, minutes=40)) for name in ("a", "b")]
    morning = target(good("c", start=110, minutes=40))
    yield Situation("scaled to zero for the night", (*night, morning), 150)

    canary = Pod("canary", start=30, minutes=100).drafting(5, 0.42, k=6)
    stays = [target(good(name, minutes=130)) for name in ("a", "b")]
    yield Situation("a canary with more draft tokens", (*stays, canary), 130)

    spot = [good(f"s{n}", start=18 * n, minutes=20) for n in range(5)]
    for pod in spot:
        target(pod, (20, 1), (8, 0))
    yield Situation("spot nodes that are lost every 18 minutes", tuple(spot), 110)

    always = [Pod(f"s{n}", start=18 * n, minutes=20).drafting(5, 0.4) for n in range(6)]
    yield Situation("spot nodes whose rate was never higher", tuple(always), 110)

    few = [target(good(name, minutes=100)) for name in ("a", "b")]
    many = [target(good(f"x{n}", start=40, minutes=30)) for n in range(4)]
    yield Situation("autoscaling from two pods to six and back", (*few, *many), 100)

    evening = Pod("a").bucket("0", plan((40, 4.5), (60, 0.6), (0, 4.5)), 0.88)
    evening.bucket("1+", plan((40, 0.5), (60, 4.4), (0, 0.5)), 0.38).minutes = 150
    yield Situation("an evening of hot requests, as on every evening", (evening,), 150)

    one = target(good("a", minutes=40), (40, 1), (80, 0))
    others = [target(good(name, minutes=120)) for name in ("b", "c")]
    yield Situation("one pod of three dies with its machine", (*machine_of(one), *others), 120)

    alone = target(good("a", minutes=40), (40, 1), (80, 0))
    yield Situation("a sidecar dies, and nobody knows more", (alone,), 120)

    idle = Pod("a").bucket("0", plan((40, 3), (60, 0.01), (0, 3)), 0.85)
    idle.bucket("1+", plan((40, 2), (60, 0.005), (0, 2)), 0.7).minutes = 140
    yield Situation("an idle night", (idle,), 140)

    gap = Pod("a", minutes=120).drafting(5, 0.35).away(60, 72)
    yield Situation("a gap of Prometheus while a rate is low as always", (gap,), 120)

    old = [Pod(f"o{n}", minutes=DAY - 10, poll=60).drafting(5, 0.80) for n in range(2)]
    new = [Pod(f"n{n}", start=DAY - 5, minutes=90, poll=60).drafting(5, 0.73) for n in range(2)]
    yield Situation("an upgrade that costs six points of acceptance", (*old, *new), DAY + 84)

    mix = Pod("a", poll=60, minutes=DAY + 80).bucket("0", after(DAY, 4.5, 2.0), 0.88)
    weekend = mix.bucket("1+", after(DAY, 0.5, 3.0), 0.60)
    yield Situation("the first weekend's mix", (weekend,), DAY + 80)

    swings = Pod("a", minutes=260).drafting(5, plan((20, 0.8), *[(10, 0.47), (10, 0.53)] * 11))
    yield Situation("a rate that swings around the threshold", (swings,), 260)

    pays = Pod("a", minutes=100).bucket("0", 4, 0.9).bucket("1+", 1.5, after(30, 0.7, 0.3))
    yield Situation("a temperature drops where time says that it pays", (pays.timed(1.25),), 100)

    one_pass = Pod("a", minutes=80).drafting(5, after(30, 0.6, 0.2), k=15)
    yield Situation("an unnamed method that drafts 15 tokens", (one_pass,), 80)


def outages():
    """What must page, once."""
    both = Pod("a", minutes=100).drafting(5, after(30, 0.85, 0.35)).timed(after(30, 1.4, 0.8))
    yield Situation("low by rate and slow by time", (both,), 100, SLOWER, 30, 20)

    apart = Pod("a", minutes=130).drafting(5, after(30, 0.85, 0.4)).timed(after(60, 1.02, 0.8))
    yield Situation("first the rate, half an hour later the time", (apart,), 130, SLOWER, 60, 20)

    known = Pod("a", minutes=130).drafting(5, after(30, 0.85, 0.4)).untimed(0.8)
    plain = Pod("plain", start=70, minutes=60).generating(50)
    yield Situation("the time becomes known after the page", (known, plain), 130, LOW, 30, 20)

    load = [
        Pod(f"b{n}", minutes=120).drafting(5, 0.6).timed(plan((40, 1.3), (30, 0.85), (0, 1.3)))
        for n in range(2)
    ]
    yield Situation("a load at which drafting costs time", tuple(load), 120, SLOWER, 40, 25)

    hovers = Pod("a", minutes=260).drafting(
        5, plan((30, 0.8), *[(12, 0.40), (6, 0.54)] * 12, (0, 0.8))
    )
    yield Situation("a rate that hovers for hours", (hovers,), 260, LOW, 30, 20)

    pair = [Pod("a", minutes=80).drafting(5, after(30, 0.85, 0.35)) for _ in "ab"]
    for pod, replica in zip(pair, "ab", strict=True):
        pod.own["prometheus_replica"] = replica
    yield Situation("a drop, seen by two Prometheus", tuple(pair), 80, LOW, 30, 20)

    old = [Pod(f"o{n}", minutes=100).drafting(5, 0.8) for n in range(2)]
    new = [Pod(f"n{n}", start=98, minutes=62).drafting(5, 0.35) for n in range(2)]
    yield Situation("a rollout of a worse draft", (*old, *new), 160, LOW, 98, 20)

    old = [Pod(f"o{n}", minutes=40).drafting(5, 0.8) for n in range(2)]
    new = [Pod(f"n{n}", start=38, minutes=62).drafting(5, 0.01, first=0.02) for n in range(2)]
    yield Situation(
        "a rollout after which nothing is accepted", (*old, *new), 100, COLLAPSED, 38, 20
    )

    sudden = Pod("a", minutes=100).drafting(5, after(30, 0.8, 0.01)).timed(after(30, 1.3, 0.5))
    yield Situation("a collapse that is measured, too", (sudden,), 100, COLLAPSED, 30, 25)

    slow = plan((30, 0.8), *[(5, 0.8 - 0.08 * step) for step in range(1, 10)], (0, 0.01))
    yield Situation(
        "a rate that sinks until nothing is accepted",
        (Pod("a", minutes=130).drafting(5, slow),),
        130, LOW, 50, 20,
    )  # fmt: skip

    churn = [Pod(f"s{n}", start=60 + 8 * n, minutes=8).drafting(5, 0.35) for n in range(9)]
    before = Pod("before", minutes=62).drafting(5, 0.8)
    yield Situation("pods that drop and are soon replaced", (before, *churn), 132, LOW, 60, 15)

    fixed = [Pod(f"o{n}", minutes=70 + 4 * n).drafting(5, after(20, 0.8, 0.35)) for n in range(2)]
    plain = [Pod(f"n{n}", start=68 + 4 * n, minutes=50).generating(50) for n in range(2)]
    yield Situation("a drop until its fix is rolled out", (*fixed, *plain), 118, LOW, 20, 20)

    restart = without_vllm(target(good("a", minutes=90)), (40, 52))
    yield Situation("a restart in place that takes 12 minutes", (restart,), 90, DOWN, 40, 5)

    loop = without_vllm(good("a", minutes=120), *[(30 + 8 * n, 35 + 8 * n) for n in range(5)])
    yield Situation(
        "a crash loop, five minutes down and three up", (target(loop),), 120, DOWN, 30, 5
    )

    fast = without_vllm(good("a", minutes=120), *[(30 + 2 * n, 31 + 2 * n) for n in range(20)])
    yield Situation("a crash loop of one minute", (target(fast),), 120, DOWN, 30, 12)

    hangs = target(good("a", minutes=110)).hanging((40, 47))
    yield Situation(
        "an engine hangs, and a probe restarts it, which takes ten minutes",
        (without_vllm(hangs, (47, 57)),),
        110, STALLED, 40, 5,
    )  # fmt: skip

    dies = without_vllm(good("a", minutes=46), (40, 46))
    target(dies, (46, 1), (74, 0))
    yield Situation("vLLM dies, and six minutes later its pod", (dies,), 120, DOWN, 40, 5)

    last = target(good("a", minutes=40), (40, 1), (80, 0))
    yield Situation("a model's last pod dies with its machine", machine_of(last), 120, DOWN, 40, 6)

    loads = without_vllm(good("a", minutes=120), *[(30 + 7 * n, 34.5 + 7 * n) for n in range(6)])
    yield Situation("a crash loop that loads for 4.5 minutes", (target(loads),), 120, DOWN, 30, 5)


def no_outages():
    """What looks like one."""
    gains = Pod("a", minutes=100).bucket("0", 4, 0.78).bucket("1+", 1.5, after(30, 0.53, 0.48))
    yield Situation("a pod that gains, of which one temperature sinks", (gains,), 100)

    restarts = again_and_again(good("a", minutes=130))
    yield Situation("a healthy pod whose sidecar restarts every ten minutes", (restarts,), 130)

    rolls = [target(good(f"old{n}", minutes=130)) for n in range(3)]
    broken = target(good("new", start=42, minutes=88)).failing(lambda _: True)
    yield Situation("a rollout whose first new pod never starts", (*rolls, broken), 130)

    old, new = target(good("old", minutes=40)), target(good("new", start=42, minutes=78))
    new.failing(lambda n: n < 40)
    yield Situation("the strategy Recreate, with a load of 20 minutes", (old, new), 120)

    elsewhere = Pod("a", minutes=60).drafting(5, 0.8).timed(0.55)
    elsewhere.on("NVIDIA L40S", measured_on="NVIDIA H100 80GB HBM3")
    yield Situation("a baseline that was measured on a faster accelerator", (elsewhere,), 60)

    before = target(good("old", minutes=60, model="before"))
    renamed = target(good("new", start=58, minutes=60, model="after"))
    yield Situation("a model that is renamed", (before, renamed), 118)

    blind = [target(good(f"p{n}", minutes=40), (40, 1), (60, 0)) for n in range(3)]
    alive = []
    for pod in blind:
        direct = Pod(pod.own["instance"], minutes=0).plain("up", (100, 1))
        direct.own |= {"job": "direct", "instance": pod.own["instance"].replace("9911", "8000")}
        alive.append(direct)
    yield Situation("a policy that blinds every sidecar", (*blind, *alive), 100)

    faster = [Pod(f"o{n}", minutes=40).drafting(5, 0.75, k=2) for n in range(2)]
    longer = [Pod(f"n{n}", start=38, minutes=60).drafting(5, 0.46, k=6) for n in range(2)]
    yield Situation("a rollout of longer drafts, of which less is accepted", (*faster, *longer), 98)

    back = [
        target(good(f"a{n}", start=50 * n, minutes=30), (30, 1), (2, 0)).failing(lambda n: n < 8)
        for n in range(3)
    ]
    yield Situation("scaled to zero and back, again and again", tuple(back), 140)

    in_turn = [
        without_vllm(target(good(f"a{n}", minutes=90)), (30 + 7 * n, 36 + 7 * n)) for n in range(6)
    ]
    yield Situation("six pods that are restarted in turn", tuple(in_turn), 90)


def more_outages():
    """Of a model, of what would say so, and of what lasts for twenty minutes."""
    old = target(good("old", minutes=40))
    new = target(good("new", start=42, minutes=88)).failing(lambda _: True)
    yield Situation(
        "the strategy Recreate, and the new vLLM never starts", (old, new), 130, DOWN, 40, 34
    )

    comes = target(good("a", minutes=130)).failing(lambda n: 60 <= n < 200 and n // 6 % 2 == 0)
    yield Situation("vLLM is away three of every six minutes", (comes,), 130, DOWN, 30, 20)

    often = target(good("a", minutes=130)).failing(lambda n: 60 <= n < 200 and n % 14 < 6)
    yield Situation("vLLM is away three of every seven minutes", (often,), 130, DOWN, 30, 20)

    whole = good("a", minutes=130).restarting(*range(33, 100, 6))
    whole.gap = {minute for minute in range(30, 100) if minute // 3 % 2 == 0}
    target(whole, (30, 1), *[(3, 0), (3, 1)] * 12, (30, 1))
    yield Situation("a pod is away as a whole, three of six minutes", (whole,), 130, DOWN, 30, 20)

    for name, acceptance, page in (("drop", 0.35, LOW), ("collapse", 0.01, COLLAPSED)):
        pod = Pod("a", minutes=110).drafting(5, after(40, 0.8, acceptance))
        yield Situation(
            f"a {name} while the sidecar restarts every ten minutes",
            (again_and_again(pod),),
            110, page, 40, 20,
        )  # fmt: skip

    hard = good("a", minutes=120)
    hard.bucket("0", 5, plan((40, 0.75), (20, 0.42), (0, 0.75))).bucket("1+", 0, 0.7)
    yield Situation("twenty minutes of harder text", (target(hard),), 120, LOW, 40, 20)

    cut_off = []
    for n in range(6):
        pod = good(f"10.0.0.{n}", minutes=90)
        node = Pod(f"10.0.0.{n}", minutes=0)
        node.own |= {"job": "node", "instance": f"10.0.0.{n}:9100"}
        phases = ((40, 1), (15, 0), (35, 1)) if n < 3 else ((90, 1),)
        pod.gap = set(range(40, 55)) if n < 3 else set()
        cut_off += [target(pod, *phases), node.plain("up", *phases)]
    yield Situation("half of the nodes lose their network", tuple(cut_off), 90, DOWN, 40, 6)

    poisoned = [
        without_vllm(target(good(f"a{n}", minutes=120)), (30 + 3 * n, 42 + 3 * n)) for n in range(8)
    ]
    yield Situation("a request that brings down pod after pod", tuple(poisoned), 120, DOWN, 30, 20)

    models = [
        without_vllm(target(good(f"m{n}", minutes=90, model=f"m{n}")), (30, 60)) for n in range(3)
    ]
    yield Situation("three models at once", tuple(models), 90, DOWN, 30, 5)


QUIET = (*quiet(), *no_outages())
OUTAGES = (*outages(), *more_outages())


def shown(situation):
    return situation.name


def pages(situation):
    told = notices(firing(situation.pods, situation.minutes))
    return [(notice.alert, notice.minute) for notice in told if notice.receiver == "pagerduty"]


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("situation", QUIET, ids=shown)
def test_what_is_no_outage_pages_nobody(situation):
    """Deployments, scaling, and pods that were always idle are among them."""
    assert pages(situation) == []


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("situation", OUTAGES, ids=shown)
def test_an_outage_pages_once_and_in_time(situation):
    """One cause, one page, whatever else fires as information."""
    ((alert, minute),) = pages(situation)
    assert alert == situation.page
    assert situation.start < minute <= situation.start + situation.within


@pytest.mark.slow
@pytest.mark.servers
def test_a_cluster_pages_for_itself():
    """Two clusters with the same bad rollout are two groups of people, and one page each."""
    pods = [Pod(name, minutes=60).drafting(5, after(20, 0.85, 0.35)) for name in ("eu", "us")]
    for pod in pods:
        pod.own["cluster"] = pod.own["instance"].partition(":")[0]

    told = [notice for notice in notices(firing(pods, 60)) if notice.receiver == "pagerduty"]

    assert sorted(notice.group[0] for notice in told) == ["eu", "us"]
