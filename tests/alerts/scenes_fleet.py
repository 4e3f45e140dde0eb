"""Scenes for what only Prometheus knows: other pods, other times. And every recorded number, worked out by hand."""

from sidecar.requests.messages import Speculation
from tests.alerts.pods import Pod
from tests.alerts.scene import Firing, Scene, of
from tests.alerts.scenes_judged import ADAPTIVE, ENDING, LOW, SLOWER
from tests.alerts.series import DAY
from tests.alerts.vllm_pages import plan

ACROSS, REGRESSED = "SpecDecodeAcceptanceLowAcrossPods", "SpecDecodeAcceptanceRegressed"


def replaced(instance, acceptance, *, namespace="prod", requests=20, minutes=range(0, 88, 8)):
    """Pods of eight minutes each, that begin at ``minutes``."""
    return [
        Pod(f"{instance}-{start}", start=start, minutes=8, namespace=namespace).drafting(
            5, acceptance, requests=requests
        )
        for start in minutes
    ]


def across(namespace="prod"):
    return Firing({"model_name": "m", "namespace": namespace})


def _untimed(pod):
    """The same pod without a reference of its own."""
    del pod.environment["SPECDEC_PLAIN_STEPS"]
    return pod


def across_pods():
    """Pods that lose and are replaced; in another namespace such a pod stays, and fires by itself."""
    yield Scene(
        "bad pods that are replaced before they can fire",
        ACROSS,
        [
            *replaced("bad", 0.48),
            *replaced("good", 0.52, namespace="good"),
            *replaced("slow", 0.3, namespace="slow", requests=2),
            *[pod.timed(1.3) for pod in replaced("pays", 0.3, namespace="pays")],
            *[_untimed(pod.timed(1.3)) for pod in replaced("faster", 0.3, namespace="plain")],
            Pod("plain", namespace="plain", minutes=130).generating(50),
            *[pod.speculating(ADAPTIVE) for pod in replaced("adaptive", 0.17, namespace="adaptive")],
            *replaced("late", 0.3, namespace="late", minutes=(16, 24, 32)),
            Pod("stays", namespace="staging", minutes=130).drafting(5, 0.3),
            Pod("recovers", namespace="test", minutes=130).drafting(5, 0.3, minutes=25, then=(0.9, 5)),
        ],
        [(10, []), (40, [across(), across("late")]), (85, [across()]), (110, [across()]), (125, [])],
        reads=ENDING,
    )
    yield Scene(
        "information about one pod that pays does not hold the page back",
        ACROSS,
        [
            *replaced("thumb", 0.3),
            Pod("paying", minutes=100).drafting(5, 0.3).timed(1.6),
        ],
        [(10, []), (40, [across()]), (60, [across()])],
        reads=ENDING,
    )


def regressed():
    """Ninety minutes at one acceptance and, a day later, at another."""

    def pod(instance, past, now, model="m", *, namespace="prod", minutes=90, k=(3, 3), drafts=5, **limits):
        made = Pod(instance, model=model, namespace=namespace, minutes=DAY + 90, poll=60, **limits)
        phases = [(minutes, drafts if past else 0, past), (DAY - minutes, 0, None), (90, drafts if now else 0, now)]
        made.drafting_in(phases, (k[0], 0, k[1]), requests=10 * bool(now))
        if past:
            made.vllm.engine().requests = plan((minutes, 10), (DAY - minutes, 0), (90, 10))
            made.away(minutes, DAY)
        else:
            made.away(0, DAY)
        return made

    def fell(instance, drop, model="m"):
        return of(instance, drop, model=model)

    adaptive = pod("adaptive", 0.8, 0.6, "adaptive").speculating(ADAPTIVE)
    yield Scene(
        "below the same hour of the day before: the pod's own or, where it has none, the model's in its namespace",
        REGRESSED,
        [
            pod("fell", 0.8, 0.745),
            pod("less", 0.8, 0.755),
            pod("rose", 0.7, 0.8),
            pod("small", 0.8, 0.7, drafts=0.8),
            pod("lenient", 0.8, 0.72, acceptance_regression=0.1),
            pod("k-alike", 0.8, 0.7, k=(3, 3.12)),
            pod("k-more", 0.8, 0.6, k=(3, 5)),
            pod("brief", 0.8, 0.6, minutes=25, model="another"),
            pod("old", 0.8, None, "new"),
            pod("fresh", None, 0.7, "new"),
            pod("elsewhere", None, 0.7, "new", namespace="staging"),
            pod("young", None, 0.3, "young"),
            adaptive,
        ],
        [
            (85, []),
            (DAY + 25, []),
            (DAY + 45, [fell("fell", 0.055), fell("small", 0.1), fell("k-alike", 0.1), fell("fresh", 0.1, "new")]),
        ],
    )
    before = Speculation(method="eagle3", num_speculative_tokens=3)
    after = Speculation(method="eagle3", num_speculative_tokens=3, rejection_sample_method="block")
    changed = pod("old", 0.8, None).speculating(before), pod("changed", None, 0.6).speculating(after)
    eagle = "eagle3, num_speculative_tokens 3"
    said = (
        "Acceptance 60% (a loss below 50%), in the last hour 60%.",
        f"Speculates with {eagle}, block sampling; a day before with {eagle}.",
    )
    yield Scene(
        "it names a change of how vLLM speculates",
        REGRESSED,
        list(changed),
        [(DAY + 25, []), (DAY + 45, [of("changed", 0.2, context=said)])],
    )


