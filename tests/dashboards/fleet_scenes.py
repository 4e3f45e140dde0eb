"""Fleets as series in a real Prometheus: pods that win, lose, end or never start, without waiting for any of it.

Each fleet is a ``cluster`` of its own, so that one Prometheus has them all.
"""

from dataclasses import dataclass, field
from itertools import chain
from statistics import mean

from sidecar.settings.groups import Thresholds

STEP = 15  # seconds between scrapes; all times are multiples of it
VERDICTS = ("net_positive", "break_even", "net_negative", "insufficient_data")
THRESHOLDS = {name: value for name, value in Thresholds().model_dump().items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class Pod:
    """What a pod's page says; ``starts``, ``ends`` and ``vllm_ends`` are seconds before now."""

    name: str
    model: str = "qwen"
    temperatures: dict = field(default_factory=lambda: {"0": (0.8, "net_positive"), "0.7-1": (0.6, "net_positive")})
    verdict: str = "net_positive"
    speedup: float | None = 1.3  # None: judged by the rule of thumb
    finding: str = "room"
    drafts: float = 10  # a second; 0: vLLM runs without speculation
    starts: int = 1800
    ends: int = 0
    vllm_ends: int = 0
    target: bool = True  # Prometheus still tries to reach it after its end

    @property
    def acceptance(self):
        rates = [rate for rate, _ in self.temperatures.values()] or [0.6]
        return sum(rates) / len(rates)


@dataclass(frozen=True)
class Series:
    """A series of a pod's page, and its growth per second. A gauge of vLLM's is there only while vLLM answers."""

    name: str
    labels: dict
    value: float = 1
    growth: float = 0
    vllm: bool = False


def _page(pod):
    model, engine = {"model_name": pod.model}, {"model_name": pod.model, "engine": "0"}
    yield from (Series("threshold", {"name": name}, value) for name, value in THRESHOLDS.items())
    yield Series("build_info", {"version": "0.1.0"})
    yield Series("finding", {**model, "finding": pod.finding})
    counters = {"generation_tokens": 30}
    if pod.drafts:
        drafted = 3 * pod.drafts
        accepted = drafted * pod.acceptance
        counters |= {"drafts": pod.drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    for name, growth in counters.items():
        part = "" if name == "generation_tokens" else "engine_"
        yield Series(f"{part}{name}_total", engine, 0, growth)
    gauges = {"requests_running": 4, "requests_waiting": 1, "kv_cache_usage_peak_ratio": 0.6}
    if pod.speedup is not None:
        gauges |= {"engine_speedup_ratio": pod.speedup, "break_even_acceptance_ratio": 0.4}
    yield from (Series(name, engine, value, vllm=True) for name, value in gauges.items())
    token = {**engine, "phase": "tpot"}
    yield Series("engine_latency_seconds", {**token, "quantile": "0.99"}, 0.05, vllm=True)
    yield Series("engine_latency_gap_seconds", token, 0.03, vllm=True)
    yield from _judged("model_verdict", model, pod.verdict)
    yield from _judged("engine_verdict", engine, pod.verdict)
    if pod.verdict != "insufficient_data":
        yield Series("model_acceptance_ratio", model, pod.acceptance, vllm=True)
        basis = "acceptance" if pod.speedup is None else "speedup"
        yield Series("model_verdict_basis", {**model, "basis": basis}, vllm=True)
    for temperature, (rate, verdict) in pod.temperatures.items():
        labels, drafted = {**model, "temperature": temperature}, 3 * pod.drafts / len(pod.temperatures)
        yield Series("draft_tokens_total", labels, 0, drafted)
        yield Series("accepted_tokens_total", labels, 0, drafted * rate)
        yield from _judged("verdict", labels, verdict)


def _judged(name, labels, verdict):
    return (Series(name, {**labels, "verdict": each}, int(each == verdict), vllm=True) for each in VERDICTS)


def _lines(name, labels, values):
    """Samples, each with how long ago it was; ``values`` are pairs of that and the value."""
    given = ",".join(f'{label}="{text}"' for label, text in labels.items() if text)
    return ((f"{name}{{{given}}} {value}", ago) for ago, value in values)


def _times(start, end):
    return range(start, end - 1, -STEP)


def _pod(cluster, pod):
    """All series of a pod, its target's ``up`` and what the rules record of it."""
    target = {"cluster": cluster, "namespace": "llm", "job": "sidecar", "instance": f"{pod.name}:9911", "pod": pod.name}
    vllm_end = max(pod.ends, pod.vllm_ends)
    for series in _page(pod):
        if vllm_end > pod.starts and "model_name" in series.labels:
            continue  # a vLLM that was never up has no model
        end = vllm_end if series.vllm else pod.ends
        grown = ((ago, series.growth * (pod.starts - max(ago, vllm_end))) for ago in _times(pod.starts, end))
        values = ((ago, series.value + growth) for ago, growth in grown)
        yield from _lines(f"specdec_{series.name}", target | series.labels, values)
    scraped = _times(pod.starts, pod.ends if not pod.target else 0)
    yield from _lines("up", target, ((ago, int(ago >= pod.ends)) for ago in scraped))
    yield from _lines("specdec_up", target, ((ago, int(ago >= vllm_end)) for ago in _times(pod.starts, pod.ends)))
    if pod.starts > max(300, vllm_end):  # the rules need minutes to tell
        speculates = [(ago, int(pod.drafts > 0)) for ago in _times(pod.starts - 300, vllm_end)]
        yield from _lines("pod:specdec_speculates:bool", {**target, "model_name": pod.model}, speculates)


def _models(cluster, pods):
    """What the rules record of each model: its pods have as much traffic each."""
    for model in {pod.model for pod in pods}:
        drafting = [pod for pod in pods if pod.model == model and pod.drafts]
        labels = {"cluster": cluster, "namespace": "llm", "model_name": model}
        gains = {
            "engine_acceptance": mean(pod.acceptance for pod in drafting),
            "speedup": mean(pod.speedup or 1 for pod in drafting),
        }
        for name, value in gains.items():
            yield from _lines(f"model:specdec_{name}:ratio", labels, ((ago, value) for ago in _times(1800, 0)))


def _alert(cluster, labels, since, now):
    named = {"cluster": cluster, **labels, "alertname": f"SpecDecode{labels['alertname']}"}
    yield from _lines("ALERTS", {**named, "alertstate": "firing"}, ((ago, 1) for ago in _times(300, 0)))
    yield from _lines("ALERTS_FOR_STATE", named, ((ago, now - since) for ago in _times(300, 0)))


def series(fleets, now):
    """The pods and alerts of each cluster, as lines of OpenMetrics."""
    pods = chain.from_iterable(_pod(cluster, pod) for cluster, (pods, _) in fleets.items() for pod in pods)
    alerts = chain.from_iterable(
        _alert(cluster, labels, since, now) for cluster, (_, alerts) in fleets.items() for labels, since in alerts
    )
    models = chain.from_iterable(_models(cluster, pods) for cluster, (pods, _) in fleets.items())
    links = _lines("fleet:specdec_runbooks:any", {"runbooks": "http://runbooks"}, ((ago, 1) for ago in _times(1800, 0)))
    return (f"{sample} {now - ago}" for sample, ago in chain(pods, models, alerts, links))
