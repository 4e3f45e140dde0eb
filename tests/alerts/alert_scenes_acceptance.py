"""Scenes for the alerts on acceptance. Values lie within 5 % of each threshold, on both sides of it."""

from tests.alerts.alert_series import DAY, Pod, counter
from tests.alerts.alert_tools import Firing, Scene


def low(instance, value, **labels):
    return Firing(
        "critical",
        f"m on {instance}:9911 accepts {value} of its draft tokens, less than acceptance_net_negative: each step "
        "computes drafts that are mostly thrown away. Speculate less, or not at all.",
        {"instance": f"{instance}:9911", "model_name": "m"} | labels,
    )


def acceptance_low():
    name, summary = "SpecDecodeAcceptanceLow", "MODEL: speculative decoding costs more than it gives"
    firing = [
        low("low", "49%"),
        low("slow", "30%"),
        low("strict", "55%"),
        low("several", "30%", target="green"),
    ]
    yield Scene(
        "its own threshold and its own volume decide for each pod, over all its engines",
        name,
        summary,
        [
            Pod("low").drafting(5, 0.49),
            Pod("above").drafting(5, 0.51),
            Pod("slow").drafting(1.05, 0.3),
            Pod("lenient", acceptance_net_negative=0.4).drafting(5, 0.45),
            Pod("strict", acceptance_net_negative=0.6).drafting(5, 0.55),
            Pod("engines").drafting(9, 0.6).drafting(1, 0.1, engine="1"),
            Pod("several", target="green").drafting(5, 0.3),
        ],
        [(10, []), (30, firing)],
    )
    worse = {"minutes": 60, "then": (0.3, 5)}
    yield Scene(
        "over five minutes only with enough drafts and requests, begun or running",
        name,
        summary,
        [
            Pod("drafts").drafting(1.05, 0.8, minutes=60, then=(0.3, 1.05)),
            Pod("few-drafts").drafting(0.95, 0.8, minutes=60, then=(0.3, 0.95)),
            Pod("requests").drafting(5, 0.8, **worse, requests=4.2),
            Pod("few-requests").drafting(5, 0.8, **worse, requests=3.8),
            Pod("running").drafting(5, 0.8, **worse, requests=0, running=21),
            Pod("few-running").drafting(5, 0.8, **worse, requests=0, running=19),
            _of_engines("engines", requests=2.2),
            _of_engines("engines-running", requests=0, running=11),
        ],
        [(60, []), (77, [low(pod, "30%") for pod in ("drafts", "requests", "running", "engines", "engines-running")])],
    )
    yield Scene(
        "a small pod is judged over an hour, for as long as it drafts; one long request is no reason",
        name,
        summary,
        [
            Pod("drafts").drafting(0.0875, 0.3, requests=1),
            Pod("few-drafts").drafting(0.079, 0.3, requests=1),
            Pod("requests").drafting(0.5, 0.3, requests=0.36),
            Pod("few-requests").drafting(0.5, 0.3, requests=0.31),
            Pod("long").drafting(5, 0.3, requests=0, running=1),
            Pod("ended").drafting(5, 0.3, minutes=40, then=(0, 0)),
        ],
        [(30, [low("ended", "30%")]), (55, []), (90, [low("drafts", "30%"), low("requests", "30%")])],
    )
    yield Scene(
        "it lasts 5 minutes longer than its condition, and is pending for 10",
        name,
        summary,
        [Pod("low").drafting(5, 0.49, minutes=30, then=(1.0, 5))],
        [(10, []), (12, [low("low", "49%")]), (34, [low("low", "49%")]), (38, []), (60, [])],
    )
    yield Scene(
        "a restart of sidecar and vLLM changes nothing",
        name,
        summary,
        [_restarted("low", 0.49), _restarted("fine", 0.8)],
        [(minute, [low("low", "49%")]) for minute in range(29, 40)],
    )


def _of_engines(instance, **requests):
    """A pod that only both of its engines together give enough requests to be judged."""
    pod = Pod(instance)
    for engine in ("0", "1"):
        pod.drafting(5, 0.8, minutes=60, then=(0.3, 5), engine=engine, **requests)
    return pod