def stopped():
    off = {"minutes": 40, "then": (0, 0)}
    yield Scene(
        "tokens but no drafts, where there were drafts before",
        "SpecDecodeStopped",
        [
            Pod("off", minutes=80).drafting(5, 0.8, **off).generating(10),
            Pod("vanished", minutes=80).drafting(5, 0.8, minutes=40, then=(0, None)).generating(10),
            Pod("hardly", minutes=80).drafting(0.9, 0.8, **off).generating(10),
            Pod("idle", minutes=80).drafting(5, 0.8, **off, requests=0).generating(0.95),
            Pod("less", minutes=80).drafting(5, 0.8, minutes=40, then=(0.8, 0.1)).generating(10),
            Pod("slow", minutes=80).drafting(1.05, 0.8, **off, requests=0).generating(1.05),
            Pod("never", minutes=80).generating(10),
        ],
        [(38, []), (58, []), (64, [of("off", 10 + 10 / 60), of("vanished", 10 + 10 / 60), of("slow", 1.05)])],
    )


def net_negative():
    def fleet(model, spec, plain, then=None, **options):
        """``then``: what those that speculate take after 50 minutes."""
        less, more = [[one * factor for one in spec] for factor in (0.9, 1.1)]
        late = {"minutes": 50, "then": then}
        yield Pod(f"{model}-a", model=model, **options).drafting(5, 0.6).generating(10).tpot(*less, **late)
        yield Pod(f"{model}-b", model=model, **options).drafting(1.05, 0.6).generating(10).tpot(*more, **late)
        less, more = [[one * factor for one in plain] for factor in (0.9, 1.1)]
        yield Pod(f"{model}-c", model=model, **options).generating(10).tpot(*less)
        yield Pod(f"{model}-d", model=model, **options).generating(1.05).tpot(*more)
        # None of these says anything of what speculation costs.
        yield Pod(f"{model}-idle", model=model, **options).generating(0.5).tpot(0.01, 0.011)
        yield Pod(f"{model}-slow", model=model, **options).drafting(0.95, 0.6).generating(10).tpot(9, 9.1)
        pod = Pod(f"{model}-stopped", model=model, **options).drafting(5, 0.6, minutes=10, then=(0, 0))
        yield pod.generating(10).tpot(0.001, 0.0011)

    def slower(quantile, times, model="slower"):
        return Firing({"model_name": model, "namespace": "prod", "quantile": quantile}, times)

    firing = [slower("0.5", 1.15), slower("0.99", 1.2)]

    yield Scene(
        "averages over the pods that tell, compared with the most patient setting of the namespace",
        "SpecDecodeNetNegative",
        [
            *fleet("slower", (0.0345, 0.096), (0.03, 0.08), minutes=70),
            *fleet("better", (0.0345, 0.096), (0.03, 0.08), then=(0.03, 0.08), minutes=70),
            *fleet("close", (0.0315, 0.084), (0.03, 0.08), minutes=60),
            Pod("alone", model="alone", minutes=60).drafting(5, 0.6).generating(10).tpot(0.05, 0.1),
            *fleet("patient", (0.0345, 0.096), (0.03, 0.08), namespace="staging", minutes=60, slowdown=1.05),
            Pod("setting", model="other", namespace="staging", minutes=60, slowdown=1.3),
            Pod("hasty", model="other", minutes=60, slowdown=1.0),
        ],
        [(30, []), (55, [*firing, slower("0.5", 1.15, "better"), slower("0.99", 1.2, "better")]), (65, firing)],
    )


