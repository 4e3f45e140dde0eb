"""Scenes for the alerts on latency and the KV cache."""

from tests.alerts.alert_series import DAY, Pod, gauge
from tests.alerts.alert_tools import Firing, Scene


def net_negative():
    name, summary = "SpecDecodeNetNegative", "MODEL: pods that speculate are slower than those that do not"

    def firing(model, times, quantile):
        return Firing(
            "warning",
            f"The pods of {model} that speculate take {times} times as long per output token (quantile {quantile}) as "
            "those that do not, on average.",
            {"model_name": model, "namespace": "prod", "quantile": quantile},
        )

    def fleet(model, spec, plain, **options):
        less, more = [[one * factor for one in spec] for factor in (0.9, 1.1)]
        yield Pod(f"{model}-a", model=model, **options).drafting(5, 0.6).generating(10).tpot(*less)
        yield Pod(f"{model}-b", model=model, **options).drafting(1.05, 0.6).generating(10).tpot(*more)
        less, more = [[one * factor for one in plain] for factor in (0.9, 1.1)]
        yield Pod(f"{model}-c", model=model, **options).generating(10).tpot(*less)
        yield Pod(f"{model}-d", model=model, **options).generating(1.05).tpot(*more)
        # None of these says anything of what speculation costs.
        yield Pod(f"{model}-idle", model=model, **options).generating(0.95).tpot(0.01, 0.01)
        yield Pod(f"{model}-slow", model=model, **options).drafting(0.95, 0.6).generating(10).tpot(9, 9)
        pod = Pod(f"{model}-stopped", model=model, **options).drafting(5, 0.6, minutes=10, then=(0, 0))
        yield pod.generating(10).tpot(0.001, 0.001)

    slower = [firing("slower", "1.15", "0.5"), firing("slower", "1.2", "0.99")]
    yield Scene(
        "averages over the pods that tell, compared with the most patient setting of the namespace",
        name,
        summary,
        [
            *fleet("slower", (0.0345, 0.096), (0.03, 0.08), minutes=100),
            *fleet("close", (0.0315, 0.084), (0.03, 0.08)),
            Pod("alone", model="alone").drafting(5, 0.6).generating(10).tpot(0.05, 0.1),
            *fleet("patient", (0.0345, 0.096), (0.03, 0.08), namespace="staging", minutes=90, slowdown=1.05),
            Pod("setting", model="other", namespace="staging", slowdown=1.3),
            Pod("hasty", model="other", slowdown=1.0),
        ],
        [(44, []), (60, slower), (105, slower), (115, [])],
        edges=(44,),
    )


def gap_wide():
    name, summary = "SpecDecodeLatencyGapWide", "MODEL: the tail of the latency has moved away from the median"

    def firing(instance, times):
        return Firing(
            "warning",
            f"P99 - P50 of the time per output token of m on {instance}:9911 is {times} times that of its baseline or, "
            "without one, of the same hour of the day before; more than latency_gap_growth.",
            {"instance": f"{instance}:9911", "model_name": "m"},
        )

    wide, slow, enough = firing("wide", "1.55"), firing("slow", "1.55"), firing("enough", "1.55")
    yield Scene(
        "against the baseline",
        name,
        summary,
        [
            Pod("wide", minutes=60).drafting(5, 0.8).baseline(0.02, 0.04).tpot(0.02, 0.051),
            Pod("slow").drafting(1.05, 0.8).baseline(0.02, 0.04).tpot(0.02, 0.051),
            Pod("less").drafting(5, 0.8).baseline(0.02, 0.04).tpot(0.02, 0.049),
            Pod("idle").drafting(0.95, 0.8).baseline(0.02, 0.04).tpot(0.02, 0.06),
            Pod("few").drafting(5, 0.8, requests=3.8).baseline(0.02, 0.04).tpot(0.02, 0.06),
            Pod("enough").drafting(5, 0.8, requests=4.2).baseline(0.02, 0.04).tpot(0.02, 0.051),
            Pod("steps").drafting(5, 0.8).baseline(0.02, 0.04).tpot(0.02, 0.06, phase="itl"),
            Pod("unknown").drafting(5, 0.8).tpot(0.02, 0.06),
            Pod("lenient", latency_gap_growth=2).drafting(5, 0.8).baseline(0.02, 0.04).tpot(0.02, 0.051),
            Pod("flat").drafting(5, 0.8).baseline(0.04, 0.04).tpot(0.02, 0.051),
        ],
        [(14, []), (25, [wide, slow, enough]), (66, [wide, slow, enough]), (75, [slow, enough])],
    )

    def later(instance, minutes=150):
        """Some minutes of a narrow gap and, a day later, a wide one."""
        pod = Pod(instance, minutes=DAY + 150).drafting(5, 0.8)
        for quantile, before, now in (("0.5", 0.02, 0.02), ("0.99", 0.04, 0.051)):
            values = gauge((minutes, before), (DAY - minutes, None), (150, now))
            labels = {"engine": "0", "phase": "tpot", "quantile": quantile}
            pod.of_model("specdec_engine_latency_seconds", values, **labels)
        return pod

    yield Scene(
        "without a baseline against the same hour of the day before",
        name,
        summary,
        [
            later("past"),
            later("baseline").baseline(0.02, 0.05),
            later("brief", 25),
            Pod("young", minutes=DAY + 150).drafting(5, 0.8).tpot(0.02, 0.04, minutes=DAY, then=(0.02, 0.039)),
        ],
        [(140, []), (DAY + 10, []), (DAY + 40, [firing("past", "1.55")])],
    )