def _restarted(instance, acceptance):
    pod = Pod(instance)
    for metric, growth in (
        ("specdec_engine_drafts_total", 300),
        ("specdec_engine_draft_tokens_total", 900),
        ("specdec_engine_accepted_tokens_total", 900 * acceptance),
    ):
        pod.of_model(metric, counter((30, growth), "reset", (60, growth)), engine="0")
    pod.of_model("specdec_engine_requests_total", counter((30, 10), "reset", (60, 10)), engine="0")
    return pod.gauge("specdec_requests_running", (90, 1), engine="0")


def context():
    """The pod's other numbers, if they are known."""
    full = (
        Pod("full", model="mixed", minutes=DAY + 120)
        .drafting(10, 0.45)
        .bucket("0", 6, 0.6)
        .bucket("1+", 4, 0.225)
        .bucket("0.3-0.5", 0, 0)
        .tpot(0.02, 0.0512)
    )
    bare = Pod("bare", acceptance_net_negative=0.4).drafting(5, 0.38)

    def expected(day_before=("", "", "")):
        whole, temperatures, latency = day_before
        return with_context(
            low("full", "45%", model_name="mixed"),
            f"Acceptance 45%, a loss below 50%. Last hour: 45%.{whole} By temperature: [0] 60% [1+] "
            f"22.5%.{temperatures} "
            "Share of the draft tokens: [0] 60% [1+] 40%. "
            f"Time per output token: [0.5] 20ms [0.99] 51.2ms.{latency}",
        )

    yield Scene(
        "it comes with the pod's other numbers",
        "SpecDecodeAcceptanceLow",
        "MODEL: speculative decoding costs more than it gives",
        [full, bare],
        [
            (10, []),
            (30, [expected(), with_context(low("bare", "38%"), "Acceptance 38%, a loss below 40%. Last hour: 38%.")]),
            (
                DAY + 60,
                [
                    expected(
                        (
                            " A day before: 45%.",
                            " A day before: [0] 60% [1+] 22.5%.",
                            " A day before: [0.5] 20ms [0.99] 51.2ms.",
                        )
                    )
                ],
            ),
        ],
    )


def replaced(instance, acceptance, *, namespace="prod", requests=6, more=lambda pod: pod):
    """Pods of eight minutes each, one after the other; ``more`` adds series to each."""
    pods = []
    for start in range(0, 88, 8):
        pod = Pod(f"{instance}-{start}", start=start, minutes=8, namespace=namespace)
        more(pod.drafting(5, acceptance, requests=requests))
        pod.series = {series: f"{values} stale" for series, values in pod.series.items()}
        pods.append(pod)
    return pods


def across(namespace="prod"):
    text = (
        "For most of the last 30 minutes some pod of m accepted less than acceptance_net_negative of its draft "
        "tokens, but none for long enough to fire by itself: pods are being replaced."
    )
    return Firing("critical", text, {"model_name": "m", "namespace": namespace})


def across_pods():
    """Pods that lose and are replaced; in another namespace such a pod stays, and fires by itself."""
    yield Scene(
        "bad pods that are replaced before they can fire",
        "SpecDecodeAcceptanceLowAcrossPods",
        "MODEL: pods that lose from speculation keep being replaced",
        [
            *replaced("bad", 0.48),
            *replaced("good", 0.52, namespace="good"),
            *replaced("slow", 0.3, namespace="slow", requests=3.5),
            Pod("stays", namespace="staging", minutes=100).drafting(5, 0.3),
            Pod("recovers", namespace="test", minutes=100).drafting(5, 0.3, minutes=25, then=(0.9, 5)),
            Pod("once", namespace="dev", minutes=100).drafting(5, 0.3, minutes=8, then=(0.9, 5)),
        ],
        [(10, []), (40, [across()]), (85, [across()]), (94, [across()]), (120, [])],
        reads=LOW,
        edges=(94,),
    )


def with_context(firing, text):
    firing.context = text
    firing.description = firing.description.replace("m on", f"{firing.labels['model_name']} on", 1)
    return firing


def at(instance, value, *, temperature="1+", **labels):
    return Firing(
        "warning",
        f"m on {instance}:9911 accepts {value} of the draft tokens at temperature {temperature}, less than "
        "acceptance_net_negative.",
        {"instance": f"{instance}:9911", "model_name": "m", "temperature": temperature} | labels,
    )


