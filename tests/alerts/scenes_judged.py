"""Scenes for the alerts that read the sidecar's verdicts, with values close to each threshold on both sides."""

from sidecar.requests.messages import Speculation
from tests.alerts.pods import POD, Pod
from tests.alerts.scene import Scene, of
from tests.alerts.vllm_pages import plan, steady

LOW, AT, COLLAPSED = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceLowAtTemperature", "SpecDecodeAcceptanceCollapsed"
P10, EVEN, MIXED = "SpecDecodeAcceptanceP10Low", "SpecDecodeBreakEven", "SpecDecodeMixedWorkload"
SLOWER, SLOWER_AT = "SpecDecodeSlowerThanPlain", "SpecDecodeSlowerThanPlainAtTemperature"
ENDING = (LOW, COLLAPSED)  # read by what ends with them
ADAPTIVE = Speculation(method="eagle3", num_speculative_tokens=3, adaptive_verification=True)


def acceptance_low():
    yield Scene(
        "its own threshold and its own volume decide for each pod, over all its engines",
        LOW,
        [
            Pod("low", minutes=45).drafting(5, 0.49),
            Pod("above", minutes=45).drafting(5, 0.51),
            Pod("slow", minutes=45).drafting(1.05, 0.3),
            Pod("lenient", minutes=45, acceptance_net_negative=0.4).drafting(5, 0.45),
            Pod("strict", minutes=45, acceptance_net_negative=0.6).drafting(5, 0.55),
            Pod("engines", minutes=45).drafting(9, 0.6).drafting(1, 0.1, engine="1"),
        ],
        [(8, []), (30, [of("low", 0.49), of("slow", 0.3), of("strict", 0.55)])],
    )
    worse = {"minutes": 60, "then": (0.3, 5)}
    yield Scene(
        "over five minutes only with enough drafts and requests, begun or running",
        LOW,
        [
            Pod("drafts", minutes=80).drafting(1.05, 0.8, minutes=60, then=(0.3, 1.05)),
            Pod("few-drafts", minutes=80).drafting(0.45, 0.8, minutes=60, then=(0.3, 0.45)),
            Pod("requests", minutes=80).drafting(5, 0.8, **worse, requests=4.2),
            Pod("few-requests", minutes=80).drafting(5, 0.8, **worse, requests=1.9),
            Pod("running", minutes=80).drafting(5, 0.8, **worse, requests=0, running=21),
            Pod("few-running", minutes=80).drafting(5, 0.8, **worse, requests=0, running=19),
            _engines("engines", requests=2.2),
            _engines("engines-running", requests=0, running=11),
        ],
        [(60, []), (77, [of(one, 0.3) for one in ("drafts", "requests", "running", "engines", "engines-running")])],
    )
    yield Scene(
        "a small pod is judged over an hour, for as long as it drafts; one long request is no reason",
        LOW,
        [
            Pod("drafts", minutes=100).drafting(0.0875, 0.3, requests=1),
            Pod("few-drafts", minutes=100).drafting(0.079, 0.3, requests=1),
            Pod("requests", minutes=100).drafting(0.5, 0.3, requests=0.36),
            Pod("few-requests", minutes=100).drafting(0.5, 0.3, requests=0.31),
            Pod("long", minutes=100).drafting(5, 0.3, requests=0, running=2),
            Pod("ended", minutes=100).drafting(5, 0.3, minutes=40, then=(0, 0)),
        ],
        [(30, [of("ended", 0.3)]), (60, []), (85, [of("drafts", 0.3), of("requests", 0.3)])],
    )
    yield Scene(
        "it is pending for 10 minutes, and lasts 5 minutes longer than its condition",
        LOW,
        [Pod("low", minutes=70).drafting(5, 0.4, minutes=30, then=(1.0, 5))],
        [(9, []), (12, [of("low", 0.4)]), (34, [of("low", 0.4)]), (40, []), (60, [])],
    )
    yield Scene(
        "a restart of vLLM, of the sidecar, or of both changes nothing",
        LOW,
        [
            Pod("low", minutes=60).drafting(5, 0.49).restarting(30),
            Pod("both", minutes=60).drafting(5, 0.49).away(30, 32),
            Pod("fine", minutes=60).drafting(5, 0.8).restarting(30),
        ],
        [(minute, [of("low", 0.49), of("both", 0.49)]) for minute in range(28, 44)],
    )
    pods = [
        Pod("steady", minutes=30, poll=15).drafting(5, 0.3, requests=12),
        Pod("one-in-five", minutes=30, poll=15).drafting(5, 0.3, requests=12).failing(lambda number: number % 5 == 4),
        Pod("a-minute", minutes=30, poll=15).drafting(5, 0.3, requests=12).failing(lambda number: 20 <= number < 24),
        Pod("three", minutes=30, poll=15).drafting(5, 0.3, requests=12).failing(lambda number: 20 <= number < 32),
        Pod("six", minutes=30, poll=15).drafting(5, 0.3, requests=12).failing(lambda number: 20 <= number < 44),
    ]
    firing = [of(one, 0.3) for one in ("steady", "one-in-five", "a-minute", "three")]
    yield Scene(
        "failed polls do not start the ten minutes anew, unless there are too many",
        LOW,
        pods,
        [(11, []), (12, firing), (20, firing), (29, [*firing, of("six", 0.3)])],
    )


