"""The parts of the page, as text without tags."""

import json
import math
import re
import shlex
from dataclasses import replace
from html import unescape

import pytest

from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.change import Change, Median, Moment, Sample
from sidecar.analysis.endings import EndingsReport
from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.engine.health import Ailing, Ailment, HealthReport
from sidecar.analysis.engine.latency import Source
from sidecar.analysis.judgement import Gate, Undecided, Verdict
from sidecar.analysis.speed.withheld import Withheld
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Phase
from sidecar.errors import Unreachable
from sidecar.export.sections import marked
from sidecar.export.status_page import content
from sidecar.findings.lower_acceptance import LowerAcceptance
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.requests.messages import Speculation
from sidecar.settings.baselines import PlainCache, PlainLatency
from sidecar.wording.plugin import plugin_sentence
from tests.analysis.test_checklist import GOOD, LIGHT
from tests.export import reports
from tests.export.reports import (
    NEVER_CONNECTED,
    OBSERVING,
    by_bucket,
    engine,
    judgement,
    model,
    speed,
    temperature,
)

NEGATIVE, POSITIVE = Verdict.NET_NEGATIVE, Verdict.NET_POSITIVE


def html(*models, environment=None, **changes):
    return content(reports.shown(reports.report(*models, **changes), **environment or {}))


def text(*models, **changes):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html(*models, **changes)))).strip()


def test_each_model_and_temperature_has_its_verdict_in_a_line():
    """With what it is based on; marks of the rule of thumb only where that rule decides."""
    hot = reports.timed("0.7-1", NEGATIVE, 0.3, 30, 33, saved_seconds=720.0, lost_seconds=8000.0)
    page = text(reports.timed_model(hot))
    assert (
        "All requests 3,000 drafted in 5 min pays 50% accepted speedup 1.50 ± 0.02 saves 10 ms per"
        " token" in page
    )
    assert "2.50 tokens per draft; 1.96 tokens per step, with a draft in 98% of the steps." in page
    assert page.count("± is the 95 % confidence interval") == 1
    assert "Marks" not in page  # of a rule that does not decide here
    assert "T 0.7-1 50% of draft tokens does not pay 30% accepted" in page
    assert "30% accepted speedup 0.91 ± 0.02 costs 3 ms per token" in page
    assert "T 0.7-1 : 12 min of request time saved, 2.2 h lost since the sidecar started" in page
    assert "Points: the speedup and its 95 % interval" in page


def test_a_temperature_that_is_not_judged_says_why_and_its_marks_are_explained():
    """Also where the others are judged by time."""
    judged = judgement(
        Verdict.INSUFFICIENT_DATA, 0.5, share=0.06, gate=Gate("min_bucket_share", 0.1)
    )
    page = text(reports.timed_model(temperature("1+", judgement=judged, share=0.06)))
    assert (
        "T 1+ 6% of draft tokens too little data 50% accepted P10 50% 40 requests No verdict:"
        " less than 10% of the draft tokens" in page
    )
    assert "Marks, a rule of thumb: below 50%" in page


def test_a_model_that_does_not_speculate_has_a_checklist():
    """With the conclusion once, and what to paste as it is."""
    sampled = replace(GOOD, cool=0.0, hot=1.0)
    tree = reports.plain_model(sampled, LIGHT)
    page = text(tree)

    assert page.count("Judging by 40 requests in 10 min, speculation may pay or not.") == 1
    assert "demo: would speculation suit it? condition says this pod speaks for it" in page
    assert "temperatures against median 0; 0% up to 0.5, 100% above 0.8" in page
    assert "To try first eagle3 A head that was trained for this model" in page
    assert '\'{"method": "eagle3", "model": "YOUR-EAGLE3-HEAD",' in page
    assert "would speculation suit it?" not in text(model())


def test_a_model_that_does_not_speculate_has_no_verdict_on_drafts():
    """There is nothing to judge, now or later."""
    page = text(reports.plain_model(GOOD, LIGHT))

    assert "demo does not speculate" in page
    assert "KV cache, peak 50% of 442,368 tokens" in page
    assert "Engines demo engine 0" in page
    assert "insufficient data" not in page
    assert "No draft" not in page


