"""A server's report, for the conditions of the direct push."""

from dataclasses import replace

from sidecar.analysis.acceptance import Acceptance, over_engines
from sidecar.analysis.engine_state import EngineReport
from sidecar.analysis.latency import Latency
from sidecar.analysis.limitation import Limitation
from sidecar.analysis.request_state import ModelRequests, RequestReport
from sidecar.analysis.request_stats import RequestStats
from sidecar.analysis.request_window import SpeculationSummary
from sidecar.analysis.target_state import TargetReport
from sidecar.analysis.verdict import Estimate, Evidence, Judge, ModelEvidence, VerdictThresholds
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.settings import Settings
from sidecar.settings.groups import Thresholds
from sidecar.wiring import push_thresholds

WINDOW = 300.0
COUNTERS = (Counter.FIRST_TOKENS, Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS)


def filled(kind, **known):
    """A frozen report; None in the fields that no condition reads, so that reading one more of them fails."""
    return kind(**(dict.fromkeys(kind.__dataclass_fields__) | known))


def engine(
    *, acceptance=0.8, drafts=5.0, number="0", peak=0.5, waiting=0.0, tpot=(0.02, 0.04), requests=20, running=0, **more
):
    """``drafts`` per second over the window; ``counters``: requests, drafts, draft and accepted tokens so far."""
    count = drafts * WINDOW
    quantiles = {0.5: tpot[0], 0.9: tpot[1], 0.95: tpot[1], 0.99: tpot[1]}
    return filled(
        EngineReport,
        key=EngineKey("m", number),
        counters=dict(zip(COUNTERS, more.get("counters", (0, 0, 0, 0)), strict=True)),
        acceptance=Acceptance(count, 3 * count, 3 * count * acceptance, ()),
        gauges={Gauge.REQUESTS_WAITING: waiting, Gauge.REQUESTS_RUNNING: running} | more.get("gauges", {}),
        kv_cache_peak=peak,
        latencies={Phase.TPOT: Latency(quantiles, 100), Phase.TTFT: Latency(quantiles, requests)},
    )


def bucket(acceptance, drafts=5.0, requests=50):
    count = drafts * WINDOW
    return filled(
        SpeculationSummary,
        requests=requests,
        drafts=count,
        draft_tokens=3 * count,
        accepted_tokens=3 * count * (acceptance or 0),
        acceptance=acceptance,
    )


def make_report(
    *engines,
    temperatures=None,
    coverage=0.9,
    up=True,
    last_scrape=1.0,
    old=False,
    name="vllm",
    speedups=None,
    rates=(),
    **limits,
):
    """``temperatures`` by label; ``speedups`` by label, None for the model as a whole; ``limits``: thresholds.

    ``rates`` are single requests' acceptance.
    """
    stats = RequestStats((), WINDOW)
    for rate in rates:
        stats.tail.add(rate, last_scrape)
    model = filled(ModelRequests, model_name="m", stats=stats, coverage=coverage, residual=0.02)
    return filled(
        TargetReport,
        name=name,
        up=up,
        last_scrape=last_scrape,
        engines=engines,
        limitations={EngineKey("m", "0"): frozenset({Limitation.V0_COUNTERS} if old else ())},
        requests=filled(RequestReport, source="proxy", models=(model,)),
        judgements=_judged(engines, temperatures or {}, coverage, Thresholds(**limits), speedups or {}) if up else (),
    )


def make_limits(baselines=None):
    return replace(push_thresholds(Settings()), baselines=baselines or {})


def _judged(engines, temperatures, coverage, limits, speedups):
    """As the state judges: the whole over all engines, each temperature by its share."""
    thresholds = VerdictThresholds(
        net_negative=limits.acceptance_net_negative,
        break_even=limits.acceptance_break_even,
        slower=limits.speedup_net_negative,
        coverage=limits.coverage,
        window=WINDOW,
    )
    whole = over_engines([engine.acceptance for engine in engines]) if engines else None
    total = sum(work.draft_tokens for work in temperatures.values())
    estimates = {label: Estimate(value, 0.01) for label, value in speedups.items()}
    known = {"drafts": whole.drafts, "draft_tokens": whole.draft_tokens, "acceptance": whole.rate} if whole else {}
    model = ModelEvidence(
        model_name="m",
        whole=Evidence(**known, speedup=estimates.get(None)),
        temperatures={
            label: replace(work.evidence(total), speedup=estimates.get(label)) for label, work in temperatures.items()
        },
        coverage=coverage,
    )
    return Judge(thresholds).judge([model])