LOW = ("SpecDecodeAcceptanceLow",)


def recovering(instance, **more):
    """A pod whose acceptance is low for 40 minutes, and then high."""
    return Pod(instance, **more).drafting(5, 0.3, minutes=40, then=(0.9, 5))


def at_temperature():
    name, summary = "SpecDecodeAcceptanceLowAtTemperature", "MODEL: speculative decoding loses at one temperature"
    mixed = at("mixed", "38%")
    yield Scene(
        "the temperature's share, and each pod's own threshold",
        name,
        summary,
        [
            Pod("mixed").bucket("0", 6, 0.8).bucket("1+", 4, 0.38).drafting(10, 0.632),
            Pod("above").bucket("0", 6, 0.8).bucket("1+", 4, 0.51),
            Pod("lenient", acceptance_net_negative=0.3).bucket("1+", 4, 0.38),
            Pod("tenth").bucket("0", 17.9, 0.8).bucket("1+", 2.1, 0.49).drafting(20, 0.77),
            Pod("less").bucket("0", 18.1, 0.8).bucket("1+", 1.9, 0.3, verdict="insufficient_data"),
            Pod("several", target="green").bucket("0", 6, 0.8).bucket("1+", 4, 0.38).drafting(10, 0.632),
        ],
        [
            (10, []),
            (
                30,
                [
                    mixed,
                    at("tenth", "49%"),
                    at("several", "38%", target="green"),
                ],
            ),
        ],
    )
    fell = {"then": (60, 0.3, 4)}
    yield Scene(
        "over five minutes only with a verdict: enough traffic, and numbers that are good enough",
        name,
        summary,
        [
            Pod("judged").bucket("0", 6, 0.8).bucket("1+", 4, 0.8, **fell),
            Pod("doubtful").bucket("0", 6, 0.8).bucket("1+", 4, 0.8, verdict="insufficient_data", **fell),
        ],
        [(60, []), (77, [at("judged", "30%")])],
    )

    def small(instance, drafts, requests=1.0, other=0.05, residual=0.09, **more):
        pod = (
            Pod(instance)
            .bucket("0", other, 0.8)
            .bucket("1+", drafts, 0.3, requests, verdict="insufficient_data", **more)
        )
        pod.drafting(drafts + other, 0.6, minutes=more.get("then", (300,))[0], then=(0.6, other))
        return pod.gauge("specdec_attribution_residual_ratio", (300, residual))

    yield Scene(
        "a small pod is judged over an hour",
        name,
        summary,
        [
            small("drafts", 0.0875),
            small("few-drafts", 0.079),
            small("requests", 0.5, 0.36),
            small("few-requests", 0.5, 0.31),
            small("share", 0.0945, other=0.8),
            small("less", 0.09, other=0.86),
            small("far-off", 0.5, residual=0.11),
            small("ended", 0.5, then=(40, 0.3, 0)),
        ],
        [(20, []), (60, []), (90, [at(pod, "30%") for pod in ("drafts", "requests", "share")])],
    )
    yield Scene(
        "a restart changes nothing",
        name,
        summary,
        [
            Pod("mixed").bucket("0", 6, 0.8, reset_at=30).bucket("1+", 4, 0.38, reset_at=30).drafting(10, 0.632),
            Pod("fine").bucket("0", 6, 0.8, reset_at=30).bucket("1+", 4, 0.6, reset_at=30),
        ],
        [(10, []), (15, [mixed])] + [(minute, [mixed]) for minute in range(29, 38)] + [(130, [mixed])],
    )
    yield Scene(
        "it ends with its condition, and with the alert on the whole pod",
        name,
        summary,
        [
            Pod("mixed", minutes=30).bucket("0", 6, 0.8).bucket("1+", 4, 0.38).drafting(10, 0.632),
            recovering("part").bucket("1+", 4, 0.3),
        ],
        [(29, [mixed, at("part", "30%")]), (32, [mixed, at("part", "30%")]), (37, [at("part", "30%")])]
        + [(minute, []) for minute in (52, 60, 70)]
        + [(85, [at("part", "30%")])],
        reads=LOW,
        edges=(32,),
    )