def kv_cache():
    name, summary = "SpecDecodeKVCachePressure", "MODEL: the KV cache is full and requests wait for it"

    def firing(instance, value):
        return Firing(
            "warning",
            f"KV-cache usage of m on {instance}:9911 peaks at {value}, more than kv_cache_usage, while requests wait "
            "for capacity.",
            {"instance": f"{instance}:9911", "model_name": "m"},
        )

    def pod(instance, peak, *waiting, capacity=None, minutes=60, **own):
        made = Pod(instance, minutes=minutes, **own).gauge("specdec_kv_cache_usage_peak_ratio", (60, peak), engine="0")
        made.gauge("specdec_requests_waiting", *waiting, engine="0")
        return made if capacity is None else made.gauge("specdec_requests_waiting_for_capacity", *capacity, engine="0")

    several = pod("several", 0.5, (60, 1)).gauge("specdec_kv_cache_usage_peak_ratio", (60, 0.95), engine="1")
    several.gauge("specdec_requests_waiting", (60, 3), engine="1")
    together = pod("together", 0.95, (60, 0.4)).gauge("specdec_requests_waiting", (60, 0.4), engine="1")
    both = pod("both", 0.95, (60, 0), capacity=[(60, 0.4)])
    both.gauge("specdec_requests_waiting_for_capacity", (60, 0.4), engine="1")
    expected = [
        firing("full", "91%"),
        firing("now-and-then", "91%"),
        firing("capacity", "91%"),
        firing("several", "95%"),
        firing("together", "95%"),
        firing("both", "95%"),
    ]
    yield Scene(
        "full and waited for",
        name,
        summary,
        [
            pod("full", 0.91, (60, 2)),
            pod("now-and-then", 0.91, *[(2, 0), (2, 3)] * 15),
            pod("less", 0.89, (60, 2)),
            pod("unwaited", 0.99, (60, 0)),
            pod("capacity", 0.91, (60, 9), capacity=[(60, 0.6)]),
            pod("deferred", 0.99, (60, 9), capacity=[(60, 0.4)]),
            pod("one-scrape", 0.99, *[(1, 1), (4, 0)] * 12),
            pod("one-burst", 0.99, (20, 0), (1, 50), (39, 0)),
            pod("lenient", 0.91, (60, 2), kv_cache_usage=0.95),
            several,
            together,
            both,
        ],
        [(9, []), (15, expected), (35, expected), (66, expected), (75, [])],
    )


def mixed():
    name = "SpecDecodeMixedWorkload"
    summary = "MODEL: one pod serves traffic that gains from speculation and traffic that loses"

    def firing(instance, sign, value):
        return Firing(
            "info",
            f"m on {instance}:9911, seen by {sign}: {value} (temperatures: best acceptance minus worst; latency: "
            "growth of P99 - P50 while P50 fell).",
            {"instance": f"{instance}:9911", "model_name": "m", "sign": sign},
        )

    apart = firing("apart", "temperatures", "0.17")
    yield Scene(
        "temperatures on both sides of the thresholds",
        name,
        summary,
        [
            Pod("apart", minutes=60).bucket("0", 6, 0.66).bucket("1+", 4, 0.49),
            Pod("good").bucket("0", 6, 0.66).bucket("1+", 4, 0.51),
            Pod("bad").bucket("0", 6, 0.64).bucket("1+", 4, 0.49),
            Pod("middle").bucket("0", 6, 0.66).bucket("0.3-0.5", 6, 0.55).bucket("1+", 4, 0.51),
            Pod("rare").bucket("0", 19, 0.9).bucket("1+", 1, 0.1, verdict="insufficient_data"),
        ],
        [(14, []), (30, [apart]), (62, [apart]), (70, [])],
        edges=(62,),
    )
    again = firing("part", "temperatures", "0.6")
    yield Scene(
        "it ends with the alert on the whole pod",
        name,
        summary,
        [Pod("part").drafting(5, 0.3, minutes=40, then=(0.9, 5)).bucket("0", 6, 0.9).bucket("1+", 4, 0.3)],
        [(30, [again]), (52, []), (65, []), (90, [again])],
        reads=("SpecDecodeAcceptanceLow",),
    )

    def pod(instance, p50, p99, drafts=5.0, requests=4.2, **own):
        return (
            Pod(instance, minutes=60, **own)
            .drafting(drafts, 0.8, requests=requests)
            .baseline(0.03, 0.05)
            .tpot(p50, p99)
        )

    widened = firing("widened", "latency", "1.55")
    yield Scene(
        "a median that fell and a tail that grew",
        name,
        summary,
        [
            pod("widened", 0.025, 0.056),
            pod("less", 0.025, 0.054),
            pod("slower", 0.031, 0.063),
            pod("faster", 0.01, 0.049),
            pod("idle", 0.025, 0.06, drafts=0.95),
            pod("slow", 0.025, 0.056, drafts=1.05),
            pod("few", 0.025, 0.056, requests=3.8),
            pod("lenient", 0.025, 0.056, latency_gap_growth=2),
        ],
        [(14, []), (30, [widened, firing("slow", "latency", "1.55")])],
    )


SCENES = [*net_negative(), *gap_wide(), *kv_cache(), *mixed()]