def _engines(instance, **requests):
    """A pod that only both of its engines together give enough requests to be judged."""
    pod = Pod(instance, minutes=80)
    for engine in ("0", "1"):
        pod.drafting(5, 0.8, minutes=60, then=(0.3, 5), engine=engine, **requests)
    return pod


def by_time():
    """Where a measured speedup is known it decides; a low acceptance is then information."""

    def pods():
        return [
            Pod("pays", minutes=45).drafting(5, 0.39).timed(1.3),
            Pod("even", minutes=45).drafting(5, 0.49).timed(1.0),
            Pod("loses", minutes=45).drafting(5, 0.39).timed(0.9),
            Pod("thumb", minutes=45).drafting(5, 0.39),
            Pod("high", minutes=45).drafting(5, 0.6).timed(1.3),
            Pod("over", minutes=45).drafting(5, 0.51).timed(1.0),
            Pod("slow", minutes=45).drafting(5, 0.7).timed(0.9),
            Pod("strict", minutes=45, speedup_net_negative=1.1, speedup_net_positive=1.2).drafting(5, 0.7).timed(1.05),
            Pod("idle", minutes=45).drafting(0.05, 0.7).timed(0.5),
            Pod("adaptive", minutes=45).drafting(5, 0.17).speculating(ADAPTIVE),
            Pod("adaptive-idle", minutes=45).drafting(0.05, 0.2).speculating(ADAPTIVE),
            Pod("adaptive-slow", minutes=45).drafting(5, 0.7).timed(0.9).speculating(ADAPTIVE),
            Pod("lossy", minutes=45).drafting(5, 0.4).speculating(_lossy()),
            Pod("better", minutes=45).drafting(5, 0.39, minutes=20, then=(0.9, 5)).timed(1.3),
            Pod("faster", minutes=45).drafting(5, 0.7).timed(0.9, then=1.3),
        ]

    low = [of(one, value, severity="info") for one, value in (("pays", 0.39), ("even", 0.49), ("adaptive", 0.17))]
    page = [of("loses", 0.39, severity="critical"), of("thumb", 0.39), of("lossy", 0.4)]
    firing, better = [*low, *page], [of("better", one, severity="info") for one in (0.39, 0.492)]
    yield Scene(
        "a low acceptance pages unless time says otherwise",
        LOW,
        pods(),
        [(9, []), (13, [*firing, better[0]]), (25, [*firing, better[1]]), (30, firing)],
    )
    slower = [of(one, 0.9) for one in ("loses", "slow", "adaptive-slow")] + [of("strict", 1.05)]
    both = [*slower, of("faster", 0.9)]
    yield Scene(
        "slower than plain, whatever is accepted", SLOWER, pods(), [(9, []), (13, both), (24, both), (30, slower)]
    )
    yield Scene(
        "adaptive verification without a baseline is not judged",
        "SpecDecodeNotJudged",
        pods(),
        [(14, []), (30, [of("adaptive", reason="adaptive_verification")])],
    )
    yield Scene(
        "an engine that alone is slower than plain counts for its part",
        SLOWER,
        [
            Pod("engines", minutes=30).drafting(5, 0.7).drafting(5, 0.7, engine="1").timed(0.7).timed(1.2, engine="1"),
            Pod("fine", minutes=30).drafting(1, 0.7).drafting(9, 0.7, engine="1").timed(0.7).timed(1.4, engine="1"),
        ],
        [(9, []), (25, [of("engines", 0.884)])],
    )