def by_plain_pods():
    """Pods without a reference of their own beside plain pods of the same model at the same load."""

    def drafting(instance, speedup, acceptance=0.7, **requests):
        return _untimed(Pod(instance, minutes=40).drafting(5, acceptance, **requests).timed(speedup))

    yield Scene(
        "without a reference of its own it is compared with plain pods at the same load",
        SLOWER,
        [
            Pod("plain", minutes=40).generating(50),
            drafting("slow", 0.9),
            drafting("near", 0.94),
            drafting("few", 0.9, requests=0.1),
            drafting("fast", 1.3),
            drafting("low", 1.3, 0.39),  # loses by its rate alone
            Pod("measured", minutes=40).drafting(5, 0.7).timed(0.9, reference=1.5),  # its own baseline decides
        ],
        [(9, []), (30, [of("slow", 0.9)])],
        [
            (30, 'round(pod:specdec_speedup:ratio{instance="fast:9911"}, 0.01)', {_key("", "fast"): 1.3}),
            (30, 'pod:specdec_speedup:ratio{instance="plain:9911"}', {}),
        ],
    )

    yield Scene(
        "what plain pods say of a low acceptance decides where the sidecar knows no time",
        LOW,
        [Pod("plain", minutes=40).generating(50), drafting("pays", 1.3, 0.39), drafting("loses", 0.9, 0.39)],
        [(9, []), (30, [of("pays", 0.39, severity="info"), of("loses", 0.39, severity="critical")])],
    )
    adaptive = drafting("adaptive", 1.3, 0.17).speculating(ADAPTIVE)
    yield Scene(
        "plain pods judge a pod whose verification is adaptive",
        "SpecDecodeNotJudged",
        [Pod("plain", minutes=40).generating(50), adaptive],
        [(9, []), (30, [])],
    )


def _key(name, instance=None, model="m", namespace="prod", **labels):
    """A sample's name and labels as promtool writes them."""
    own = {"instance": f"{instance}:9911", "job": "vllm"} if instance else {}
    pairs = {**own, "model_name": model, "namespace": namespace, **labels}
    shown = ", ".join(f'{label}="{pairs[label]}"' for label in sorted(pairs))
    return f"{name}{{{shown}}}"


def numbers():
    a = Pod("a", minutes=40).drafting(4, 0.8).drafting(1, 0.3, engine="1").generating(15).generating(5, engine="1")
    a.tpot(0.02, 0.05).tpot(0.03, 0.04, engine="1")
    b = Pod("b", minutes=40).drafting(15, 0.6).generating(40).tpot(0.04, 0.08)
    c = Pod("c", minutes=40).generating(40).tpot(0.05, 0.1)
    lost = [Pod(one, model="lost", minutes=40).drafting(5, 0.3) for one in ("d", "e")]
    split = Pod("s", model="split", minutes=40).bucket("0", 4, 0.8).bucket("1+", 1, 0.3)

    def pick(record, instance, value, model="m", **labels):
        wanted = ",".join(f'{name}="{one}"' for name, one in {"instance": f"{instance}:9911", **labels}.items())
        return (30, f"round({record}{{{wanted}}}, 1e-6)", {_key("", instance, model, **labels): value})

    def of_model(record, value, **labels):
        wanted = ",".join(f'{name}="{one}"' for name, one in {"model_name": "m", **labels}.items())
        return (30, f"round({record}{{{wanted}}}, 1e-6)", {_key("", **labels): value})

    yield Scene(
        "every recorded number",
        None,
        [a, b, c, split, *lost],
        numbers=[
            pick("pod:specdec_engine_drafts:rate5m", "a", 5),
            pick("pod:specdec_engine_draft_tokens:rate5m", "a", 15),
            pick("pod:specdec_engine_accepted_tokens:rate5m", "a", 10.5),
            pick("pod:specdec_acceptance:judged", "a", 0.7),
            pick("pod_temperature:specdec_acceptance:judged", "s", 0.3, "split", temperature="1+"),
            pick("pod_quantile:specdec_tpot_seconds:max", "a", 0.03, quantile="0.5"),
            pick("pod_quantile:specdec_tpot_seconds:max", "a", 0.05, quantile="0.99"),
            pick("pod:specdec_speculates:bool", "a", 1),
            pick("pod:specdec_speculates:bool", "c", 0),
            of_model("model_quantile:specdec_tpot_seconds:avg", 0.035, quantile="0.5", speculates="yes"),
            of_model("model_quantile:specdec_tpot_seconds:avg", 0.1, quantile="0.99", speculates="no"),
            of_model("model_quantile:specdec_tpot:slowdown", 0.65, quantile="0.99"),
            (30, "model:specdec_pods_low:count", {_key("model:specdec_pods_low:count", model="lost"): 2}),
        ],
    )


SCENES = [
    *across_pods(),
    *regressed(),
    *stopped(),
    *net_negative(),
    *by_plain_pods(),
    *numbers(),
]