def test_names_are_escaped():
    """A model's name is whatever its operator typed, and an adapter's its tenant."""
    plugin = replace(NEVER_CONNECTED, problem="<i>")
    found = LowerAcceptance(
        code="adapter",
        group="<i>{where}",
        rate=0.45,
        others=0.7,
        error=0.02,
        loses=True,
        break_even=0.5,
    )
    page = html(model(temperature("0"), name='<b>&"model', findings=(found,)), plugin=plugin)
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;&amp;&quot;model" in page
    assert "Requests with adapter &lt;i&gt;{where} accept" in page


def test_a_finding_says_why_speculation_loses_what_to_do_and_how_to_verify_it():
    shown = text(reports.model(reports.temperature("0"), findings=(reports.STRUCTURED,)))
    assert (
        "demo eagle3, 3 tokens, sampler standard Try n-gram or suffix decoding, which repeats keys"
        " and punctuation. Only if that does not help and the load is high, route these" in shown
    )
    assert (
        "Why, and what to expect structured_output Requests with structured output accept 45% of"
        " their draft tokens, 25 ± 4" in shown
    )
    assert "To verify: specdec-sidecar sweep --url http://CHANGED:8000 --against" in shown
    assert shown.count("Try n-gram or suffix decoding") == 1
    assert "Why" not in text(reports.model(reports.temperature("0")))


def test_a_fact_has_no_remedy_and_leaves_the_general_one_in_place():
    """Structured output that still gains is nothing to change."""
    fact = replace(
        reports.STRUCTURED, rate=0.6, loses=False, is_advice=False, break_even_error=0.02
    )
    lost = reports.judgement(Verdict.NET_NEGATIVE, 0.3)
    shown = text(reports.model(reports.temperature("0"), findings=(fact,), judgement=lost))

    assert "these requests still gain, since speculation breaks even at 50% ± 4." in shown
    assert "To verify" not in shown
    assert "Speculate fewer tokens (num_speculative_tokens)." in shown


def test_the_whole_configuration_with_the_change_has_a_button_that_copies_it():
    how = Speculation("eagle3", 5, options='{"model": "/m\'s", "num_speculative_tokens": 5}')
    fewer = TokensAdvice(direction=Direction.FEWER, now=5, best=2, acceptance=0.3, next_rate=0.3)
    engines = (reports.engine(speculation=how),)
    page = html(
        reports.model(
            engines=engines, findings=(NumberOfTokens(code="too_many_tokens", tokens=fewer),)
        )
    )

    (code,) = re.findall(r"</button><code>(.*?)</code>", page)
    option = shlex.split(unescape(code))
    assert option[0] == "--speculative-config"
    assert json.loads(option[1]) == {"model": "/m's", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        ("greedy", "eagle3, 3 tokens, drafts the likeliest token, sampler standard"),
        ("probabilistic", "eagle3, 3 tokens, drafts are sampled (probabilistic), sampler standard"),
        (None, "eagle3, 3 tokens, sampler standard"),
    ],
)
def test_the_subtitle_says_how_drafts_are_sampled(sampling, said):
    """Unless this vLLM does not tell."""
    how = replace(reports.EAGLE, draft_sample_method=sampling)

    assert f"demo {said}" in text(reports.model(engines=(reports.engine(speculation=how),)))


def test_after_a_change_the_requests_of_before_are_beside_those_of_now():
    """With the load of both, on which the times depend."""
    median = Median(0.0235, 0.0231, 0.0239)
    side = Sample(requests=80, timed=95, acceptance=0.42, error=0.01, ttft=None, tpot=median)
    faster = replace(side, acceptance=0.75, tpot=Median(0.0183, 0.018, 0.0187))
    before = Moment(0.0, reports.EAGLE, 4.0, {"0.7-1": side, "1+": side})
    now = Moment(900.0, replace(reports.EAGLE, num_speculative_tokens=5), 9.0, {"0.7-1": faster})
    page = text(reports.model(change=Change(60.0, before, now)))

    assert "T 0.7-1, acceptance rate 42% ± 2 75% ± 2" in page
    assert "T 0.7-1, TPOT P50 23.5 ms (23.1 to 23.9 ms) 18.3 ms (18.0 to 18.7 ms)" in page
    assert "T 0.7-1, TTFT P50 too few requests too few requests" in page
    assert "T 0.7-1, requests 95 (acceptance: 80) 95 (acceptance: 80)" in page
    assert "T 1+, " not in page
    assert "Left out, since only one side has drafts there: T 1+." in page
    assert "Before: eagle3, 3 tokens, sampler standard (as of 01 Jan 00:00 UTC)." in page
    assert "4.0 requests ran then and 9.0 now: times differ by that, too." in page