def _lossy():
    return Speculation(method="eagle3", num_speculative_tokens=3, rejection_sample_method="fly")


def at_temperature():
    mixed = of("mixed", 0.38, temperature="1+")
    yield Scene(
        "the temperature's share, and each pod's own threshold",
        AT,
        [
            Pod("mixed", minutes=40).bucket("0", 6, 0.8).bucket("1+", 4, 0.38),
            Pod("above", minutes=40).bucket("0", 6, 0.8).bucket("1+", 4, 0.51),
            Pod("lenient", minutes=40, acceptance_net_negative=0.3).bucket("1+", 4, 0.38),
            Pod("tenth", minutes=40).bucket("0", 22.4, 0.8).bucket("1+", 2.5, 0.48),
            Pod("less", minutes=40).bucket("0", 22.6, 0.8).bucket("1+", 2.4, 0.3),
            Pod("few", minutes=40).bucket("0", 6, 0.8).bucket("1+", 4, 0.38, requests=0.3),
            Pod("near", minutes=40).bucket("0", 6, 0.8).bucket("1+", 4, 0.48, then=(15, 0.51, 4)),
        ],
        [(10, []), (30, [mixed, of("tenth", 0.48, temperature="1+"), of("near", 0.51, temperature="1+")])],
    )
    yield Scene(
        "it ends with its condition, and with the alert on the whole pod",
        AT,
        [
            Pod("mixed", minutes=30).bucket("0", 6, 0.8).bucket("1+", 4, 0.38),
            Pod("part", minutes=90).bucket("0", 4, 0.3, then=(40, 0.9, 4)).bucket("1+", 4, 0.3),
        ],
        [(29, [mixed, of("part", 0.3, temperature="0"), of("part", 0.3, temperature="1+")])]
        + [(minute, []) for minute in (52, 60)]
        + [(80, [of("part", 0.3, temperature="1+")])],
        reads=ENDING,
    )
    yield Scene(
        "without a split there is no alert on a temperature",
        AT,
        [
            Pod("away", minutes=40).drafting(5, 0.3),
            Pod("withheld", minutes=40).bucket("1+", 4, 0.3).drafting(8, 0.3),
        ],
        [(30, [])],
    )


def slower_at_temperature():
    """Requests of which the plug-in tells first and last token; the clock of the steps gives their plain time."""
    slow = of("slow", 0.8, temperature="1+")
    yield Scene(
        "the temperature's own speedup decides",
        SLOWER_AT,
        [_paced("slow", 0.8, then=1.2), _paced("fast", 1.2), _paced("thumb", 0.8, timed=False)],
        [(14, []), (16, [slow]), (19, [slow]), (25, [of("slow", 0.889, temperature="1+")]), (30, [])],
    )
    yield Scene(
        "where time says that a temperature loses, its rate must be low as well",
        AT,
        [_paced("slow", 0.8, acceptance=0.47), _paced("high", 0.8, acceptance=0.53), _paced("fast", 1.2)],
        [(9, []), (30, [of("slow", 0.47, temperature="1+")])],
    )


