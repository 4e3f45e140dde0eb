"""The sentence at the top of the page, from a status."""

from sidecar.export.page.answer import answer
from sidecar.export.page.sections import target_section

THRESHOLDS = {"acceptance_net_negative": 0.5, "acceptance_break_even": 0.65, "kv_cache_usage": 0.9}


def acceptance(accepted, drafted):
    return {"rate": accepted / drafted, "length": None, "accepted_tokens": accepted, "draft_tokens": drafted}


def engine(**changes):
    values = {
        "model_name": "m",
        "engine": "0",
        "acceptance": None,
        "acceptance_history": [],
        "kv_cache_history": [],
        "gauges": {},
        "kv_cache_usage_peak": None,
        "kv_cache_capacity_tokens": None,
        "latency": {},
        "limitations": [],
    }
    return values | changes


def target(*engines, models=None):
    requests = None if models is None else {"models": models, "events": 1, "exact": True}
    return {"up": True, "last_error": None, "engines": list(engines), "requests": requests}


def model(name, verdict, rate, drafted=100):
    work = {"verdict": verdict, "acceptance": rate, "draft_tokens": drafted}
    return {"model_name": name, "temperatures": {"0": work}}


def test_an_engine_weighs_as_much_as_it_drafts():
    said = answer(target(engine(acceptance=acceptance(9, 10)), engine(acceptance=acceptance(300, 1000))), THRESHOLDS)
    assert said.tone == "bad"
    assert said.why.startswith("Acceptance is 31% ")


def test_one_models_verdict_does_not_hide_anothers():
    said = answer(target(models=[model("a", "net_negative", 0.3), model("b", "net_positive", 0.8)]), THRESHOLDS)
    assert said.text == "Speculation loses at temperature 0 (a): 50% of the draft tokens."
    assert said.why == "Acceptance by temperature: 0 (a): 30%, 0 (b): 80%."


def test_a_model_without_a_verdict_is_not_named():
    said = answer(target(models=[model("a", "net_positive", 0.8), model("b", "insufficient_data", None)]), THRESHOLDS)
    assert said.why == "Acceptance by temperature: 0: 80%."


def test_what_vllm_does_not_tell_is_no_zero():
    assert "running" not in target_section(target(engine()), THRESHOLDS)
    assert "2 running" in target_section(target(engine(gauges={"requests_running": 2.0})), THRESHOLDS)


def latencies(p50, p99, growth):
    told = {"quantiles": {"0.5": p50, "0.99": p99}, "resolution": 0.01, "gap_seconds": p99 - p50, "gap_growth": growth}
    page = target_section(target(engine(latency={"tpot": told})), THRESHOLDS)
    return [cell.partition("</td>")[0] for cell in page.split("<td class=number>")[1:]]


def test_below_vllms_first_bucket_nothing_is_made_up():
    assert latencies(0.005, 0.0099, 2.0) == ["&lt; 10 ms"] * 3
    assert latencies(0.005, 0.035, 2.0) == ["&lt; 10 ms", "35 ms", "30 ms (2.0 times the baseline)"]