def test_a_finding_takes_the_place_of_the_general_remedy():
    lost = {"judgement": reports.judgement(Verdict.NET_NEGATIVE, 0.3)}
    hot = reports.temperature("1+", Verdict.NET_NEGATIVE, 0.3)

    assert text(reports.model(hot, **lost)).count("Speculate fewer tokens") == 1
    explained = text(reports.model(hot, findings=(reports.STRUCTURED,), **lost))
    assert "Speculate fewer tokens" not in explained


def test_groups_that_accept_less_are_listed_with_share_and_error():
    """Those that accept more are not, and without a difference there is no section."""
    groups = (
        reports.group(
            "prompt_tokens",
            "8k-32k",
            0.31,
            share=0.22,
            difference=reports.difference(0.31, 0.68, 0.02),
        ),
        reports.group(
            "prompt_tokens",
            "0-512",
            0.68,
            share=0.5,
            difference=reports.difference(0.68, 0.58, 0.02),
        ),
        reports.group(
            "adapter", "legal", 0.4, share=0.12, difference=reports.difference(0.4, 0.61, 0.04)
        ),
        reports.group("output", "structured", without_drafts=True),
    )
    page = text(model(temperature("0"), groups=groups))
    assert "prompts of 8k-32k tokens 31% 37 ± 4 points 22%" in page
    assert "adapter legal 40% 21 ± 8 points 12%" in page
    assert "No drafts in the window for structured output." in page
    assert "0-512" not in page
    assert "lower acceptance rate" not in text(model(temperature("0"), groups=groups[1:2]))


def test_the_configuration_of_speculation_is_shown_once():
    """Several engines of a model have the same."""
    configured = Speculation(
        "eagle3",
        6,
        per_batch_size=True,
        adaptive_verification=True,
        rejection_sample_method="synthetic",
    )
    page = text(model(engines=tuple(engine(index=index, speculation=configured) for index in "01")))
    assert (
        page.count(
            "eagle3, 6 tokens, schedule by batch size, adaptive verification, sampler synthetic"
        )
        == 1
    )
    assert "demo engine 0" in text(model(engines=(engine(speculation=None),)))


def test_notes_and_hints_are_shown_once():
    """However many engines they are for."""
    judged = judgement(
        POSITIVE, 0.7, speculation=Speculation("eagle3", 3, rejection_sample_method="fly")
    )
    limited = frozenset({Limitation.NO_POSITIONS})
    losing = engine(index="1", judgement=judgement(NEGATIVE, 0.12), limitations=limited)
    no_split = NoSplit(NoSplitReason.COUNTS_OTHERWISE, "0", ratio=0.91)
    page = text(
        model(judgement=judged, engines=(engine(limitations=limited), losing), no_split=no_split),
        plugin=replace(OBSERVING, dropped={"malformed": 2, "other_engine": 6, "silent": 0}),
    )
    for sentence in (
        "rejection_sample_method fly also accepts tokens that the model itself would not",
        "Engine 1 loses on its own",
        "on engine 0 the plug-in counted 91.0% of what vLLM counted",
        "does not export accepted tokens by draft position",
        "The sidecar dropped 2 messages from the plug-in: malformed",
        "Totals recover with the next one",
        "The sidecar dropped 6 messages from the plug-in: other_engine",
        "After a restart of vLLM these are the last ones from before it",
        "No speedup for demo: the step time without speculation is not known; measure it",
    ):
        assert page.count(sentence) == 1, sentence
    assert "silent" not in page


