"""Scenes for what only Prometheus knows: other pods, other times."""

from dataclasses import replace

from sidecar.requests.messages import Speculation
from tests.alerts.pods import DAY, Firing, Pod
from tests.alerts.scene import Scene, scenes
from tests.alerts.scenes_judged import ADAPTIVE, COLLAPSED, LOW, NOT_JUDGED, SLOWER
from tests.alerts.vllm_pages import PROMPT_TOKENS, REQUESTS, after, plan, planned

ACROSS, REGRESSED = "SpecDecodeAcceptanceLowAcrossPods", "SpecDecodeAcceptanceRegressed"
STOPPED, NET_NEGATIVE = "SpecDecodeStopped", "SpecDecodeNetNegative"


@scenes
def across_pods():
    """Pods that lose and are replaced.

    In another namespace such a pod stays, and fires by itself.
    """

    def replaced(instance, acceptance, *, namespace="prod", requests=20, minutes=range(0, 88, 8)):
        """Pods of eight minutes each, that begin at ``minutes``."""
        for start in minutes:
            pod = Pod(f"{instance}-{start}", start=start, minutes=8, namespace=namespace)
            yield pod.drafting(5, acceptance, requests=requests)

    def across(namespace="prod", severity="warning", **minutes):
        labels = {"model_name": "m", "namespace": namespace}
        return Firing(labels, severity=severity, **minutes)

    def before(instance, minutes, acceptance=0.8):
        """A pod that did not lose, so that those after it dropped."""
        pod = Pod(f"{instance}-before", namespace=instance, minutes=minutes)
        return pod.drafting(5, acceptance, requests=20)

    yield Scene(
        "bad pods that are replaced before they can fire",
        ACROSS,
        at=(10, 40, 85, 115, 135),
        fleet=[
            across(until=115),
            across("margin", until=115),
            across("late", until=40),
            across("thumb", until=115),
            across("slower", "critical", until=115),
            across("both", "critical", until=115),
            across("collapses", "critical", until=115),
        ],
        reads=(LOW, COLLAPSED, SLOWER),
    ).with_pods(
        *replaced("bad", 0.3),
        *replaced("good", 0.6, namespace="good"),
        *replaced("slow", 0.3, namespace="slow", requests=2),
        *replaced("margin", after(4, 0.3, 0.515), namespace="margin"),
        *[pod.timed(1.3) for pod in replaced("pays", 0.3, namespace="pays")],
        *[pod.untimed(1.3) for pod in replaced("faster", 0.3, namespace="plain")],
        Pod("plain", namespace="plain").generating(50),
        *[pod.speculating(ADAPTIVE) for pod in replaced("adaptive", 0.17, namespace="adaptive")],
        *replaced("late", 0.3, namespace="late", minutes=(16, 24, 32)),
        Pod("stays", namespace="staging").drafting(5, 0.3),
        Pod("recovers", namespace="test").drafting(5, after(25, 0.3, 0.9)),
        # Information about a pod that pays holds no page back.
        *replaced("thumb", 0.3, namespace="thumb"),
        Pod("paying", namespace="thumb").drafting(5, 0.3).timed(1.6),
        *[pod.timed(0.8) for pod in replaced("slower", 0.7, namespace="slower")],
        *replaced("collapses", 0.01, namespace="collapses"),
        # One cause has one alert.
        *replaced("unmeasured", 0.3, namespace="both"),
        *[pod.timed(0.8) for pod in replaced("measured", 0.7, namespace="both")],
        # One that hovers is not replaced, and has a page of its own.
        Pod("hovers", namespace="hovers").drafting(5, plan(*[(6, 0.36), (3, 0.5)] * 15)),
    )
    yield Scene(
        "pods that begin low where their model was not page by themselves, however soon replaced",
        LOW,
        at=(90, 110, 140),
        reads=(COLLAPSED, SLOWER),
        needs_prometheus=True,  # a new pod's own sidecar knows no past
    ).with_pods(
        before("dropped", 98),
        *[
            pod.fires(0.3, severity="critical", since=start + 6, until=start + 24)
            for start in range(96, 144, 8)
            for pod in replaced("dropped", 0.3, namespace="dropped", minutes=[start])
        ],
    )


