"""The sentence at the top of the page, from a status."""

import pytest

from sidecar.export.page.answer import answer
from sidecar.export.page.sections import target_section

THRESHOLDS = {"acceptance_net_negative": 0.5, "acceptance_break_even": 0.65, "kv_cache_usage": 0.9, "coverage": 0.8}


NOT_TIMED = dict.fromkeys(("speedup", "error", "plain_seconds", "actual_seconds"))


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


def whole(accepted, drafted, verdict="net_positive", name="m", *, is_covered=True):
    found = {"model_name": name, "verdict": verdict, "acceptance": accepted / drafted if drafted else None}
    return found | {
        "drafts": drafted / 3,
        "draft_tokens": drafted,
        "is_covered": is_covered,
        "basis": "acceptance",
        "speed": None,
    }


def target(*engines, models=None, wholes=(), **changes):
    requests = None
    if models is not None:
        values = {"source": "proxy", "events": 1, "ended": 1, "attributed": 1, "dropped": {}, "notes": []}
        requests = values | changes | {"models": models}
    return {"up": True, "last_error": None, "engines": list(engines), "models": list(wholes), "requests": requests}


def bucket(verdict, rate, drafted=100):
    values = {"verdict": verdict, "acceptance": rate, "draft_tokens": drafted, "requests": 9, "share": 0.25}
    return values | {"advice": None, "p10": None, "distribution": [], "basis": "acceptance", "speed": NOT_TIMED}


def timed(plain_ms, actual_ms, *, error=0.01, saved=0.0, lost=0.0, contradicts=False):
    """A temperature's time per token with and without speculation."""
    return {
        "speedup": plain_ms / actual_ms,
        "error": error,
        "plain_seconds": plain_ms / 1000,
        "actual_seconds": actual_ms / 1000,
        "saved_seconds": saved,
        "lost_seconds": lost,
        "contradicts": contradicts,
    }


def timed_target(*, withheld=None, reference="baseline", **temperatures):
    """One model with its temperatures' (verdict, acceptance, times), all together 30 ms plain and 20 ms actual."""
    speed = timed(30, 20) | {
        "withheld": withheld,
        "reference": reference,
        "requests_running": 9.2,
        "break_even_acceptance": 0.31,
        "by_load": [
            {"running": "1", "actual_seconds": None, "plain_seconds": 0.02},
            {"running": "5-8", "actual_seconds": 0.02, "plain_seconds": 0.03},
            {"running": "9-16", "actual_seconds": 0.03, "plain_seconds": None},
        ],
    }
    found = whole(50, 100) | {"basis": "speedup" if withheld is None else "acceptance", "speed": speed}
    if not temperatures:
        return target(wholes=[found])
    rows = {
        label.replace("_", "-").replace("plus", "+"): bucket(verdict, rate) | {"basis": "speedup", "speed": times}
        for label, (verdict, rate, times) in temperatures.items()
    }
    return target(wholes=[found], models=[model("m", "net_positive", 0.8) | {"temperatures": rows}])


def test_where_plain_decoding_was_measured_it_answers_in_milliseconds():
    said = answer(
        timed_target(
            **{
                "0_0.3": ("net_positive", 0.44, timed(45, 27)),
                "0.5_0.7": ("net_positive", 0.4, timed(45, 35)),
                "1plus": ("net_negative", 0.24, timed(45, 49.1)),
            }
        )
    )
    assert said.text == (
        "Speculation saves 18 ms a token at T 0-0.3, 10 ms at T 0.5-0.7, costs 4.1 ms a token at T 1+, with 9 running."
    )
    assert said.tone == "bad"
    assert said.why.startswith(
        "Plain time per token divided by the actual one: 0-0.3: 1.67 times, 0.5-0.7: 1.29 times, 1+: 0.92 times."
    )
    assert "Acceptance by temperature: 0-0.3: 44%, 0.5-0.7: 40%, 1+: 24%." in said.why


def test_what_is_within_its_error_breaks_even():
    said = answer(timed_target(**{"1plus": ("break_even", 0.24, timed(45, 44))}))
    assert (said.text, said.tone) == ("Speculation roughly breaks even at temperature 1+, with 9 running.", "even")


