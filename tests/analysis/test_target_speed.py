"""From vLLM's pages to verdicts by speedup and to their series."""

import pytest

from sidecar.analysis.attribution.options import AttributionOptions
from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.request_state import RequestState
from sidecar.analysis.speed_state import SpeedOptions
from sidecar.analysis.target_state import TargetState
from sidecar.analysis.temperature import TemperatureBuckets
from sidecar.analysis.verdict import Basis, Verdict
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.engine.version import VersionFamily
from sidecar.errors import TimedOut
from sidecar.export.collector import ExportOptions, OwnCounts, export_families
from sidecar.requests.record import Outcome, RequestAcceptance, RequestRecord

CURVE = PlainCurve(running=(1.0, 16.0), seconds=(0.02, 0.02), deviations=((0.0002,), (0.0002,)), prompt_share=0.0)
KEY = EngineKey("m", "0")
START = 1000.0


def page(second, *, accepted, step_seconds):
    """Four requests for ``second`` seconds, 3 draft tokens a step of which ``accepted`` (0 to 1) are."""
    steps = second / step_seconds
    drafts = 4 * steps
    counters = {
        Counter.DRAFTS: drafts,
        Counter.DRAFT_TOKENS: 3 * drafts,
        Counter.ACCEPTED_TOKENS: 3 * drafts * accepted,
        Counter.DECODE_STEPS: drafts,
        Counter.DECODE_SECONDS: drafts * step_seconds,
        Counter.STEPS: steps,
        Counter.FIRST_TOKENS: 0.0,
        Counter.GENERATION_TOKENS: drafts * (1 + 3 * accepted),
        Counter.PROMPT_TOKENS: 0.0,
    }
    engine = EngineSnapshot(KEY, counters, (), {}, {}, None)
    return PageSnapshot((engine,), VersionFamily.V1_32, 1.0, 0)


def served(*, accepted, step_seconds, curves=None):
    """A server after two minutes; each second one request of a second ended at temperature 0.8."""
    requests = RequestState(
        "proxy", buckets=TemperatureBuckets(), options=AttributionOptions(), window=300.0, max_models=1
    )
    speed = SpeedOptions(curves={"m": CURVE} if curves is None else curves, temperatures=TemperatureBuckets().labels)
    target = TargetState("t", Lookback(), interval=1.0, max_engines=8, speed=speed, requests=requests)
    for second in range(1, 121):
        at = START + second
        drafts = round(1 / step_seconds)
        found = RequestRecord(
            id=str(second),
            path="/v1/completions",
            model="m",
            temperature=0.8,
            choices=1,
            stream=True,
            start=at - 1.6,
            first_token=at - 1.5,
            end=at - 0.5,
            outcome=Outcome.COMPLETED,
            completion_tokens=1 + round(drafts * (1 + 3 * accepted)),
            acceptance=RequestAcceptance(drafts, 3 * drafts, round(3 * drafts * accepted)),
        )
        requests.finished(found)
        target.scraped(at, 0.001, 1.0, page(second, accepted=accepted, step_seconds=step_seconds))
    return target


def series(target):
    families = export_families([target.report(START + 120.5)], OwnCounts(), ExportOptions())
    return {
        (family.metric.name, *labels): value
        for family in families
        for labels, value in zip(family.labels, family.values, strict=False)
    }


@pytest.mark.parametrize(
    ("accepted", "step_seconds", "verdict", "by_acceptance"),
    [
        (0.35, 0.025, Verdict.NET_POSITIVE, Verdict.NET_NEGATIVE),  # accepts little, and is 1.64 times faster
        (0.7, 0.1, Verdict.NET_NEGATIVE, Verdict.NET_POSITIVE),  # accepts much, and is slower
        (0.5, 0.05, Verdict.BREAK_EVEN, Verdict.BREAK_EVEN),
    ],
)
def test_the_measured_speedup_decides_not_the_acceptance(accepted, step_seconds, verdict, by_acceptance):
    target = served(accepted=accepted, step_seconds=step_seconds)
    (model,) = target.report(START + 120.5).judgements
    for judged in (model.whole, model.temperatures["0.7-1"]):
        assert (judged.verdict, judged.basis, judged.by_acceptance) == (verdict, Basis.SPEEDUP, by_acceptance)
        assert judged.evidence.speedup.value == pytest.approx((1 + 3 * accepted) * 0.02 / step_seconds, rel=0.02)


def test_its_series():
    found = series(served(accepted=0.35, step_seconds=0.025))
    assert found["specdec_engine_speedup_ratio", "m", "0"] == pytest.approx(1.64)
    assert found["specdec_speedup_ratio", "m", "0.7-1"] == pytest.approx(1.64, rel=0.02)
    assert found["specdec_break_even_acceptance_ratio", "m", "0"] == pytest.approx(0.25 / 3)
    assert found["specdec_plain_step_seconds", "m", "3-4", "baseline"] == pytest.approx(0.02)
    assert found["specdec_verdict_basis", "m", "0.7-1", "speedup"] == 1
    assert found["specdec_verdict_basis", "m", "0", "speedup"] == 0
    assert found["specdec_decode_seconds_total", "m", "0", "3-4"] == pytest.approx(4 * 119)
    assert found["specdec_decode_steps_total", "m", "0", "3-4"] == pytest.approx(4 * 119 / 0.025)
    assert found["specdec_decode_tokens_total", "m", "0", "3-4"] == pytest.approx(4 * 119 / 0.025 * 2.05)
    assert found["specdec_decode_tokens_total", "m", "0", "257+"] == 0
    assert found["specdec_time_saved_seconds_total", "m", "0.7-1"] == pytest.approx(118 * 0.64, rel=0.05)
    assert found["specdec_time_lost_seconds_total", "m", "0.7-1"] == 0


def test_without_a_reference_the_rule_of_thumb_speaks_and_no_speedup_is_exported():
    target = served(accepted=0.35, step_seconds=0.025, curves={})
    (model,) = target.report(START + 120.5).judgements
    assert (model.whole.verdict, model.whole.basis) == (Verdict.NET_NEGATIVE, Basis.ACCEPTANCE)
    names = {name for name, *_ in series(target)}
    assert not names & {"specdec_speedup_ratio", "specdec_engine_speedup_ratio", "specdec_time_saved_seconds_total"}
    assert "specdec_decode_steps_total" in names


def test_while_polls_fail_there_is_no_speedup_and_its_counters_stay():
    target = served(accepted=0.35, step_seconds=0.025)
    before = series(target)
    target.failed(START + 120.2, TimedOut("x"))
    after = series(target)
    assert not {name for name, *_ in after} & {"specdec_speedup_ratio", "specdec_engine_speedup_ratio"}
    for name in ("specdec_decode_steps_total", "specdec_time_saved_seconds_total"):
        counters = {key: value for key, value in before.items() if key[0] == name}
        assert counters == {key: value for key, value in after.items() if key[0] == name}