def test_a_note_is_left_out_only_of_the_model_that_the_answer_is_about():
    """Two models had the same note, and that of the second one was in nobody's section."""
    undecided = Undecided(rate=0.51, error=0.02, seconds=1800.0, line=0.5, needed=None)
    judged = judgement(Verdict.INSUFFICIENT_DATA, 0.51, undecided=undecided)
    row = temperature("0", Verdict.INSUFFICIENT_DATA, judgement=judged)
    pair = [model(row, name=name, judgement=judged) for name in ("a", "b")]
    assert text(*pair).count("is not certain to be on one side of 50% yet") == 2

    unsplit = [model(name=name) for name in ("a", "b")]
    assert text(*unsplit, plugin=NEVER_CONNECTED).count("No plug-in has connected yet,") == 1


def test_the_model_that_the_answer_is_about_comes_first():
    losing = reports.timed("0", NEGATIVE, 0.3, 30, 33)
    pair = [
        reports.timed_model(reports.timed("0", POSITIVE, 0.8, 30, 20), name="a"),
        reports.timed_model(losing, name="b", judgement=losing.judgement),
    ]
    page = html(*pair)
    assert page.index("<h2>b ") < page.index("<h2>a ")


@pytest.mark.parametrize(
    ("ratio", "error", "says"),
    [
        (1.04, 0.005, "1.04 ± 0.01 saves 1.2 ms per token"),
        (0.98, 0.005, "0.98 ± 0.01 costs 0.6 ms per token"),
        (1.01, 0.008, "1.01 ± 0.02 no clear difference"),
    ],
)
def test_a_measured_break_even_is_no_clear_difference_only_within_its_error(ratio, error, says):
    row = temperature(
        "0",
        Verdict.BREAK_EVEN,
        judgement=judgement(Verdict.BREAK_EVEN, 0.5, by_speedup=True),
        speedup=reports.speedup(30 * ratio, 30, error),
    )
    assert says in text(reports.timed_model(row))


@pytest.mark.parametrize("state", list(PluginState))
def test_the_plug_in_s_state_is_always_there(state):
    """With its version, since who reads it may have to update."""
    (connected,) = OBSERVING.engines
    engines = (replace(connected, state=state),)
    plugin = replace(OBSERVING, state=state, engines=engines, heard=False, unreadable_format=2)
    page = html(model(temperature("0")), plugin=plugin)
    assert f'class="plugin {state}"' in page
    assert marked(plugin_sentence(plugin)) in page
    assert "plug-in 0.1.0 in vLLM 0.32.0" in page


def test_position_rates_are_out_of_the_tokens_drafted_there_and_out_of_all_drafts():
    """vLLM's own fall with the number of tokens drafted, too."""
    judged = judgement(POSITIVE, 0.6)
    window = replace(
        judged.judged,
        drafted_per_position=(1000.0, 800.0, 500.0),
        accepted_per_position=(900, 600, 300),
    )
    vllms = engine(acceptance=replace(window, drafted_per_position=()))
    page = text(model(temperature("0"), engines=(vllms,), judgement=replace(judged, judged=window)))
    assert "Acceptance rate by position, out of the tokens drafted there: 90%, 75%, 60%." in page
    assert "Acceptance rate by position, out of all drafts: 90%, 60%, 30%." in page


def test_with_a_baseline_there_is_tpot_by_load():
    """Loads that were not measured, or had no traffic, say so."""
    page = text(reports.timed_model())
    assert "Mean TPOT by load requests running" in page
    assert (
        "with speculation without (baseline) 1 no traffic 20 ms 5-8 20 ms 30 ms 9-16 30 ms not"
        " measured" in page
    )
    assert "Break-even acceptance rate at this load: 31%." in page
    assert "Mean TPOT by load" not in text(model(speed=speed(withheld=Withheld.NO_REFERENCE)))


@pytest.mark.parametrize(
    ("rate", "error", "says"),
    [
        (0.31, None, "Break-even acceptance rate at this load: 31%."),
        (0.31, 0.021, "Break-even acceptance rate at this load: 31% ± 4."),
        (1.04, 0.05, "Break-even acceptance rate at this load: above 94%, if any."),
        (1.2, 0.05, "No acceptance rate breaks even at this load."),
        (2.0, 0.05, "No acceptance rate breaks even at this load."),
    ],
)
def test_a_measured_break_even_acceptance_has_its_error_where_that_is_known(rate, error, says):
    """That no rate breaks even is said once it is certain."""
    known = replace(speed(), break_even_acceptance=rate, break_even_error=error)
    assert says in text(reports.timed_model(speed=known))


