"""Scenes for the alerts on speedup; a low acceptance that pays does not page."""

from tests.alerts.alert_scenes_acceptance import LOW, across, at, fell, low, replaced
from tests.alerts.alert_scenes_fleet import key
from tests.alerts.alert_series import DAY, Pod, counter, gauge
from tests.alerts.alert_tools import Firing, Scene


class Timed(Pod):
    """A pod whose sidecar knows its speedup; ``decoding`` counts steps by load as all sidecars do."""

    def timed(self, speedup, *, error=0.01, engine="0", minutes=None):
        minutes = minutes or self.minutes
        self.of_model("specdec_engine_speedup_ratio", gauge((minutes, speedup)), engine=engine)
        self.of_model("specdec_engine_speedup_standard_error_ratio", gauge((minutes, error)), engine=engine)
        return self

    def at(self, temperature, speedup, verdict, *, basis="speedup", minutes=None):
        self.of_model("specdec_speedup_ratio", gauge((minutes or self.minutes, speedup)), temperature=temperature)
        for one in ("net_negative", "break_even"):
            values = gauge((self.minutes, float(one == verdict)))
            self.of_model("specdec_verdict", values, temperature=temperature, verdict=one)
        for one in ("speedup", "acceptance"):
            values = gauge((self.minutes, float(one == basis)))
            self.of_model("specdec_verdict_basis", values, temperature=temperature, basis=one)
        return self

    def decoding(self, running, step_seconds, length=1.0, steps=1000):
        """``steps`` decode steps a minute."""
        labels = {"engine": "0", "running": running}
        for name, growth in (("seconds", steps * step_seconds), ("steps", steps), ("tokens", steps * length)):
            self.of_model(f"specdec_decode_{name}_total", counter((self.minutes, growth)), **labels)
        return self


def _firing(severity, instance, text, **labels):
    return Firing(
        severity, f"m on {instance}:9911 {text}", {"instance": f"{instance}:9911", "model_name": "m"} | labels
    )


def slower(instance, times, **labels):
    text = f"generates {times} times as fast as plain decoding at this load, less than speedup_net_negative."
    return _firing("critical", instance, text, **labels)


def paying(instance, value):
    text = (
        f"accepts {value} of its draft tokens, less than acceptance_net_negative, but is no slower than plain decoding "
        "at this load."
    )
    return _firing("info", instance, text)


def slower_than_plain():
    name, summary = "SpecDecodeSlowerThanPlain", "m: slower than without speculation"
    yield Scene(
        "the measured speedup decides, its error against the pod, whatever is accepted",
        name,
        summary,
        [
            Timed("slow").drafting(5, 0.7).timed(0.9),
            Timed("unsure").drafting(5, 0.7).timed(0.93, error=0.03),
            Timed("even").drafting(5, 0.7).timed(0.96),
            Timed("fast").drafting(5, 0.35).timed(1.3),
            Timed("strict", speedup_net_negative=1.1).drafting(5, 0.7).timed(1.05),
            Timed("idle").drafting(0.05, 0.7).timed(0.5),
            Timed("engines").drafting(5, 0.7).timed(0.85).timed(1.2, engine="1"),
            Timed("unknown").drafting(5, 0.7),
        ],
        [(10, []), (30, [slower("slow", "0.90"), slower("strict", "1.05")])],
    )
    yield Scene(
        "it lasts 5 minutes longer than its condition, and is pending for 10",
        name,
        summary,
        [Timed("slow").drafting(5, 0.7).timed(0.9, minutes=30)],
        [(9, []), (17, [slower("slow", "0.90")]), (38, [slower("slow", "0.90")]), (48, [])],
    )
    yield Scene(
        "without a reference of its own it is compared with plain pods at the same load",
        name,
        summary,
        [
            Timed("plain").generating(50).decoding("1", 0.02).decoding("5-8", 0.03),
            Timed("slow").drafting(5, 0.7).decoding("5-8", 0.1, length=3),
            Timed("near").drafting(5, 0.7).decoding("5-8", 0.0961, length=3),
            Timed("light").drafting(5, 0.7).decoding("1", 0.05, length=3),
            Timed("alone").drafting(5, 0.7).decoding("9-16", 0.5, length=3),
            Timed("both").drafting(5, 0.7).decoding("5-8", 0.2, length=3).decoding("1", 0.01, length=3, steps=9000),
        ],
        [(9, []), (30, [slower("slow", "0.90")])],
        [
            (30, 'round(pod:specdec_speedup:ratio{instance="light:9911"}, 0.0001)', {_labels("light"): 1.2}),
            (30, 'pod:specdec_speedup:ratio{instance="plain:9911"}', {}),
            # both loads: 90 s and 540 s of plain time, over 200 s and 90 s of actual time
            (30, 'round(pod:specdec_speedup:ratio{instance="both:9911"}, 0.0001)', {_labels("both"): 2.1724}),
        ],
    )


def _labels(instance):
    return f'{{instance="{instance}:9911", job="vllm", model_name="m", namespace="prod"}}'