def p10():
    name, summary = "SpecDecodeAcceptanceP10Low", "MODEL: a tenth of the requests lose from speculation"

    def firing(instance, value="49%"):
        return Firing(
            "warning",
            f"In a tenth of the requests for m on {instance}:9911, at most {value} of the draft tokens are accepted, "
            "which is below acceptance_p10.",
            {"instance": f"{instance}:9911", "model_name": "m"},
        )

    yield Scene(
        "the tenth percentile of a pod whose acceptance is judged, over five minutes or an hour",
        name,
        summary,
        [
            Pod("low", minutes=60).p10(0.49).drafting(5, 0.7),
            Pod("edge").p10(0.49).drafting(1.05, 0.7, requests=4.2),
            Pod("small").p10(0.49).drafting(0.0875, 0.7, requests=0.36),
            Pod("above").p10(0.51).drafting(5, 0.6),
            Pod("few").p10(0.49).drafting(5, 0.7, requests=0.31),
            Pod("idle").p10(0.49).drafting(0.079, 0.7, requests=1),
            Pod("lenient", acceptance_p10=0.4).p10(0.49).drafting(5, 0.7),
            Pod("unknown").drafting(5, 0.7),
        ],
        [
            (15, []),
            (25, [firing("low"), firing("edge")]),
            (62, [firing("low"), firing("edge")]),
            (90, [firing("edge"), firing("small")]),
        ],
        edges=(62,),
    )
    yield Scene(
        "it ends with the alert on the whole pod",
        name,
        summary,
        [recovering("part").p10(0.49)],
        [(30, [firing("part")]), (52, []), (65, []), (90, [firing("part")])],
        reads=LOW,
    )


def fell(instance, drop, model="m"):
    return Firing(
        "warning",
        f"The acceptance rate of {model} on {instance}:9911 is {drop} (percentage points) lower than at the same hour "
        "of the day before, with as many draft tokens per draft; this is more than acceptance_regression. Find out "
        "what changed: the draft model, the quantization, the traffic.",
        {"instance": f"{instance}:9911", "model_name": model},
    )


def regressed():
    name, summary = "SpecDecodeAcceptanceRegressed", "MODEL: acceptance fell below that of the day before"

    def pod(instance, past, now, model="m", *, namespace="prod", minutes=150, k=3, drafts=5, **limits):
        made = Pod(instance, model=model, namespace=namespace, minutes=DAY + 150, **limits)
        return made.days_apart(past, now, minutes=minutes, k=k, drafts=drafts)

    expected = [fell("fell", "5.2%"), fell("small", "10%"), fell("k-alike", "10%"), fell("fresh", "10%", "new")]
    yield Scene(
        "below the same hour of the day before: the pod's own or, where it has none, the model's in its namespace",
        name,
        summary,
        [
            pod("fell", 0.8, 0.748),
            pod("less", 0.8, 0.752),
            pod("rose", 0.7, 0.8),
            pod("small", 0.8, 0.7, drafts=0.8),
            pod("lenient", 0.8, 0.72, acceptance_regression=0.1),
            pod("k-alike", 0.8, 0.7, k=(3, 3.12)),
            pod("k-less", 0.8, 0.7, k=(3, 2.82)),
            pod("k-more", 0.8, 0.6, k=(3, 5)),
            pod("brief", 0.8, 0.6, minutes=25, model="another"),
            pod("old", 0.8, None, "new"),
            pod("old-brief", 0.1, None, "new", minutes=25),
            pod("fresh", None, 0.7, "new"),
            pod("elsewhere", None, 0.7, "new", namespace="staging"),
            pod("old-k", 0.8, None, "new-k", k=5),
            pod("fresh-k", None, 0.7, "new-k"),
            pod("young", None, 0.3, "young"),
        ],
        [(150, []), (DAY + 25, []), (DAY + 45, expected)],
    )
    night = [
        phase
        for _ in range(2)
        for phase in ((600, 5, 0.78), (600, 5, 0.66), (240, 5, 0.78))  # minutes, drafts per second, acceptance
    ]
    yield Scene(
        "not on a steady cycle of day and night, on its first day or later",
        name,
        summary,
        [
            Pod("cycle", minutes=2 * DAY).drafting_in(night, 3, "0", 10, 0),
            Pod("falls", minutes=2 * DAY).drafting_in([*night[:4], (600, 5, 0.6), (240, 5, 0.7)], 3, "0", 10, 0),
        ],
        [(minute, []) for minute in (610, 640, 700, 1150, 1210, 1260, DAY + 300, DAY + 610)]
        + [(DAY + 640, [fell("falls", "6%")]), (DAY + 1100, [fell("falls", "6%")])],
    )
    gap = (DAY - 150, None, None)
    yield Scene(
        "it ends with its condition, and with the alert on the whole pod; a restart is no drop",
        name,
        summary,
        [
            Pod("back", minutes=DAY + 150).drafting_in([(150, 5, 0.8), gap, (60, 5, 0.7), (90, 5, 0.8)], 3, "0", 10, 0),
            Pod("part", minutes=DAY + 150).drafting_in([(150, 5, 0.8), gap, (60, 5, 0.3), (90, 5, 0.6)], 3, "0", 10, 0),
            _restarted("restarted", 0.8),
        ],
        [
            (DAY + 25, []),
            (DAY + 50, [fell("back", "10%"), fell("part", "50%")]),
            (DAY + 66, [fell("part", "20%")]),
            *((DAY + minute, []) for minute in (75, 85, 100)),
        ],
        reads=LOW,
    )