def test_above_one_a_break_even_of_no_known_error_says_nothing():
    known = replace(speed(), break_even_acceptance=2.0)
    assert "breaks even at this load" not in text(reports.timed_model(speed=known))


def test_that_the_number_of_draft_tokens_fits_is_not_said_beside_a_row_that_asks_for_fewer():
    loses = reports.timed("1+", Verdict.NET_NEGATIVE, 0.3, 30, 33)
    even = reports.judgement(Verdict.BREAK_EVEN, 0.6, by_speedup=True)
    advised = {"advice": Advice(fitting=3)}
    assert "tokens 3 fits" in text(reports.timed_model(loses, **advised))
    assert "tokens 3 fits" not in text(reports.timed_model(loses, judgement=even, **advised))


def test_that_the_number_of_draft_tokens_fits_is_said_where_advice_on_it_would_be():
    page = text(reports.timed_model(advice=Advice(fitting=3)))
    assert "Why, and what to expect num_speculative_tokens 3 fits: by the measured" in page
    assert "Why, and what to expect" not in text(reports.timed_model())


def test_with_a_baseline_s_cache_there_is_the_price_in_room_and_nothing_of_other_requests():
    """First tokens, hits and throughput would be those of the baseline's own requests."""
    low, *_ = reports.timed_model().loads
    load = replace(low, first_token_seconds=0.5, plain_first_token_seconds=0.4)
    plain = PlainCache(hit_ratio=0.886, capacity_tokens=500_000, preemptions_ratio=0.1)
    page = text(reports.timed_model(loads=(load,), plain_cache=plain))
    assert (
        "The price with speculation without (baseline) KV cache of an engine, tokens 442,368"
        " 500,000 requests of 3,100 tokens that fit 142 161 The cost in time to first token,"
    ) in page
    assert "89%" not in page
    assert "The price" not in text(reports.timed_model())
    assert "The price" not in text(reports.timed_model(plain_cache=PlainCache(hit_ratio=0.9)))


def test_latencies_by_vllms_buckets_are_ranges_and_gaps_are_compared_with_the_baseline():
    """Where only buckets tell, a gap has grown by what is certain of it, or it is not said."""
    low = by_bucket((0.0, 0.001), (0.0, 0.001), (0.001, 0.005), (0.005, 0.01))
    first = by_bucket(*[(0.0, 0.001)] * 4)
    one = by_bucket((0.01, 0.025), (0.01, 0.025), (0.01, 0.025), (5.0, math.inf))
    latencies = {Phase.TTFT: low, Phase.ITL: first, Phase.TPOT: one}
    by_buckets = model(engines=(engine(latencies=latencies),))
    page = text(by_buckets)
    assert "Latency P50 P99 P99 - P50 TTFT <1 ms 5-10 ms 4-10 ms" in page
    assert "ITL <1 ms <1 ms <1 ms" in page
    assert "TPOT 10-25 ms >5.00 s >4.97 s" in page

    plain = {"ttft": PlainLatency({0.5: 0.02, 0.99: 0.06}, is_exact=True)}
    assert "TTFT 20 ms 100 ms 80 ms (2.0 times the baseline)" in text(model(plain_latencies=plain))
    small = {
        "ttft": PlainLatency({0.5: 0.001, 0.99: 0.002}, is_exact=True),
        "itl": PlainLatency({0.5: 0.001}, is_exact=True),
    }
    assert "4-10 ms (at least 4.0 times the baseline) ITL" in text(
        replace(by_buckets, plain_latencies=small)
    )
    large = {"ttft": PlainLatency({0.5: 0.001, 0.99: 0.02}, is_exact=True)}
    assert "times the baseline" not in text(replace(by_buckets, plain_latencies=large))