@scenes
def regressed():
    """Ninety minutes at one acceptance and, a day later, at another."""

    def pod(
        instance,
        past,
        now,
        model="m",
        *,
        falls=None,
        namespace="prod",
        minutes=90,
        k=(3, 3),
        drafts=5,
        **limits,
    ):
        """Acceptance None: it is not there. ``falls``: the alert fires with this value."""
        made = Pod(instance, model=model, namespace=namespace, minutes=DAY + 90, poll=60, **limits)
        made.drafting(
            plan((minutes, drafts if past else 0), (DAY - minutes, 0), (0, drafts if now else 0)),
            after(DAY, past, now),
            k=after(DAY, *k),
            requests=plan(
                (minutes, 10 if past else 0), (DAY - minutes, 0), (0, 10 if past or now else 0)
            ),
        )
        if falls is not None:
            made.fires(falls, since=DAY + 30)
        return made.away(minutes if past else 0, DAY)

    def steady(instance, now):
        """A pod that is there all day, so that it is known to vary by 1.5 points at most."""
        made = Pod(instance, minutes=DAY + 46, poll=60)
        return made.drafting(5, after(DAY, 0.8, now), requests=10)

    engines = pod("engines", 0.8, 0.5, falls=0.2)
    engines.drafting(plan((90, 2.5), (DAY - 90, 0), (0, 2.5)), after(DAY, 0.5, 0.5), engine="1")
    yield Scene(
        "below the same hour of the day before, the pod's own or else its model's, by more than it"
        " varies",
        REGRESSED,
        at=(85, DAY + 25, DAY + 45),
    ).with_pods(
        pod("fell", 0.8, 0.605, falls=0.195),
        pod("less", 0.8, 0.64),
        engines,
        pod("rose", 0.7, 0.8),
        pod("small", 0.8, 0.6, falls=0.2, drafts=0.8),
        pod("strict", 0.8, 0.6, falls=0.2, acceptance_regression=0.19),
        pod("lenient", 0.8, 0.6, acceptance_regression=0.21),
        pod("k-alike", 0.8, 0.6, falls=0.2, k=(3, 3.12)),
        pod("k-more", 0.8, 0.6, k=(3, 3.5)),
        pod("k-own", 0.8, 0.6, falls=0.2, k=(5, 5)),
        pod("brief", 0.8, 0.6, minutes=10, model="another"),
        pod("half-an-hour", 0.8, 0.6, falls=0.2, minutes=34, model="half"),
        pod("old", 0.8, None, "new"),
        pod("old-too", 0.5, None, "new", drafts=2.5),
        pod("old-brief", 0.1, None, "new", minutes=10),
        pod("fresh", None, 0.5, "new", falls=0.2),
        pod("elsewhere", None, 0.6, "new", namespace="staging"),
        pod("young", None, 0.3, "young"),
        pod("adaptive", 0.8, 0.6, "adaptive").speculating(ADAPTIVE),
    )
    yield Scene(
        "of a rate that hardly varied all day, a smaller drop is clear",
        REGRESSED,
        at=(85, DAY + 25, DAY + 45),
    ).with_pods(
        steady("fell", 0.715).fires(0.085, since=DAY + 30),
        steady("less", 0.74),
    )

    def known(instance, now, *, model="m", k=None, now_k=3, start=0, **limits):
        """Its own rate of the day before is recorded already, and with ``k`` how it drafted."""
        made = Pod(instance, model=model, start=start, **limits).drafting(5, now, k=now_k)
        made.plain("pod:specdec_engine_acceptance:day_before", (40, 0.8), model_name=model)
        if k is not None:
            name = "pod:specdec_engine_draft_tokens:per_draft_day_before"
            made.plain(name, (40, k), model_name=model)
        return made

    # What Prometheus knows from before the scene: of two models, and of how a pod's rate varies.
    past, before = Pod("past", minutes=0), Pod("hardly-varies", minutes=0)
    past.own = {"namespace": "prod"}
    drafted = {"draft_tokens": "3"}
    past.plain("model_temperature:specdec_acceptance:mean8h", (1, 0.8), model_name="m", **drafted)
    k = "specdec_engine_draft_tokens:per_draft_day_before"
    past.plain(f"model:{k}", (40, 3), model_name="new")
    variance = "pod_temperature:specdec_acceptance:variance2d"
    before.plain(variance, (1, 0.0004), model_name="m", **drafted)
    hardly = known("hardly-varies", 0.7, k=3, start=3, acceptance_regression=0.095)
    yield Scene(
        "by more than it varies, for half an hour, while it drafts as many tokens",
        REGRESSED,
        at=(28, 37),
        needs_prometheus=True,
    ).with_pods(
        past,
        before,
        hardly.fires(0.1, since=37),
        known("lenient", 0.6, k=3, start=3, acceptance_regression=0.21),
        known("k-more", 0.5, k=3.3, start=3),
        known("adaptive", 0.5, k=3, model="adaptive").speculating(ADAPTIVE),
        known("fresh", 0.6, model="new", now_k=3.12).fires(0.2, since=37),
        known("less", 0.65, model="new", now_k=3.12),
    )
    before = Speculation(method="eagle3", num_speculative_tokens=3)
    was = "adaptive_verification=false method=eagle3 num_speculative_tokens=3"
    changes = f"Speculation has changed since this time yesterday; it was {was}."
    changed = pod("changed", None, 0.6).speculating(
        replace(before, rejection_sample_method="block")
    )
    changed.fires(0.2, since=DAY + 30, context=("Acceptance rate 60% (threshold 50%).", changes))
    yield Scene(
        "it names a change of how vLLM speculates", REGRESSED, at=(DAY + 25, DAY + 45)
    ).with_pods(
        pod("old", 0.8, None).speculating(before),
        changed,
    )