def _paced(instance, speedup, *, then=None, acceptance=0.4, timed=True):
    """``then``: the speedup after 20 minutes."""
    pod = Pod(instance, minutes=45).bucket("0", 5, 0.8).bucket("1+", 5, acceptance)
    if timed:
        pod.timed(1.0)
        pod.vllm.paces = {"1+": plan((20, speedup), (0, then or speedup))}
    return pod


def p10():
    yield Scene(
        "the tenth percentile of a pod whose acceptance is judged, over five minutes or an hour",
        P10,
        [
            Pod("low", minutes=40).drafting(5, 0.7).p10(0.49),
            Pod("edge", minutes=40).drafting(1.05, 0.7, requests=6).p10(0.49),
            Pod("above", minutes=40).drafting(5, 0.6).p10(0.51),
            Pod("idle", minutes=40).drafting(0.05, 0.7, requests=10).p10(0.49),
            Pod("lenient", minutes=40, acceptance_p10=0.4).drafting(5, 0.7).p10(0.49),
            Pod("unknown", minutes=40).drafting(5, 0.7),
            Pod("adaptive", minutes=40).drafting(5, 0.7).p10(0.2).speculating(ADAPTIVE),
        ],
        [(15, []), (25, [of("low", 0.49), of("edge", 0.49)]), (47, [])],
    )
    yield Scene(
        "it ends with its condition, and with the alert on the whole pod",
        P10,
        [Pod("part", minutes=60).drafting(5, 0.4, minutes=25, then=(0.9, 5)).p10(0.3)],
        [(15, []), (25, [of("part", 0.3)]), (45, [])],
        reads=ENDING,
    )


def break_even():
    firing = [of("low", 0.51), of("high", 0.64), of("slow", 0.6)]
    yield Scene(
        "between the two thresholds for an hour",
        EVEN,
        [
            Pod("worse", minutes=90).drafting(5, 0.49),
            Pod("low", minutes=80).drafting(5, 0.51),
            Pod("high", minutes=90).drafting(5, 0.64),
            Pod("better", minutes=90).drafting(5, 0.66),
            Pod("idle", minutes=90).drafting(0.07, 0.6),
            Pod("slow", minutes=90).drafting(1.05, 0.6),
            Pod("own", minutes=90, acceptance_break_even=0.55).drafting(5, 0.6),
            Pod("pays", minutes=90).drafting(5, 0.6).timed(1.3),
        ],
        [(58, []), (70, firing), (84, firing), (89, firing[1:])],
    )


def collapsed():
    def broken(instance, **more):
        pod = Pod(instance, minutes=60).drafting(5, 0.01, **more)
        pod.vllm.engine().first_position = None
        return pod

    hot = Pod("hot", minutes=60).drafting(5, 0.04)
    hot.vllm.engine().first_position = steady(0.1)
    part = Pod("part", minutes=60).bucket("0", 0.6, 0.2).bucket("1+", 5, 0.01)
    engines = Pod("engines", minutes=60).drafting(5, 0.04).drafting(5, 0.04, engine="1")
    for engine in engines.vllm.engines.values():
        engine.first_position = steady(0.06)
    pods = [
        broken("fault", minutes=30, then=(0.9, 5)),
        Pod("some", minutes=60).drafting(5, 0.06),
        hot,
        part,
        engines,
        Pod("idle", minutes=60).drafting(0.01, 0.0),
        Pod("adaptive", minutes=60).drafting(5, 0.01).speculating(ADAPTIVE),
    ]
    fault = of("fault", 0.01)
    yield Scene(
        "nothing is accepted, at any temperature and from the first position on",
        COLLAPSED,
        pods,
        [(9, []), (13, [fault]), (38, [fault]), (47, [])],
    )


