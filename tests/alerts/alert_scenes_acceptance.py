"""What each acceptance alert is held to. Values lie within 5 % of each threshold, on both sides of it."""

from tests.alerts.alert_series import Pod, counter
from tests.alerts.alert_tools import Firing, Scene


def low(instance, value, **labels):
    return Firing(
        "critical",
        f"m on {instance}:9911 accepts {value} of its draft tokens, less than acceptance_net_negative: each step "
        "computes drafts that are mostly thrown away. Speculate less, or not at all.",
        {"instance": f"{instance}:9911", "model_name": "m"} | labels,
    )


def acceptance_low():
    name, summary = "SpecDecodeAcceptanceLow", "Speculative decoding costs more than it gives"
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
            Pod("idle").drafting(0.95, 0.3),
            Pod("lenient", acceptance_net_negative=0.4).drafting(5, 0.45),
            Pod("strict", acceptance_net_negative=0.6).drafting(5, 0.55),
            Pod("engines").drafting(9, 0.6).drafting(1, 0.1, engine="1"),
            Pod("several", target="green").drafting(5, 0.3),
        ],
        [(10, []), (30, firing)],
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


def _restarted(instance, acceptance):
    pod = Pod(instance)
    for metric, growth in (
        ("specdec_engine_drafts_total", 300),
        ("specdec_engine_draft_tokens_total", 900),
        ("specdec_engine_accepted_tokens_total", 900 * acceptance),
    ):
        pod.of_model(metric, counter((30, growth), "reset", (60, growth)), engine="0")
    return pod