def at_temperature():
    text = "generates 0.80 times as fast as plain decoding at temperature 1+, less than speedup_net_negative."
    yield Scene(
        "the sidecar's own verdict decides, if it rests on the speedup",
        "SpecDecodeSlowerThanPlainAtTemperature",
        "m: slower than without speculation at one temperature",
        [
            Timed("slow").at("0", 1.4, "net_positive").at("1+", 0.8, "net_negative"),
            Timed("unsure").at("1+", 0.8, "break_even"),
            Timed("thumb").at("1+", 0.8, "net_negative", basis="acceptance"),
        ],
        [(9, []), (30, [_firing("warning", "slow", text, temperature="1+")])],
    )
    yield Scene(
        "it lasts 5 minutes longer than its condition, and is pending for 10",
        "SpecDecodeSlowerThanPlainAtTemperature",
        "m: slower than without speculation at one temperature",
        [Timed("slow").at("1+", 0.8, "net_negative", minutes=30)],
        [
            (9, []),
            (12, [_firing("warning", "slow", text, temperature="1+")]),
            (37, [_firing("warning", "slow", text, temperature="1+")]),
            (44, []),
        ],
    )


def acceptance_low():
    pods = [
        Timed("pays").drafting(5, 0.39).timed(1.3),
        Timed("loses").drafting(5, 0.39).timed(0.99),
        Timed("thumb").drafting(5, 0.39),
        Timed("high").drafting(5, 0.6).timed(1.3),
    ]
    yield Scene(
        "a low acceptance that pays is for information",
        "SpecDecodeAcceptanceLow",
        "m: few draft tokens are accepted, but speculation still pays",
        [pods[0], pods[3]],
        [(9, []), (17, [paying("pays", "39%")])],
    )
    yield Scene(
        "it lasts 5 minutes longer than the speedup is known",
        "SpecDecodeAcceptanceLow",
        "m: few draft tokens are accepted, but speculation still pays",
        [Timed("pays").drafting(5, 0.39).timed(1.3, minutes=30)],
        [(9, []), (37, [paying("pays", "39%")])],
    )
    yield Scene(
        "a low acceptance that does not pay, or of which nothing is known, pages",
        "SpecDecodeAcceptanceLow",
        "m: speculative decoding costs more than it gives",
        pods[1:],
        [(9, []), (30, [low("loses", "39%"), low("thumb", "39%")])],
    )


def across_pods():
    """Replaced every eight minutes or lasting: a paying pod does not count, nor does its alert speak for the others."""

    def times(speedup):
        return lambda pod: pod.gauge("specdec_engine_speedup_ratio", (8, speedup), engine="0")

    swinging = [(8, 5, 0.3), (6, 5, 0.9)] * 8  # minutes, drafts per second, acceptance
    lows = "model:specdec_pods_low:count"
    yield Scene(
        "pods that pay are none that lose, and the information about one does not hold the page back",
        "SpecDecodeAcceptanceLowAcrossPods",
        "MODEL: pods that lose from speculation keep being replaced",
        [
            *replaced("pays", 0.3, namespace="pays", more=times(1.02)),
            *replaced("loses", 0.3, namespace="loses", more=times(0.98)),
            *replaced("thumb", 0.3, namespace="beside"),
            Timed("paying", namespace="beside", minutes=100).drafting(5, 0.3).timed(1.6),
            Timed("swings", namespace="swings", minutes=100).drafting_in(swinging, 3, "0", 10, 0).timed(1.6),
        ],
        [(10, [])] + [(minute, [across("loses"), across("beside")]) for minute in (40, 60, 85)] + [(120, [])],
        [(47, lows, {key(lows, namespace=one): 1 for one in ("loses", "beside")})],
        reads=LOW,
    )


def explained():
    """What an alert for information explains, and what it does not: it fires for 50 minutes, and for 5 more."""
    yield Scene(
        "it ends with the information on the whole pod, too",
        "SpecDecodeAcceptanceLowAtTemperature",
        "MODEL: speculative decoding loses at one temperature",
        [Timed("part").drafting(5, 0.3, minutes=40, then=(0.9, 5)).bucket("1+", 4, 0.3).timed(1.6)],
        [(9, []), (37, [at("part", "30%")]), (52, []), (60, []), (70, []), (85, [at("part", "30%")])],
        reads=LOW,
    )
    now = [(60, 5, 0.3), (90, 5, 0.6)]  # minutes, drafts per second, acceptance
    yield Scene(
        "it does not end with the information on a pod that pays",
        "SpecDecodeAcceptanceRegressed",
        "MODEL: acceptance fell below that of the day before",
        [
            Timed("pays", minutes=DAY + 150)
            .drafting_in([(150, 5, 0.8), (DAY - 150, None, None), *now], 3, "0", 10, 0)
            .timed(1.6)
        ],
        [(DAY + 25, []), (DAY + 50, [fell("pays", "50%")])]
        + [(DAY + minute, [fell("pays", "20%")]) for minute in (66, 75, 85, 100)],
        reads=LOW,
    )


SCENES = [*slower_than_plain(), *at_temperature(), *acceptance_low(), *across_pods(), *explained()]