def mixed():
    def signed(instance, sign, value, **labels):
        return of(instance, value, sign=sign, **labels)

    engines = [signed(one, "engines", 0.12, engine="1") for one in ("engine", "slow")]
    yield Scene(
        "temperatures on both sides of the thresholds, and an engine that alone loses",
        MIXED,
        [
            Pod("apart", minutes=40).bucket("0", 6, 0.66).bucket("1+", 4, 0.49),
            Pod("good", minutes=60).bucket("0", 6, 0.66).bucket("1+", 4, 0.51),
            Pod("bad", minutes=60).bucket("0", 6, 0.64).bucket("1+", 4, 0.49),
            Pod("rare", minutes=60).bucket("0", 19, 0.9).bucket("1+", 1, 0.1),
            Pod("engine", minutes=60).drafting(5, 0.9).drafting(5, 0.12, engine="1"),
            Pod("slow", minutes=60).drafting(5, 0.9).drafting(1.05, 0.12, engine="1"),
            Pod("idle", minutes=60).drafting(5, 0.9).drafting(0.95, 0.12, engine="1"),
            Pod("one", minutes=60).drafting(5, 0.3),
            Pod("both", minutes=60).drafting(5, 0.4).drafting(5, 0.3, engine="1"),
            Pod("turned", minutes=60).drafting(5, 0.9, minutes=38, then=(0.3, 5), requests=1),
            Pod("adaptive", minutes=60).drafting(5, 0.9).drafting(5, 0.12, engine="1").timed(1.3).speculating(ADAPTIVE),
        ],
        [(14, []), (30, [signed("apart", "temperatures", 0.17), *engines]), (50, engines), (58, engines)],
    )

    def pod(instance, p50, p99, drafts=5.0, requests=4.2, **own):
        made = Pod(instance, minutes=40, **own).drafting(drafts, 0.8, requests=requests)
        return made.baseline(0.03, 0.05).tpot(p50, p99)

    yield Scene(
        "a median that fell and a tail that grew",
        MIXED,
        [
            pod("widened", 0.025, 0.056),
            pod("less", 0.025, 0.054),
            pod("slower", 0.031, 0.063),
            pod("faster", 0.01, 0.049),
            pod("few", 0.025, 0.056, requests=3.8),
            pod("lenient", 0.025, 0.056, latency_gap_growth=2),
        ],
        [(14, []), (30, [signed("widened", "latency", 1.55)])],
    )


def context():
    """The pod's other numbers, all of them in the alert: it can be acted on without opening anything else."""
    full = Pod("full", model="mixed", minutes=40).bucket("0", 6, 0.6).bucket("1+", 4, 0.225).tpot(0.02, 0.0512)
    full.vllm.long_prompts = 0.3
    engines = Pod("engines", minutes=40).drafting(5, 0.5).drafting(5, 0.26, engine="1")
    said = (
        "Acceptance 45% (a loss below 50%), in the last hour 45%.",
        "Acceptance by temperature: [0] 60% [1+] 22.5%; share of the draft tokens [0] 60% [1+] 40%.",
        "Acceptance by kind of request, last hour: [prompt_tokens 0-512] 60% [prompt_tokens 2k-8k] 30%.",
        "Time per output token: P50 20ms P99 51.2ms.",
        "Speculates with eagle3, num_speculative_tokens 3.",
    )
    by_engine = (
        "Acceptance 38% (a loss below 50%), in the last hour 38%.",
        "Acceptance by engine: [0] 50% [1] 26%.",
    )
    commands = (
        "Acceptance 30% (a loss below 50%), in the last hour 30%.",
        f"Read on: kubectl -n prod exec {POD} -c specdec-sidecar -- specdec-sidecar report",
        "Change vLLM's arguments: kubectl -n prod edit deployment vllm",
    )
    firing = [
        of("full", 0.45, model="mixed", context=said),
        of("engines", 0.38, context=by_engine),
        of("kubernetes", 0.3, pod=POD, context=commands),
    ]
    yield Scene(
        "it comes with the pod's other numbers, and in Kubernetes with the commands",
        LOW,
        [full, engines, Pod("kubernetes", minutes=40).drafting(5, 0.3).in_kubernetes()],
        [(9, []), (35, firing)],
    )


SCENES = [
    *acceptance_low(),
    *by_time(),
    *at_temperature(),
    *slower_at_temperature(),
    *p10(),
    *break_even(),
    *collapsed(),
    *mixed(),
    *context(),
]
