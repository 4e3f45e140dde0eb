"""The parts of the page, as text without tags."""

import re
from dataclasses import replace
from html import unescape

import pytest

from sidecar.analysis.advice import FindingCode
from sidecar.analysis.engine.engine_state import Latency, Limitation
from sidecar.analysis.speed.speedup import Withheld
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.analysis.verdict import Gate, Verdict
from sidecar.engine.names import Phase
from sidecar.export.page import content
from sidecar.export.sections import marked
from sidecar.requests.messages import Speculation
from sidecar.wording.plugin import plugin_sentence
from tests.export import reports


def html(*models, environment=None, **changes):
    return content(reports.shown(reports.report(*models, **changes), **environment or {}))


def text(*models, **changes):
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html(*models, **changes)))).strip()


def test_each_model_and_temperature_has_its_verdict_in_a_line():
    hot = reports.timed("0.7-1", Verdict.NET_NEGATIVE, 0.3, 30, 33, saved_seconds=720.0, lost_seconds=8000.0)
    shown = text(reports.timed_model(hot))
    assert (
        "All requests net positive 50% of 3,000 draft tokens accepted in the last 5 min, 2.50 tokens per draft; 1.96 "
        "tokens per step, with a draft in 98% of the steps; 1.50 ± 0.02 times as fast as without speculation, saves "
        "10 ms per token" in shown
    )
    assert shown.count("± is the 95 % confidence interval") == 1
    assert "Marks" not in shown  # of a rule that does not decide here
    assert "T 0.7-1 50% of draft tokens net negative 30% accepted" in shown
    assert (
        "0.91 ± 0.02 times as fast as without speculation, costs 3 ms per token; 12 min of request time saved, 2.2 h "
        "lost since the sidecar started" in shown
    )


def test_a_temperature_that_is_not_judged_says_why_and_its_marks_are_explained():
    """Also where the others are judged by time."""
    gate = Gate("min_bucket_share", 0.1)
    judged = reports.judgement(Verdict.INSUFFICIENT_DATA, 0.5, share=0.06, gate=gate)
    shown = text(reports.timed_model(reports.temperature("1+", judgement=judged, share=0.06)))
    assert (
        "T 1+ 6% of draft tokens insufficient data 50% accepted P10 50% 40 requests No verdict: below thresholds.min"
        in shown
    )
    assert "Marks, a rule of thumb: below 50%" in shown


def test_names_are_escaped():
    nasty = '<b>&"model'
    plugin = replace(reports.NEVER_CONNECTED, problem="<i>")
    shown = html(reports.model(reports.temperature("0"), name=nasty), plugin=plugin)
    assert "<b>" not in shown
    assert "<i>" not in shown
    assert "&lt;b&gt;&amp;&quot;model" in shown


def test_why_it_loses_with_what_to_do_and_how_to_verify_it():
    shown = text(reports.model(reports.temperature("0"), findings=(reports.STRUCTURED,)))
    assert (
        "Why structured_output Requests with structured output accept 45% of their draft tokens, 25 ± 4 points less "
        "than the 70% of those without it at the same temperatures. Route these requests to pods" in shown
    )
    assert "Verify with specdec-sidecar sweep --url URL --temperatures 0,0.7,1 --save before.json" in shown
    assert "Why" not in text(reports.model(reports.temperature("0")))


def test_an_adapter_s_name_is_escaped_in_a_finding():
    found = replace(reports.STRUCTURED, code=FindingCode.ADAPTER, where=("<i>{where}",))
    assert "Requests with adapter &lt;i&gt;{where} accept" in html(reports.model(findings=(found,)))


def test_a_finding_takes_the_place_of_the_general_remedy():
    lost = {"judgement": reports.judgement(Verdict.NET_NEGATIVE, 0.3)}
    hot = reports.temperature("1+", Verdict.NET_NEGATIVE, 0.3)
    assert text(reports.model(hot, **lost)).count("Route this traffic to pods that do not speculate") == 2
    assert "Route this traffic" not in text(reports.model(hot, findings=(reports.STRUCTURED,), **lost))


def test_who_accepts_less_with_share_and_error():
    groups = (
        reports.group("prompt_tokens", "8k-32k", 0.31, share=0.22, difference=reports.difference(0.31, 0.68, 0.02)),
        reports.group("prompt_tokens", "0-512", 0.68, share=0.5, difference=reports.difference(0.68, 0.58, 0.02)),
        reports.group("adapter", "legal", 0.4, share=0.12, difference=reports.difference(0.4, 0.61, 0.05)),
        reports.group("output", "structured", without_drafts=True),
    )
    shown = text(reports.model(reports.temperature("0"), groups=groups))
    assert "prompts of 8k-32k tokens 31% 37 ± 4 points 22%" in shown
    assert "adapter legal 40% 21 ± 10 points 12%" in shown
    assert "No drafts in the window for: structured output." in shown
    assert "0-512" not in shown
    assert "lower acceptance rate" not in text(reports.model(reports.temperature("0"), groups=groups[1:2]))