def test_without_a_split_it_answers_for_all_requests():
    said = answer(timed_target())
    assert (said.text, said.tone) == ("Speculation saves 10 ms a token on average, with 9 running.", "good")
    assert said.why.startswith("1.50 ± 0.02 times as fast as plain decoding, acceptance 50%; ")


def test_the_two_curves_and_what_was_won_are_shown():
    shown = target_section(
        timed_target(**{"0": ("net_positive", 0.44, timed(45, 27, saved=4000, lost=20, contradicts=True))}), THRESHOLDS
    )
    assert (
        "1.67 ± 0.02 times as fast as plain, though engine and clients disagree; 1.1 h of request time saved" in shown
    )
    assert "20 s lost since the sidecar started" in shown
    assert "Time saved over a day, in Prometheus: <code>sum(increase(specdec_time_saved_seconds_total[1d]))" in shown
    assert "From 0 to 30 ms a token" in shown
    assert "m against plain decoding <small>baseline</small>" in shown
    assert shown.count("<polyline") == 2
    assert "Breaks even at an acceptance of 31%." in shown


def test_without_a_reference_it_says_how_to_get_one():
    shown = target_section(timed_target(withheld="measure it: do that", reference=None), THRESHOLDS)
    assert "No speedup of m is known: measure it: do that." in shown
    assert "against plain decoding" not in shown


def model(name, verdict, rate, drafted=100, coverage=None):
    return {
        "model_name": name,
        "coverage": coverage,
        "residual": None,
        "ended": {"exact": 9},
        "temperatures": {"0": bucket(verdict, rate, drafted)},
    }


@pytest.mark.parametrize(
    ("verdict", "text", "tone"),
    [
        ("net_negative", "Speculation does not pay on average.", "bad"),
        ("break_even", "Speculation roughly breaks even on average.", "even"),
        ("net_positive", "Speculation pays on average.", "good"),
        ("insufficient_data", "Too little is being drafted to judge.", "mute"),
    ],
)
def test_the_answer_is_the_verdict_and_nothing_of_the_pages_own(verdict, text, tone):
    said = answer(target(wholes=[whole(1, 2, verdict)]))
    assert (said.text, said.tone) == (text, tone)
    assert said.why.startswith("Acceptance is 50% over all requests; ")


def test_the_worst_model_is_named():
    said = answer(target(wholes=[whole(9, 10, name="a"), whole(3, 10, "net_negative", name="b")]))
    assert (said.text, said.tone) == ("Speculation does not pay on average for b.", "bad")
    assert said.why.startswith("Acceptance is 90% (a), 30% (b) over all requests")


def test_without_drafts_there_is_nothing_to_say():
    assert answer(target(wholes=[whole(0, 0, "insufficient_data")])).text == "Nothing is being drafted."


def test_one_models_verdict_does_not_hide_anothers():
    said = answer(target(models=[model("a", "net_negative", 0.3), model("b", "net_positive", 0.8)]))
    assert said.text == "Speculation loses at temperature 0 (a): 50% of attributed drafts."
    assert said.why == "Acceptance by temperature: 0 (a): 30%, 0 (b): 80%."


def test_a_model_without_a_verdict_is_not_named():
    said = answer(target(models=[model("a", "net_positive", 0.8), model("b", "insufficient_data", None)]))
    assert said.why == "Acceptance by temperature: 0: 80%."


def test_what_vllm_does_not_tell_is_no_zero():
    assert "running" not in target_section(target(engine()), THRESHOLDS)
    assert "2 running" in target_section(target(engine(gauges={"requests_running": 2.0})), THRESHOLDS)


def test_what_holds_for_a_part_of_the_traffic_is_not_green():
    busy = whole(40, 100, is_covered=False)
    said = answer(target(wholes=[busy], models=[model("m", "net_positive", 0.95, coverage=0.05)]))
    assert said.tone == "mute"
    assert said.text == (
        "In the 5% of the traffic that is seen, speculation pays at every temperature that can be judged."
    )
    assert said.why == "Acceptance by temperature: 0: 95%. Over all requests, seen or not, it is 40%."


def test_with_enough_of_the_traffic_it_is():
    said = answer(target(wholes=[whole(9, 10)], models=[model("m", "net_positive", 0.95, coverage=0.8)]))
    assert (said.tone, said.text) == ("good", "Speculation pays at every temperature that can be judged.")


