"""Scenes for the alerts that read the sidecar's verdicts, with values close to each threshold on both sides."""

from sidecar.requests.messages import Speculation
from tests.alerts.pods import POD, Pod
from tests.alerts.scene import Scene, of
from tests.alerts.vllm_pages import after

LOW, AT, COLLAPSED = "SpecDecodeAcceptanceLow", "SpecDecodeAcceptanceLowAtTemperature", "SpecDecodeAcceptanceCollapsed"
P10, EVEN, MIXED = "SpecDecodeAcceptanceP10Low", "SpecDecodeBreakEven", "SpecDecodeMixedWorkload"
SLOWER, SLOWER_AT = "SpecDecodeSlowerThanPlain", "SpecDecodeSlowerThanPlainAtTemperature"
ADAPTIVE = Speculation(method="eagle3", num_speculative_tokens=3, adaptive_verification=True)
DFLASH = Speculation(method="dflash", num_speculative_tokens=15, parallel_drafting=True)


def acceptance_low():
    yield Scene(
        "each pod by its own threshold",
        LOW,
        [
            Pod("low").drafting(5, 0.49),
            Pod("above").drafting(5, 0.51),
            Pod("lenient", acceptance_net_negative=0.4).drafting(5, 0.45),
            Pod("strict", acceptance_net_negative=0.6).drafting(5, 0.55),
        ],
        [(8, []), (30, [of("low", 0.49), of("strict", 0.55)])],
    )
    yield Scene(
        "it is pending for 10 minutes, and lasts 5 minutes longer than its condition",
        LOW,
        [Pod("low").drafting(5, after(30, 0.4, 1.0))],
        [(9, []), (12, [of("low", 0.4)]), (34, [of("low", 0.4)]), (40, []), (60, [])],
    )
    yield Scene(
        "a restart of vLLM, of the sidecar, or of both changes nothing",
        LOW,
        [
            Pod("low").drafting(5, 0.49).restarting(30),
            Pod("both").drafting(5, 0.49).away(30, 32),
            Pod("fine").drafting(5, 0.8).restarting(30),
        ],
        [(minute, [of("low", 0.49), of("both", 0.49)]) for minute in range(28, 44)],
    )

    def failing(instance, fails):
        return Pod(instance, poll=15).drafting(5, 0.3, requests=12).failing(fails)

    firing = [of(one, 0.3) for one in ("steady", "one-in-five", "a-minute", "three")]
    yield Scene(
        "failed polls do not start the ten minutes anew, unless there are too many",
        LOW,
        [
            failing("steady", lambda _: False),
            failing("one-in-five", lambda number: number % 5 == 4),
            failing("a-minute", lambda number: 20 <= number < 24),
            failing("three", lambda number: 20 <= number < 32),
            failing("six", lambda number: 20 <= number < 44),
        ],
        [(11, []), (12, firing), (20, firing), (29, [*firing, of("six", 0.3)])],
    )


def by_time():
    """Where a measured speedup is known it decides; a low acceptance is then information."""

    def pods():
        return [
            Pod("pays").drafting(5, 0.39).timed(1.3),
            Pod("even").drafting(5, 0.49).timed(1.0),
            Pod("loses").drafting(5, 0.39).timed(0.9),
            Pod("thumb").drafting(5, 0.39),
            Pod("over").drafting(5, 0.51).timed(1.0),
            Pod("slow").drafting(5, 0.7).timed(0.9),
            Pod("strict", speedup_net_negative=1.1, speedup_net_positive=1.2).drafting(5, 0.7).timed(1.05),
            Pod("adaptive").drafting(5, 0.17).speculating(ADAPTIVE),
            Pod("one-pass").drafting(5, 0.2).speculating(DFLASH),
            Pod("one-pass-slow").drafting(5, 0.2).timed(0.9).speculating(DFLASH),
            Pod("adaptive-idle").drafting(0.05, 0.2).speculating(ADAPTIVE),
            Pod("adaptive-slow").drafting(5, 0.7).timed(0.9).speculating(ADAPTIVE),
            Pod("better").drafting(5, after(20, 0.39, 0.9)).timed(1.3),
            Pod("faster").drafting(5, 0.7).timed(after(20, 0.9, 1.3)),
        ]

    judged_by_time = {"pays": 0.39, "even": 0.49, "adaptive": 0.17, "one-pass": 0.2}
    low = [of(one, value, severity="info") for one, value in judged_by_time.items()]
    page = [of("loses", 0.39, severity="critical"), of("thumb", 0.39), of("one-pass-slow", 0.2, severity="critical")]
    firing, better = [*low, *page], [of("better", one, severity="info") for one in (0.39, 0.492)]
    yield Scene(
        "a low acceptance pages unless time says otherwise",
        LOW,
        pods(),
        [(9, []), (13, [*firing, better[0]]), (25, [*firing, better[1]]), (30, firing)],
    )
    slower = [of(one, 0.9) for one in ("loses", "slow", "adaptive-slow", "one-pass-slow")] + [of("strict", 1.05)]
    both = [*slower, of("faster", 0.9)]
    yield Scene(
        "slower than plain, whatever is accepted", SLOWER, pods(), [(9, []), (13, both), (24, both), (30, slower)]
    )
    yield Scene(
        "where acceptance does not tell, and there is no baseline, nothing is judged",
        "SpecDecodeNotJudged",
        pods(),
        [(14, []), (30, [of(one, reason="no_baseline") for one in ("adaptive", "one-pass")])],
    )
    yield Scene(
        "an engine that alone is slower than plain counts for its part",
        SLOWER,
        [
            Pod("engines").drafting(5, 0.7).drafting(5, 0.7, engine="1").timed(0.7).timed(1.2, engine="1"),
            Pod("fine").drafting(1, 0.7).drafting(9, 0.7, engine="1").timed(0.7).timed(1.4, engine="1"),
            Pod("part").drafting(5, 0.7).timed(0.9).generating(5, engine="1"),  # of the other nothing is known
        ],
        [(9, []), (25, [of("engines", 0.884), of("part", 0.9)])],
    )


