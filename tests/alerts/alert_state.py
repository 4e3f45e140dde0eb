"""A target's report, for the conditions of the direct push."""

from sidecar.alerting.look import Look
from sidecar.analysis.acceptance import Acceptance
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency
from sidecar.analysis.limitation import Limitation
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.analysis.request_stats import RecentWork
from sidecar.analysis.target_state import TargetReport
from sidecar.analysis.verdict import Verdict
from sidecar.engine.names import Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.settings.groups import Thresholds

WINDOW = 300.0


def filled(kind, **known):
    """A frozen report; None in the fields that no condition reads, so that reading one more of them fails."""
    return kind(**(dict.fromkeys(kind.__dataclass_fields__) | known))


def engine(*, acceptance=0.8, drafts=5.0, number="0", peak=0.5, waiting=0.0, tpot=(0.02, 0.04)):
    """``drafts`` per second over the window."""
    count = drafts * WINDOW
    quantiles = {0.5: tpot[0], 0.9: tpot[1], 0.95: tpot[1], 0.99: tpot[1]}
    return filled(
        EngineReport,
        key=EngineKey("m", number),
        acceptance=Acceptance(count, 3 * count, 3 * count * acceptance, ()),
        gauges={Gauge.REQUESTS_WAITING: waiting},
        kv_cache_peak=peak,
        latencies={Phase.TPOT: Latency(quantiles, 100)},
    )


def bucket(acceptance, drafts=5.0, requests=50):
    count = drafts * WINDOW
    return filled(
        RecentWork,
        requests=requests,
        drafts=count,
        draft_tokens=3 * count,
        accepted_tokens=3 * count * (acceptance or 0),
        acceptance=acceptance,
    )


def make_look(*engines, temperatures=None, verdicts=None, coverage=0.9, up=True, last_scrape=1.0, old=False, **options):
    """``temperatures`` by label; ``options``: thresholds and ``baselines``."""
    baselines = options.pop("baselines", {})
    recent = temperatures or {}
    model = filled(
        ModelRequests,
        model_name="m",
        recent=recent,
        verdicts=dict.fromkeys(recent, Verdict.NET_NEGATIVE) | (verdicts or {}),
        coverage=coverage,
        residual=0.02,
    )
    report = filled(
        TargetReport,
        name="vllm",
        up=up,
        last_scrape=last_scrape,
        engines=engines,
        limitations={EngineKey("m", "0"): frozenset({Limitation.V0_COUNTERS} if old else ())},
        requests=filled(RequestReport, source="proxy", models=(model,)),
    )
    return Look(report, Thresholds(**options), baselines, WINDOW)