def break_even():
    name, summary = "SpecDecodeBreakEven", "MODEL: speculative decoding roughly breaks even"

    def firing(instance, value):
        return Firing(
            "info",
            f"m on {instance}:9911 accepts {value} of its draft tokens, less than acceptance_break_even: whether that "
            "pays depends on the load. Compare P99 with and without speculation.",
            {"instance": f"{instance}:9911", "model_name": "m"},
        )

    yield Scene(
        "between the two thresholds for an hour",
        name,
        summary,
        [
            Pod("worse").drafting(5, 0.49),
            Pod("low", minutes=100).drafting(5, 0.51),
            Pod("high").drafting(5, 0.64),
            Pod("better").drafting(5, 0.66),
            Pod("idle").drafting(0.07, 0.6),
            Pod("slow").drafting(1.05, 0.6),
            Pod("own", acceptance_break_even=0.55).drafting(5, 0.6),
        ],
        [
            (58, []),
            (70, [firing("low", "51%"), firing("high", "64%"), firing("slow", "60%")]),
            (107, [firing("low", "51%"), firing("high", "64%"), firing("slow", "60%")]),
            (115, [firing("high", "64%"), firing("slow", "60%")]),
        ],
        edges=(107,),
    )


def stopped():
    name, summary = "SpecDecodeStopped", "MODEL: vLLM has stopped speculating"

    def firing(instance, tokens):
        return Firing(
            "warning",
            f"m on {instance}:9911 generates {tokens} tokens/s and drafts nothing, though it drafted within the last "
            "day.",
            {"instance": f"{instance}:9911", "model_name": "m"},
        )

    expected = [
        firing("off", "10"),
        firing("vanished", "10"),
        firing("once", "10"),
        firing("slow", "1.05"),
    ]
    yield Scene(
        "tokens but no drafts, where there were drafts before",
        name,
        summary,
        [
            Pod("off").drafting(5, 0.8, minutes=60, then=(0, 0)).generating(10),
            Pod("vanished").drafting(5, 0.8, minutes=60, then=(0, None)).generating(10),
            Pod("once").drafting(1.05, 0.8, minutes=60, then=(0, 0)).generating(10),
            Pod("slow").drafting(5, 0.8, minutes=60, then=(0, 0)).generating(1.05),
            Pod("hardly").drafting(0.95, 0.8, minutes=60, then=(0, 0)).generating(10),
            Pod("idle").drafting(5, 0.8, minutes=60, then=(0, 0)).generating(0.95),
            Pod("less").drafting(5, 0.8, minutes=60, then=(0.8, 0.1)).generating(10),
            Pod("never").generating(10),
            Pod("own", min_drafts_per_second=20).drafting(5, 0.8, minutes=60, then=(0, 0)).generating(10),
        ],
        [(58, []), (78, []), (82, expected), (200, expected)],
        edges=(78,),
    )


SCENES = [
    *acceptance_low(),
    *context(),
    *across_pods(),
    *at_temperature(),
    *p10(),
    *regressed(),
    *break_even(),
    *stopped(),
]