def at_temperature():
    yield Scene(
        "each temperature by its pod's own threshold",
        AT,
        [
            Pod("mixed").bucket("0", 6, 0.8).bucket("1+", 4, 0.38),
            Pod("above").bucket("0", 6, 0.8).bucket("1+", 4, 0.51),
            Pod("lenient", acceptance_net_negative=0.3).bucket("1+", 4, 0.38),
            Pod("near").bucket("0", 6, 0.8).bucket("1+", 4, after(15, 0.48, 0.51)),
        ],
        [(10, []), (20, [of("mixed", 0.38, temperature="1+"), of("near", 0.51, temperature="1+")])],
    )


def slower_at_temperature():
    """Requests of which the plug-in tells first and last token; the clock of the steps gives their plain time."""

    def paced(instance, speedup, acceptance=0.4):
        pod = Pod(instance).bucket("0", 5, 0.8).bucket("1+", 5, acceptance).timed(1.0)
        return pod.finishing(0.5, temperature="1+", pace=speedup)

    slow = of("slow", 0.8, temperature="1+")
    yield Scene(
        "the temperature's own speedup decides",
        SLOWER_AT,
        [paced("slow", after(20, 0.8, 1.2)), paced("fast", 1.2)],
        [(14, []), (16, [slow]), (19, [slow]), (25, [of("slow", 0.884, temperature="1+")]), (30, [])],
    )
    yield Scene(
        "where time says that a temperature loses, its rate must be low as well",
        AT,
        [paced("slow", 0.8, acceptance=0.47), paced("high", 0.8, acceptance=0.53), paced("fast", 1.2)],
        [(9, []), (30, [of("slow", 0.47, temperature="1+")])],
    )


def p10():
    yield Scene(
        "the tenth percentile of a pod whose acceptance is judged",
        P10,
        [
            Pod("low", minutes=40).drafting(5, 0.7).finishing(0.49),
            Pod("above").drafting(5, 0.6).finishing(0.51),
            Pod("idle").drafting(0.05, 0.7, requests=10).finishing(0.49),
            Pod("lenient", acceptance_p10=0.4).drafting(5, 0.7).finishing(0.49),
            Pod("adaptive").drafting(5, 0.7).finishing(0.2).speculating(ADAPTIVE),
            Pod("one-pass").drafting(5, 0.7).finishing(0.2).speculating(DFLASH),
        ],
        [(15, []), (25, [of("low", 0.49)]), (47, [])],
    )


def break_even():
    firing = [of("low", 0.51), of("high", 0.64)]
    yield Scene(
        "between the two thresholds for an hour",
        EVEN,
        [
            Pod("worse").drafting(5, 0.49),
            Pod("low", minutes=80).drafting(5, 0.51),
            Pod("high").drafting(5, 0.64),
            Pod("better").drafting(5, 0.66),
            Pod("own", acceptance_break_even=0.55).drafting(5, 0.6),
        ],
        [(58, []), (70, firing), (84, firing), (89, firing[1:])],
    )