@scenes
def stopped():
    off, part = after(40, 5, 0), after(40, 0.6, 0)
    engines = Pod("engines").drafting(part, 0.8, requests=0).generating(0.6).fires(1.2, since=60)
    engines.drafting(part, 0.8, requests=0, engine="1").generating(0.6, engine="1")
    yield Scene(
        "tokens but no drafts, where there were drafts before", STOPPED, at=(38, 57, 64)
    ).with_pods(
        Pod("off").drafting(off, 0.8).generating(10).fires(10 + REQUESTS / 60, since=60),
        Pod("vanished")
        .drafting(after(40, 5, None), 0.8)
        .generating(10)
        .fires(10 + REQUESTS / 60, since=60),
        Pod("hardly").drafting(after(40, 0.9, 0), 0.8).generating(10),
        Pod("idle").drafting(off, 0.8, requests=0).generating(0.95),
        Pod("less").drafting(after(40, 5, 0.1), 0.8).generating(10),
        Pod("slow")
        .drafting(after(40, 1.05, 0), 0.8, requests=0)
        .generating(1.05)
        .fires(1.05, since=60),
        engines,
        Pod("never").generating(10),
    )


@scenes
def net_negative():
    def fleet(model, spec, plain=(0.03, 0.08), then=None, **options):
        """``then``: what those that speculate take after 50 minutes."""

        def pod(instance, pair, factor=1.0, **more):
            p50, p99 = pair
            return Pod(f"{model}-{instance}", model=model, **options).tpot(
                p50 * factor, p99 * factor, **more
            )

        late = {"minutes": 50, "then": then}
        yield pod("a", spec, 0.9, **late).drafting(5, 0.6).generating(10)
        yield pod("b", spec, 1.1, **late).drafting(1.05, 0.6).generating(10)
        yield pod("c", plain, 0.9).generating(10)
        yield pod("d", plain, 1.1).generating(0.9)  # and each request's first token
        # None of these says anything of what speculation costs.
        yield pod("idle", (0.01, 0.011)).generating(0.78)
        yield pod("slow", (9, 9.1)).drafting(0.95, 0.6).generating(10)
        yield pod("stopped", (0.001, 0.0011)).drafting(after(10, 5, 0), 0.6).generating(10)

    def slower(model, until=99):
        for quantile, times in (("0.5", 1.15), ("0.99", 1.2)):
            labels = {"model_name": model, "namespace": "prod", "quantile": quantile}
            yield Firing(labels, times, since=55, until=until)

    yield Scene(
        "averages over the pods that tell, by the namespace's most patient setting",
        NET_NEGATIVE,
        at=(30, 55, 65),
        fleet=[*slower("slower"), *slower("better", until=55)],
    ).with_pods(
        *fleet("slower", (0.0345, 0.096)),
        *fleet("better", (0.0345, 0.096), then=(0.03, 0.08)),
        *fleet("close", (0.0315, 0.084)),
        Pod("alone", model="alone").drafting(5, 0.6).generating(10).tpot(0.05, 0.1),
        *fleet("patient", (0.0345, 0.096), namespace="staging", slowdown=1.05),
        Pod("setting", model="other", namespace="staging", slowdown=1.3),
        Pod("hasty", model="other", slowdown=1.0),
    )