def test_how_it_speculates():
    found = Speculation(
        "eagle3", 6, per_batch_size=True, adaptive_verification=True, rejection_sample_method="synthetic"
    )
    shown = text(
        reports.model(engines=(reports.engine(speculation=found), reports.engine(index="1", speculation=found)))
    )
    assert shown.count("eagle3, 6 tokens, schedule by batch size, adaptive verification, sampler synthetic") == 1
    assert "demo engine 0" in text(reports.model(engines=(reports.engine(speculation=None),)))


def test_what_misleads_is_said_beside_the_number():
    synthetic = Speculation("eagle3", 3, rejection_sample_method="synthetic")
    losing = reports.engine(index="1", judgement=reports.judgement(Verdict.NET_NEGATIVE, 0.12))
    judged = reports.judgement(Verdict.NET_POSITIVE, 0.7, speculation=synthetic)
    shown = text(reports.model(judgement=judged, engines=(reports.engine(), losing)))
    assert "The acceptance rate is synthetic (rejection_sample_method): it is configured, not measured." in shown
    assert "Engine 1 is net negative on its own" in shown


@pytest.mark.parametrize("state", list(PluginState))
def test_the_plug_in_s_state_is_always_there(state):
    (engine,) = reports.OBSERVING.engines
    plugin = replace(
        reports.OBSERVING, state=state, engines=(replace(engine, state=state),), heard=False, unreadable_format=2
    )
    shown = html(reports.model(reports.temperature("0")), plugin=plugin)
    assert f'class="plugin {state}"' in shown
    assert marked(plugin_sentence(plugin)) in shown
    assert "plug-in 0.1.0 in vLLM 0.32.0" in shown


def test_a_split_that_is_withheld_says_why():
    no_split = NoSplit(NoSplitReason.COUNTS_OTHERWISE, "0", ratio=0.91)
    assert "on engine 0 the plug-in counted 91.0% of what vLLM counted" in text(reports.model(no_split=no_split))


def test_position_rates_of_both_ways():
    """vLLM's own fall with the number of tokens drafted, too."""
    judged = reports.judgement(Verdict.NET_POSITIVE, 0.6)
    window = replace(judged.judged, drafted_per_position=(1000.0, 800.0, 500.0), accepted_per_position=(900, 600, 300))
    engine = reports.engine(acceptance=replace(window, drafted_per_position=()))
    model = reports.model(reports.temperature("0"), engines=(engine,), judgement=replace(judged, judged=window))
    shown = text(model)
    assert "Acceptance rate by position, out of the tokens drafted there: 90%, 75%, 60%." in shown
    assert "Acceptance rate by position, out of all drafts: 90%, 60%, 30%." in shown


def test_time_per_token_by_load():
    shown = text(reports.timed_model())
    assert "demo: time per token requests running" in shown
    assert "with speculation without (baseline) 1 no traffic 20 ms 5-8 20 ms 30 ms 9-16 30 ms not measured" in shown
    assert "Break-even acceptance rate at this load: 31%." in shown


def test_without_a_baseline_it_says_how_to_get_one():
    shown = text(reports.model(speed=reports.speed(withheld=Withheld.NO_REFERENCE)))
    assert "No speedup for demo: the step time without speculation is not known; measure it" in shown
    assert "demo: time per token" not in shown


def test_latencies_below_vllm_s_first_bucket_are_bounds():
    low = Latency({0.5: 0.0005, 0.9: 0.0009, 0.95: 0.002, 0.99: 0.003}, 40.0, 0.001)
    first = Latency({0.5: 0.0005, 0.9: 0.0006, 0.95: 0.0007, 0.99: 0.0008}, 40.0, 0.001)
    engine = reports.engine(latencies={Phase.TTFT: low, Phase.ITL: first})
    shown = text(reports.model(engines=(engine,)))
    assert "TTFT <1 ms 2 ms 3 ms 2.5 ms" in shown
    assert "ITL <1 ms <1 ms <1 ms <1 ms" in shown


def test_the_gap_is_compared_with_the_baseline():
    environment = {"BASELINE": '{"demo": {"ttft": {"p50": 0.02, "p99": 0.06}}}'}
    assert "TTFT 20 ms 60 ms 100 ms 80 ms (2.0 times the baseline)" in text(reports.model(), environment=environment)


def test_hints_name_what_is_missing_once():
    limited = frozenset({Limitation.NO_POSITIONS})
    engines = tuple(reports.engine(index=index, limitations=limited) for index in "01")
    shown = text(
        reports.model(engines=engines), plugin=replace(reports.OBSERVING, dropped={"malformed": 2, "silent": 0})
    )
    assert shown.count("does not export accepted tokens by draft position") == 1
    assert "The sidecar dropped 2 messages from the plug-in: malformed" in shown
    assert "silent" not in shown


def test_while_vllm_is_down_only_that_is_shown():
    from sidecar.errors import Unreachable

    shown = text(reports.model(), scrape=reports.down(Unreachable("connection refused")))
    assert shown == (
        "The sidecar cannot read vLLM's metrics. connection refused. Is vLLM running, and is this its address? The "
        f"sidecar keeps trying. {plugin_sentence(reports.OBSERVING)} plug-in 0.1.0 in vLLM 0.32.0"
    )