def test_own_times_of_which_some_are_missing_are_ranges_that_round_to_one_value_or_two():
    """A gap that has grown by 4.5 to 14 times has grown at least 4.5 times."""
    edges = (0.0101, 0.0102), (0.015, 0.015), (0.02, 0.02), (0.1002, 0.2902)
    own = replace(by_bucket(*edges), source=Source.REQUESTS)
    plain = {"tpot": PlainLatency({0.5: 0.01, 0.99: 0.03}, is_exact=True)}
    page = text(model(engines=(engine(latencies={Phase.TPOT: own}),), plain_latencies=plain))
    assert "TPOT 10 ms 100-290 ms 90-280 ms (at least 4.5 times the baseline)" in page


def test_the_page_says_since_when_the_answer_holds_and_when_it_was_counted():
    judged = replace(reports.judgement(NEGATIVE, 0.3), since=reports.NOW - 660)
    page = html(model(judgement=judged), scrape=replace(reports.UP, last_scrape=reports.NOW - 1.5))
    assert "Verdict since 22:02 UTC (11 min). As of <time" in page
    assert 'datetime="2023-11-14T22:13:22Z" data-age="1.5">22:13:22 UTC<' in page


def test_the_page_says_whose_clock_its_times_are_by():
    """A client measured 265 ms to the first token, and the page has vLLM's 193."""
    assert "Times are vLLM's own, from the arrival of a request: its client waits longer." in text(
        model(temperature("0"))
    )


def test_while_vllm_is_down_only_that_is_shown():
    """Since when; and nothing of the last good poll, which would look current."""
    away = replace(reports.down(Unreachable("connection refused")), last_scrape=reports.NOW - 720)
    page = text(model(), scrape=away)
    assert page == (
        "vLLM does not answer. Last read at 22:01 UTC (12 min ago). As of 22:13:23 UTC Connection"
        " refused. Is vLLM running, and is this its address? The sidecar keeps trying."
        " The plug-in is still connected, so the engine's process exists. plug-in 0.1.0 in vLLM"
        " 0.32.0"
    )


def test_the_verdict_says_how_replies_end_and_that_acceptance_does_not_tell_of_the_text():
    shares = {"normal": 0.5, "loop": 0.38, "empty": 0.12}
    page = text(model(temperature("0"), endings=EndingsReport(requests=1200, shares=shares)))
    unknown = text(model(temperature("0")))

    assert (
        "Of the last 1,200 replies, 38% repeat themselves until they are cut off and 12% are empty."
        " Speed says nothing about the text. Is it still what the model says without speculation?"
        in page
    )
    assert "Speed says nothing about the text." in unknown
    assert "replies" not in unknown


def test_a_model_whose_engines_all_hang_has_no_verdict():
    """A green one of the minutes before stood under the red answer."""
    ailing = Ailing(key=EngineKey("demo", "0"), ailment=Ailment.STALLED, since=reports.NOW - 90)
    tree = reports.report(model(temperature("0")))
    health = HealthReport(ailing=(ailing,), hanging=frozenset({"demo"}))
    hanging = content(reports.shown(replace(tree, health=health)))
    assert "Since 22:11 UTC (90 s)." in hanging
    assert 'class="bucket' not in hanging
    assert "Waiting" in hanging

    half = content(reports.shown(replace(tree, health=HealthReport(ailing=(ailing,)))))
    assert 'class="bucket' in half


def test_a_reason_is_told_once_however_many_rows_have_it():
    """Above the rows if the answer has it, else in the row of all requests."""
    why = "is not certain to be on one side of 50% yet"
    undecided = Undecided(rate=0.51, error=0.02, seconds=1800.0, line=0.5, needed=None)
    judged = judgement(Verdict.INSUFFICIENT_DATA, 0.51, undecided=undecided)
    rows = [temperature(name, Verdict.INSUFFICIENT_DATA, judgement=judged) for name in ("0", "1+")]
    assert text(model(*rows, judgement=judged)).count(why) == 1

    little = judgement(Verdict.INSUFFICIENT_DATA, 0.5, gate=Gate("min_requests", 20))
    rows = [temperature(name, Verdict.INSUFFICIENT_DATA, judgement=little) for name in ("0", "1+")]
    assert text(model(*rows, judgement=little)).count("fewer than 20 requests") == 1