@scenes
def by_plain_pods():
    """Pods without a reference of their own, beside plain pods of the same model and load."""

    def drafting(instance, speedup, acceptance=0.7, **requests):
        return Pod(instance).drafting(5, acceptance, **requests).untimed(speedup)

    def two(instance, first, second):
        return (
            Pod(instance)
            .drafting(5, 0.7)
            .drafting(5, 0.7, engine="1")
            .timed(second, engine="1")
            .untimed(first)
        )

    part = two("part", 0.9, 0.9).fires(0.9)
    part.vllm.engine("1").at_once = planned(16)  # no plain pod has such a load
    yield Scene(
        "without a reference it is compared with plain pods at the same load",
        SLOWER,
        at=(9, 30),
        needs_prometheus=True,
    ).with_pods(
        Pod("plain").generating(25, step=0.03),
        Pod("plain-too").generating(50, step=0.015),
        two("engines", 0.7, 1.2).fires(0.884),
        part,
        drafting("slow", 0.9).fires(0.9),
        drafting("near", 0.94),
        drafting("few", 0.9, requests=0.1),
        drafting("fast", 1.3),
        drafting("low", 1.3, 0.39),  # loses by its rate alone
        Pod("measured").drafting(5, 0.7).timed(0.9, reference=1.5),  # its own baseline decides,
    )
    yield Scene(
        "plain pods are no reference at another context, nor between two of them",
        SLOWER,
        at=(9, 30),
        needs_prometheus=True,
    ).with_pods(
        Pod("plain").generating(50),
        drafting("alike", 0.9).prompts(1.2 * PROMPT_TOKENS).fires(0.9),
        drafting("longer", 0.9).prompts(1.3 * PROMPT_TOKENS),
        drafting("shorter", 0.9).prompts(0.7 * PROMPT_TOKENS),
        two("engines", 0.9, 0.9).prompts(3 * PROMPT_TOKENS, engine="1"),
        Pod("short", model="other").generating(50),
        Pod("long", model="other").generating(50).prompts(3 * PROMPT_TOKENS),
        Pod("between", model="other").drafting(5, 0.7).untimed(0.9).prompts(2 * PROMPT_TOKENS),
    )
    pays = drafting("pays", 1.3, 0.39).fires(0.39, severity="info")
    loses = drafting("loses", 0.9, 0.39).fires(0.39, severity="info").fires(0.9, alert=SLOWER)
    yield Scene(
        "plain pods judge a low acceptance where the sidecar knows no time",
        LOW,
        at=(9, 30),
        needs_prometheus=True,
    ).with_pods(
        Pod("plain").generating(50),
        pays,
        loses,
    )
    yield Scene(
        "plain pods judge a pod whose verification is adaptive", NOT_JUDGED, at=(9, 30)
    ).with_pods(
        Pod("plain").generating(50),
        drafting("adaptive", 1.3, 0.17).speculating(ADAPTIVE),
    )