def collapsed():
    fault = of("fault", 0.01)
    yield Scene(
        "nothing is accepted, at any temperature and from the first position on",
        COLLAPSED,
        [
            Pod("fault").drafting(5, after(30, 0.01, 0.9)),
            Pod("some").drafting(5, 0.06),
            Pod("hot").drafting(5, 0.04, first=0.1),
            Pod("part").bucket("0", 0.6, 0.2).bucket("1+", 5, 0.01),
            Pod("engines").drafting(5, 0.04, first=0.06).drafting(5, 0.04, first=0.06, engine="1"),
            Pod("hour").drafting(0.3, after(25, 0.3, 0.0), requests=1),
            Pod("adaptive").drafting(5, 0.01).speculating(ADAPTIVE),
        ],
        [(9, []), (13, [fault]), (38, [fault]), (47, [])],
    )


def mixed():
    def engines(instance, lower, drafts=5):
        return Pod(instance).drafting(5, 0.9).drafting(drafts, lower, engine="1")

    def timed(instance, *speedups, acceptance=0.45):
        pod = Pod(instance)
        for engine, speedup in enumerate(map(float, speedups)):
            pod.drafting(5, acceptance, engine=str(engine)).timed(speedup, engine=str(engine))
        return pod

    apart = Pod("apart", minutes=40).bucket("0", 6, 0.66).bucket("0-0.3", 4, 0.8)
    losing = [of(one, sign="engines", engine="1") for one in ("engine", "slow", "small", "slower")]
    yield Scene(
        "temperatures on both sides of the thresholds, and an engine that alone loses",
        MIXED,
        [
            apart.bucket("0.7-1", 4, 0.3).bucket("1+", 4, 0.49),
            Pod("good").bucket("0", 6, 0.66).bucket("1+", 4, 0.51),
            Pod("bad").bucket("0", 6, 0.64).bucket("1+", 4, 0.49),
            engines("engine", 0.49),
            engines("near", 0.51),
            engines("slow", 0.49, drafts=1.05),
            engines("small", 0.49, drafts=0.95),
            engines("idle", 0.12, drafts=0.05),
            timed("pays", 1.3, 1.3),
            timed("slower", 1.3, 0.9, acceptance=0.7),
            timed("all-slower", 0.9, 0.9, acceptance=0.7),
            Pod("one").drafting(5, 0.3),
            Pod("both").drafting(5, 0.4).drafting(5, 0.3, engine="1"),
            Pod("turned").drafting(5, after(38, 0.9, 0.3), requests=1),
            engines("adaptive", 0.12).timed(1.3).speculating(ADAPTIVE),
        ],
        [(14, []), (30, [of("apart", 2, sign="temperatures"), *losing]), (50, losing), (58, losing)],
    )

    def pod(instance, p50, p99, requests=4.2, **own):
        made = Pod(instance, **own).drafting(5, 0.8, requests=requests)
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
            pod("adaptive", 0.025, 0.056).speculating(ADAPTIVE),
        ],
        [(14, []), (30, [of("widened", 1.55, sign="latency")])],
    )


def context():
    """The pod's other numbers, all of them in the alert: it can be acted on without opening anything else."""
    full = Pod("full", model="mixed").bucket("0", 6, 0.6).bucket("1+", 4, 0.225).tpot(0.02, 0.0512)
    full.vllm.long_prompts = 0.3
    said = (
        "Acceptance rate 45% (threshold 50%), last hour 45%.",
        "Acceptance rate by temperature: [0] 60% [1+] 22.5%; share of draft tokens [0] 60% [1+] 40%.",
        "Acceptance rate by request group, last hour: [prompt_tokens 0-512] 60% [prompt_tokens 2k-8k] 30%.",
        "Time per output token: P50 20ms P99 51.2ms.",
        "Speculation: eagle3, num_speculative_tokens 3.",
    )
    by_engine = (
        "Acceptance rate 38% (threshold 50%), last hour 38%.",
        "Acceptance rate by engine: [0] 50% [1] 26%.",
    )
    commands = (
        "Acceptance rate 30% (threshold 50%), last hour 30%.",
        f"Details: kubectl -n prod exec {POD} -c specdec-sidecar -- specdec-sidecar report",
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
        [
            full,
            Pod("engines").drafting(5, 0.5).drafting(5, 0.26, engine="1"),
            Pod("kubernetes").drafting(5, 0.3).in_kubernetes(),
        ],
        [(9, []), (35, firing)],
    )


SCENES = [
    scene
    for scenes in (
        acceptance_low, by_time, at_temperature, slower_at_temperature, p10, break_even, collapsed, mixed, context,
    )
    for scene in scenes()
]  # fmt: skip