def test_what_loses_in_the_part_that_is_seen_is_red_all_the_same():
    part = whole(9, 10, is_covered=False)
    said = answer(target(wholes=[part], models=[model("m", "net_negative", 0.2, coverage=0.5)]))
    assert (said.tone, said.text) == ("bad", "In the 50% of the traffic that is seen, speculation does not pay.")


def test_one_losing_temperature_among_some_that_cannot_be_judged_is_not_all_of_it():
    one = model("m", "net_negative", 0.3, 900)
    one["temperatures"]["1"] = bucket("insufficient_data", 0.9, 100)
    assert answer(target(models=[one])).text == "Speculation loses at temperature 0: 90% of attributed drafts."
    one["temperatures"]["1"] = bucket("insufficient_data", None, 0)
    assert answer(target(models=[one])).text == "Speculation does not pay."


def test_several_models_each_have_a_share_that_is_seen():
    models = [model("a", "net_positive", 0.9, coverage=1.0), model("b", "insufficient_data", None, coverage=0.1)]
    said = answer(target(wholes=[whole(9, 10, name="a"), whole(0, 0, name="b", is_covered=False)], models=models))
    assert said.tone == "mute"
    assert said.text.startswith("In the traffic that is seen (a: 100%, b: 10%), speculation pays")


def test_a_share_is_of_all_that_is_attributed():
    one = model("m", "net_negative", 0.3)
    one["temperatures"] |= {"1": bucket("net_positive", 0.8), "0.5": bucket("insufficient_data", None, 200)}
    said = answer(target(models=[one]))
    assert said.text == "Speculation loses at temperature 0: 25% of attributed drafts."
    assert "25% of attributed drafts" in target_section(target(models=[one]), THRESHOLDS)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, "no temperature has enough requests to be judged."),
        ({"ended": 924, "attributed": 0}, "924 requests ended, none could be attributed."),
        ({"ended": 1, "attributed": 0}, "1 request ended, none could be attributed."),
        ({"events": 1200, "ended": 0}, "1,200 requests since the start, none attributed in the window."),
        ({"events": 0, "ended": 0}, "the source proxy has reported no request yet."),
        (
            {"events": 0, "ended": 0, "dropped": {"malformed": 3, "overload": 0}},
            "the source proxy has reported no request yet: all its events were dropped (malformed).",
        ),
    ],
)
def test_where_a_source_is_set_it_says_why_there_is_no_split(found, why):
    said = answer(target(wholes=[whole(9, 10)], models=[], **found))
    assert said.text == "Speculation pays on average."
    assert said.why == f"Acceptance is 90% over all requests; {why}"


def test_without_a_source_it_says_that_one_is_needed():
    said = answer(target(wholes=[whole(9, 10)]))
    assert said.why.endswith("which temperatures lose needs a request source.")


@pytest.mark.parametrize(
    ("ended", "shown"),
    [
        ({"without_usage": 900, "unfinished": 24}, "924 requests ended, none could be attributed."),
        ({"exact": 0}, "No request has finished in the window, or none is attributed yet."),
    ],
)
def test_a_model_without_rows_says_why(ended, shown):
    one = model("m", "insufficient_data", None) | {"temperatures": {}, "ended": ended}
    assert shown in target_section(target(models=[one]), THRESHOLDS)


def test_notes_are_shown_with_what_is_to_be_typed_marked():
    page = target_section(target(models=[], notes=["<b> needs `--flag summary`."]), THRESHOLDS)
    assert "<li>&lt;b&gt; needs <code>--flag summary</code>.</li>" in page


def latencies(p50, p99, growth):
    latency = {
        "quantiles": {"0.5": p50, "0.99": p99},
        "resolution": 0.01,
        "gap_seconds": p99 - p50,
        "gap_growth": growth,
    }
    page = target_section(target(engine(latency={"tpot": latency})), THRESHOLDS)
    return [cell.partition("</td>")[0] for cell in page.split("<td class=number>")[1:]]


def test_below_vllms_first_bucket_nothing_is_made_up():
    assert latencies(0.005, 0.0099, 2.0) == ["&lt; 10 ms"] * 3
    assert latencies(0.005, 0.035, 2.0) == ["&lt; 10 ms", "35 ms", "30 ms (2.0 times the baseline)"]