def told_with_the_alert():
    """The other numbers of the pod, as far as there are any."""
    full = (
        Pod("full", model="mixed")
        .drafting(10, 0.45)
        .bucket("0", 6, 0.6)
        .bucket("1+", 4, 0.225)
        .tpot(0.02, 0.0512)
        .bucket("0.3-0.5", 0, 0)
    )
    yield Scene(
        "it comes with the pod's other numbers",
        "SpecDecodeAcceptanceLow",
        "Speculative decoding costs more than it gives",
        [full, Pod("bare", acceptance_net_negative=0.4).drafting(5, 0.38)],
        [
            (10, []),
            (
                30,
                [
                    with_context(
                        low("full", "45%", model_name="mixed"),
                        "Acceptance 45%, a loss below 50%. By temperature: [0] 60% [1+] 22.5%. Share of the draft "
                        "tokens: [0] 60% [1+] 40%. Time per output token: [0.5] 20ms [0.99] 51.2ms.",
                    ),
                    with_context(low("bare", "38%"), "Acceptance 38%, a loss below 40%."),
                ],
            ),
            (
                130,
                [
                    with_context(
                        low("full", "45%", model_name="mixed"),
                        "Acceptance 45%, a loss below 50%. Its past: 45%. By temperature: [0] 60% [1+] 22.5%. Their "
                        "past: [0] 60% [1+] 22.5%. Share of the draft tokens: [0] 60% [1+] 40%. Time per output token: "
                        "[0.5] 20ms [0.99] 51.2ms.",
                    ),
                    with_context(low("bare", "38%"), "Acceptance 38%, a loss below 40%. Its past: 38%."),
                ],
            ),
        ],
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


def at_temperature():
    name, summary = "SpecDecodeAcceptanceLowAtTemperature", "Speculative decoding loses at one temperature"
    mixed = at("mixed", "38%")
    yield Scene(
        "a temperature with little traffic, few requests or doubtful numbers is not judged",
        name,
        summary,
        [
            Pod("mixed").bucket("0", 6, 0.8).bucket("1+", 4, 0.38).drafting(10, 0.632),
            Pod("above").bucket("0", 6, 0.8).bucket("1+", 4, 0.51),
            Pod("lenient", acceptance_net_negative=0.3).bucket("1+", 4, 0.38),
            Pod("tenth").bucket("0", 17.9, 0.8).bucket("1+", 2.1, 0.49).drafting(20, 0.77),
            Pod("less").bucket("0", 18.1, 0.8).bucket("1+", 1.9, 0.3),
            Pod("quick").bucket("0", 2, 0.8).bucket("1+", 1.05, 0.3).drafting(3, 0.63),
            Pod("slow").bucket("0", 2, 0.8).bucket("1+", 0.95, 0.3),
            Pod("enough").bucket("0", 6, 0.8).bucket("1+", 4, 0.3, requests=4.2).drafting(10, 0.6),
            _with_unattributed(Pod("few").bucket("0", 6, 0.8).bucket("1+", 4, 0.3, requests=3.8)),
            Pod("doubtful").bucket("0", 6, 0.8).bucket("1+", 4, 0.3, verdict="insufficient_data"),
            Pod("several", target="green").bucket("0", 6, 0.8).bucket("1+", 4, 0.38).drafting(10, 0.632),
        ],
        [
            (10, []),
            (
                30,
                [
                    mixed,
                    at("tenth", "49%"),
                    at("quick", "30%"),
                    at("enough", "30%"),
                    at("several", "38%", target="green"),
                ],
            ),
        ],
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
        "it lasts 5 minutes longer than its condition",
        name,
        summary,
        [Pod("mixed", minutes=30).bucket("0", 6, 0.8).bucket("1+", 4, 0.38).drafting(10, 0.632)],
        [(29, [mixed]), (37, [mixed]), (45, [])],
    )


def _with_unattributed(pod):
    for outcome in ("completed", "cancelled"):
        values = counter((pod.minutes, 10))
        pod.of_model("specdec_requests_total", values, temperature="1+", attribution="none", outcome=outcome)
    return pod


def p10():
    name, summary = "SpecDecodeAcceptanceP10Low", "A tenth of the requests loses by speculation"

    def firing(instance, value="48.33%"):
        return Firing(
            "warning",
            f"A tenth of the requests for m on {instance}:9911 have {value} of their draft tokens accepted or less, "
            "which is below acceptance_p10.",
            {"instance": f"{instance}:9911", "model_name": "m"},
        )

    below, above = {0.5: 0.12, 0.8: 0.88}, {0.4: 0.09, 0.6: 0.91}
    yield Scene(
        "the tenth percentile of a pod with enough requests and drafts",
        name,
        summary,
        [
            Pod("low", minutes=60).single_requests(below).drafting(5, 0.7),
            Pod("edge").single_requests(below, requests=4.2).drafting(1.05, 0.7),
            Pod("above").single_requests(above).drafting(5, 0.6),
            Pod("few").single_requests(below, requests=3.8).drafting(5, 0.7),
            Pod("idle").single_requests(below).drafting(0.95, 0.7),
            Pod("lenient", acceptance_p10=0.4).single_requests(below).drafting(5, 0.7),
            Pod("cold")
            .single_requests({0.2: 0.05, 0.8: 0.95}, requests=20)
            .single_requests({0.2: 0.2, 0.8: 0.8}, requests=1, temperature="1+")
            .drafting(5, 0.7),
        ],
        [
            (16, []),
            (25, [firing("low"), firing("edge")]),
            (67, [firing("low"), firing("edge")]),
            (75, [firing("edge")]),
        ],
    )


def regressed():
    name, summary = "SpecDecodeAcceptanceRegressed", "Acceptance fell below its own past"

    def firing(instance, drop, model="m"):
        return Firing(
            "warning",
            f"The acceptance of {model} on {instance}:9911 is {drop} of all draft tokens lower than its past, more "
            "than acceptance_regression. Find out what changed: the draft model, the quantization, the traffic.",
            {"instance": f"{instance}:9911", "model_name": model},
        )

    fell, fresh = firing("fell", "5.2%"), firing("fresh", "10%", "rolled-out")
    yield Scene(
        "below the pod's own past, and where it has none below that of the model in its namespace",
        name,
        summary,
        [
            Pod("fell").drafting(5, 0.8, minutes=121, then=(0.748, 5)),
            Pod("less").drafting(5, 0.8, minutes=121, then=(0.752, 5)),
            Pod("rose").drafting(5, 0.7, minutes=121, then=(0.8, 5)),
            Pod("idle").drafting(5, 0.8, minutes=121, then=(0.6, 0.95)),
            Pod("still").drafting(5, 0.8, minutes=121, then=(0.7, 1.05)),
            Pod("lenient", acceptance_regression=0.1).drafting(5, 0.8, minutes=121, then=(0.72, 5)),
            Pod("old", model="rolled-out").drafting(5, 0.8),
            Pod("fresh", model="rolled-out", start=121).drafting(5, 0.7),
            Pod("elsewhere", model="rolled-out", namespace="staging", start=121).drafting(5, 0.7),
            Pod("young", model="young", start=90).drafting(5, 0.8, minutes=40, then=(0.6, 5)),
        ],
        [
            (150, []),
            (160, [fell, firing("still", "10%"), fresh]),
        ],
    )
    yield Scene(
        "it lasts 5 minutes longer than its condition, and a restart is no drop",
        name,
        summary,
        [
            Pod("back").drafting(5, 0.8, minutes=130, then=(0.7, 5)),
            _restarted("restarted", 0.8),
        ],
        [(159, []), (168, [firing("back", "10%")])],
    )
    yield Scene(
        "the condition's end",
        name,
        summary,
        [Pod("gone", minutes=170).drafting(5, 0.8, minutes=130, then=(0.7, 5))],
        [(170, [firing("gone", "10%")]), (177, [firing("gone", "10%")]), (185, [])],
    )


def break_even():
    name, summary = "SpecDecodeBreakEven", "Speculative decoding about breaks even"

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
            Pod("idle").drafting(0.95, 0.6),
            Pod("slow").drafting(1.05, 0.6),
            Pod("own", acceptance_break_even=0.55).drafting(5, 0.6),
        ],
        [
            (58, []),
            (70, [firing("low", "51%"), firing("high", "64%"), firing("slow", "60%")]),
            (107, [firing("low", "51%"), firing("high", "64%"), firing("slow", "60%")]),
            (115, [firing("high", "64%"), firing("slow", "60%")]),
        ],
    )


def stopped():
    name, summary = "SpecDecodeStopped", "vLLM generates without speculating, and did speculate before"

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
    )


SCENES = [*acceptance_low(), *told_with_the_alert(), *at_temperature(), *p10(), *regressed(), *break_even(), *stopped()]