@scenes
def of_a_model():
    """What no alert reads: what each model runs and gains, for the marks on the dashboards."""
    greedy = Speculation(method="eagle3", num_speculative_tokens=3, draft_sample_method="greedy")
    sampled = replace(greedy, draft_sample_method="probabilistic")
    model = {"model_name": "m", "namespace": "prod"}
    configured = model | {
        "method": "eagle3",
        "num_speculative_tokens": "3",
        "adaptive_verification": "false",
    }

    def engines(sampling, version, number):
        return configured | {"draft_sample_method": sampling, "vllm_version": version}, number

    rolled, unknown = Pod("rolled").speculating(sampled), Pod("unknown").drafting(5, 0.7)
    unknown.vllm.engine().at_once = planned(16)  # a load that the plain pod does not have
    twice = Pod("twice").drafting(2, 0.5).timed(1.3).speculating(sampled, vllm="0.33.0")
    twice.plain(
        "specdec_plugin_info",
        (40, 0.5),
        engine="0",
        vllm_version="0.31.0",
        version="1",
        state="observing",
    )
    yield Scene(
        "the configuration, vLLM's version, the acceptance rate and the speedup of all pods of a"
        " model",
        None,
        at=(35,),
        records={
            "model:specdec_speculation:engines": [
                engines("greedy", "0.32.0", 2),
                engines("probabilistic", "0.32.0", 2),
                engines("probabilistic", "0.33.0", 1),
            ],
            "model:specdec_engine_acceptance:ratio": [(model, 0.7)],
            "model:specdec_speedup:ratio": [(model, 1.3)],
        },
    ).with_pods(
        Pod("a").drafting(5, 0.8).timed(1.3).speculating(greedy),
        Pod("b").drafting(5, 0.8).timed(1.3).speculating(greedy),
        rolled.drafting(2, 0.5).drafting(1, 0.5, engine="1").timed(1.3).timed(1.3, engine="1"),
        twice,
        unknown,
        Pod("plain").generating(60).timed(1.0),
    )


@scenes
def serving():
    """What the dashboards tell a model that was scaled to zero from a dead one by."""

    def idle(instance, *engines):
        """By engine, how many requests run."""
        made = Pod(instance).without("requests_running")
        for engine, running in enumerate(engines):
            made.drafting(0, 0.8, requests=0, engine=str(engine))
            labels = {"model_name": "m", "engine": str(engine)}
            made.plain("specdec_requests_running", (40, running), **labels)
        return made

    def served(instance, value):
        own = {"namespace": "prod", "job": "vllm", "instance": f"{instance}:9911"}
        return own | {"model_name": "m"}, value

    yield Scene(
        "a pod serves while requests run or tokens come, and nobody knows while vLLM is down",
        None,
        at=(35,),
        records={
            "pod:specdec_serves:bool": [
                served("decodes", 1),
                served("prefills", 1),
                served("idle", 0),
            ],
        },
    ).with_pods(
        Pod("decodes").drafting(5, 0.8),
        idle("prefills", 1, 0),
        idle("idle", 0, 0),
        Pod("down").drafting(5, 0.8).failing(lambda number: number >= 60),
    )
