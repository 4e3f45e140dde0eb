"""How many series there can be: the state filled to each of its limits."""

import pytest
from aiohttp import web
from prometheus_client import ProcessCollector

from sidecar.analysis.attribution.attributors import DROP_REASONS
from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.request_state import RequestState
from sidecar.analysis.speed_state import SpeedOptions
from sidecar.analysis.steps import LOAD_LABELS
from sidecar.analysis.target_state import TargetState
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.engine.merge import OTHER
from sidecar.engine.names import Counter, Gauge, Phase
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, HistogramReading, PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.export.client import process_families
from sidecar.export.collector import ExportOptions, OwnCounts, export_families
from sidecar.export.metrics import MOST_SERIES
from sidecar.http.guard import GuardedServer, Refusal
from sidecar.requests.middleware.source import DROP_REASONS as MIDDLEWARE_REASONS
from sidecar.requests.proxy.outcomes import ProxyStats
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord
from sidecar.settings.groups import Limits, Thresholds

LIMITS = Limits()
CURVE = PlainCurve(running=(1.0, 300.0), seconds=(1.0, 1.0), deviations=((0.0,), (0.0,)), prompt_share=0.0)
QUANTILES = dict.fromkeys((0.5, 0.9, 0.95, 0.99), 0.1)


def engine(key, poll):
    counts = (poll, 2.0 * poll, 3.0 * poll)
    return EngineSnapshot(
        key,
        dict.fromkeys(Counter, 100.0 * poll) | {Counter.GENERATION_TOKENS: 300.0 * poll},
        (50.0 * poll,) * 40,
        dict.fromkeys(Gauge, 0.5),
        dict.fromkeys(Phase, HistogramReading((0.1, 1.0, float("inf")), counts)),
        1000,
    )


def record(number, model, temperature, end):
    return RequestRecord(
        id=str(number),
        path="/v1/completions",
        model=model,
        temperature=temperature,
        choices=1,
        stream=False,
        start=end - 1,
        first_token=None,
        end=end,
        outcome=Outcome.COMPLETED,
        completion_tokens=100,
        acceptance=RequestAcceptance(30, 1200, 600, (0, *[1] * 30)),
    )


def filled(engines, models, *, source=True, refusals=Refusal):
    """What a page shows at its fullest, with requests at every temperature for every model, shown or not."""
    buckets = TemperatureBuckets()
    reasons = DROP_REASONS | MIDDLEWARE_REASONS
    requests = RequestState(
        "middleware",
        buckets=buckets,
        options=AttributionOptions(),
        window=300.0,
        drop_reasons=reasons,
        max_models=LIMITS.models,
    )
    state = TargetState(
        "t",
        Lookback(),
        interval=1.0,
        max_engines=LIMITS.engines,
        max_positions=LIMITS.positions,
        speed=SpeedOptions(curves={f"model-{n}": CURVE for n in range(models)}, temperatures=buckets.labels),
        requests=requests if source else None,
    )
    keys = [EngineKey(f"model-{number % models}", str(number)) for number in range(engines)]
    temperatures = (0.0, 0.2, 0.4, 0.6, 0.9, 1.5, None, -1.0)
    for poll in range(1, 9):
        at = 1000.0 + 5 * poll
        for number, temperature in enumerate(temperatures):
            for model in range(models + 2):
                requests.finished(record(f"{poll}-{model}-{number}", f"model-{model}", temperature, at - 0.5))
        page = PageSnapshot(tuple(engine(key, poll) for key in keys), VersionFamily.V1_32, 1.0, 1)
        state.scraped(at, 0.1, 1.0, page)
    counts = OwnCounts(
        failures=dict.fromkeys(("t", "alerts", "middleware", "proxy"), 1),
        http_refusals=dict.fromkeys(refusals, 0),
        proxy=ProxyStats(),
        alerts_sent={(f"am-{n}", outcome): 1 for n in range(3) for outcome in ("accepted", "rejected", "failed", "x")},
    )
    options = ExportOptions(
        thresholds=Thresholds().model_dump(),
        baselines={"model-0": dict.fromkeys(Phase, QUANTILES)},
        plain_steps_at={f"model-{n}": 1.0 for n in range(models)},
        max_positions=LIMITS.positions,
    )
    families = export_families([state.report(1040.5)], counts, options)
    return [*families, *process_families(ProcessCollector(registry=None))]


def series(families):
    return sum(len(family.values) for family in families)


@pytest.mark.parametrize("models", [1, 2, 3, 20])
@pytest.mark.parametrize("engines", [1, 2, LIMITS.engines, LIMITS.engines + 1, 40])
def test_no_page_has_more_series_than_the_bound(engines, models):
    assert series(filled(engines, models)) <= MOST_SERIES


@pytest.mark.parametrize(("engines", "models"), [(1, 1), (2, 1), (2, 2)])
def test_a_small_pod_has_far_fewer(engines, models):
    plain = GuardedServer(web.Application()).refusals  # TLS and passwords have three more
    assert series(filled(engines, models, refusals=plain)) <= 1500


@pytest.mark.parametrize("engines", [LIMITS.engines, 40])
def test_without_a_request_source_all_engines_fit_into_that(engines):
    assert series(filled(engines, 1, source=False)) <= 1500


def test_the_state_is_filled_to_its_limits():
    """Else the bound would hold of an emptier page."""
    found = filled(40, 20)
    values = {name: set() for family in found for name in family.label_names}
    for family in found:
        for labels in family.labels:
            for name, value in zip(family.label_names, labels, strict=True):
                values[name].add(value)
    assert len(values["engine"]) == LIMITS.engines + 1
    assert values["position"] == {*map(str, range(LIMITS.positions)), "other"}
    assert values["temperature"] == set(TemperatureBuckets().labels)
    assert OTHER.model_name in values["model_name"]
    assert len(values["phase"]) == len(Phase)
    split = {labels[0] for family in found if family.metric.name == "specdec_drafts_total" for labels in family.labels}
    assert len(split) == LIMITS.models + 1
    names = {family.metric.name for family in found}
    assert {"specdec_speedup_ratio", "specdec_engine_speedup_ratio", "specdec_time_saved_seconds_total"} <= names
    assert values["running"] == set(LOAD_LABELS)
