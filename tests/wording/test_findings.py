"""The findings in words."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.findings_reference import runbook_page, why_page
from sidecar.analysis.advice import Advice, Direction, TokensAdvice
from sidecar.analysis.endings import EndingAt, EndingChange, EndingsReport, Reference
from sidecar.analysis.engine.cache import CacheWindow
from sidecar.analysis.evidence import Loops
from sidecar.analysis.judgement import Verdict
from sidecar.cli import parser
from sidecar.engine.names import Phase
from sidecar.findings.catalog import explanations
from sidecar.findings.ending import EndsBadly
from sidecar.findings.greedy_drafting import GreedyDrafting
from sidecar.findings.lower_acceptance import LowerAcceptance
from sidecar.findings.mismatch import Mismatch, collapse_sentence
from sidecar.findings.number_of_tokens import NumberOfTokens
from sidecar.findings.prefix_cache import PrefixCache
from sidecar.findings.room import Fitting, Room
from sidecar.findings.structured_output import ForbiddenDrafts
from sidecar.requests.messages import Configuration, Speculation
from tests.analysis.staged_findings import examples
from tests.export.reports import engine, judgement, latency, model, temperature

ROOT = Path(__file__).parents[2]
GREEDY = Speculation("eagle3", 3, rejection_sample_method="standard", draft_sample_method="greedy")
V1 = Configuration(
    model_runner_v2=False, async_scheduling=False, max_num_seqs=256, sizes={"vocab_size": 128_256}
)


HOT_AND_COLD = GreedyDrafting(
    temperatures=("0.5-0.7", "0.7-1"),
    rate=0.45,
    position_rates=(0.65, 0.42, 0.28),
    length=2.35,
    length_at_most=3.28,
    is_bound_measured=True,
    is_filtered=False,
    cold_rate=0.76,
    error=0.01,
)
LESS = {"group": "structured", "rate": 0.45, "others": 0.7, "error": 0.02}
STRUCTURED = LowerAcceptance(code="structured_output", **LESS, loses=True, break_even=0.5)
FEWER = TokensAdvice(
    direction=Direction.FEWER,
    now=3,
    best=1,
    best_seconds=0.021,
    now_seconds=0.03,
    plain_seconds=0.024,
)
MORE_LOOPS = EndingChange(
    ending="loop",
    share=0.38,
    usual=0.02,
    standard_errors=12.0,
    odds_ratio=30.0,
    requests=120,
    reference=Reference.PAST,
)
LONG_PROMPTS = LowerAcceptance(
    code="long_prompts", **LESS | {"group": "32k+"}, loses=True, break_even=0.5
)
LOOPING = EndsBadly(code="looping", ending="loop", share=0.36, requests=130, change=MORE_LOOPS)
MORE_EMPTY = replace(MORE_LOOPS, ending="empty", reference=Reference.BASELINE)
CACHED = PrefixCache(hit_ratio=0.5, hit_ratio_at_most=0.7, block_tokens=16)


def explained(finding, *, advice=None, **changes):
    """The only explanation of a model with one finding."""
    pod = engine(**{"speculation": GREEDY, "configuration": V1} | changes)
    report = model(temperature("0"), engines=(pod,), findings=(finding,), advice=advice)
    (explanation,) = explanations(report)
    return explanation


def test_greedy_drafting_names_the_option_and_its_price():
    greedy = explained(HOT_AND_COLD)

    assert (
        greedy.what
        == "Requests above temperature 0 (T 0.5-0.7, 0.7-1) accept 45% of their draft tokens, 31 ±"
        " 2 points less than the 76% at temperature 0; by position 65%, 42%, 28%. vLLM drafts the"
        " draft model's likeliest token at every temperature, which a request that samples rejects"
        " often."
    )
    assert greedy.remedy.startswith(
        'Try `"draft_sample_method": "probabilistic"` in --speculative-config on one pod'
    )
    assert "The distribution of the output stays the same, except for structured output: wi" in (
        greedy.remedy
    )
    assert greedy.expect.startswith(
        "Expect up to 40% more tokens per step (2.35 tokens per step now, 3.28 at temperature 0"
        " here); with a weak draft up to 3% fewer."
    )
    assert "The draft's logits take up to 0.4 GiB of GPU memory. On model runner V1" in (
        greedy.expect
    )
    assert "--temperatures 0.7,1 " in greedy.verify
    assert greedy.verify.endswith("use Argo Rollouts with deploy/rollouts/.")


def test_greedy_drafting_of_hot_requests_alone_promises_nothing():
    """Only what others measured is known then."""
    hot = replace(HOT_AND_COLD, cold_rate=None, error=None, is_bound_measured=False)
    filtered = replace(hot, is_filtered=True)

    assert "accept 45% of their draft tokens; by position" in explained(hot).what
    assert explained(hot).expect.startswith(
        "How much it gains here is not known (2.35 tokens per step now)."
    )
    assert "with top-k 20 and top-p 0.8, 44% became 67%" in explained(filtered).expect


@pytest.mark.parametrize(
    ("vocabulary", "size"), [(128_256, "0.4 GiB"), (400, "1 MiB"), (20_000, "59 MiB")]
)
def test_a_small_amount_of_memory_is_not_zero(vocabulary, size):
    """It is said in MiB."""
    small = replace(V1, sizes={"vocab_size": vocabulary})
    greedy = explained(HOT_AND_COLD, configuration=small)

    assert f"logits take up to {size} of GPU memory" in greedy.expect


OPTIONS = '{"method": "eagle3", "model": "/models/head", "num_speculative_tokens": 3}'


@pytest.mark.parametrize(
    ("finding", "change"),
    [
        (HOT_AND_COLD, {"draft_sample_method": "probabilistic"}),
        (NumberOfTokens(code="too_many_tokens", tokens=FEWER), {"num_speculative_tokens": 1}),
        (CACHED, {"disable_eagle_block_drop": True}),
    ],
)  # fmt: skip
def test_the_whole_configuration_is_ready_to_paste_with_the_one_change(finding, change):
    how = replace(GREEDY, options=OPTIONS, keeps_last_block=False)
    explanation = explained(finding, speculation=how)

    assert json.loads(explanation.config) == json.loads(OPTIONS) | change
    assert explanation.option == f"--speculative-config '{explanation.config}'"
    assert explained(finding).option == ""  # a plug-in that does not tell the rest


def test_033_keeps_the_block_again_once_its_option_is_removed():
    """The drop comes back with `disable_lookahead_block_hashes`, which is what to change there."""
    options = '{"method": "eagle", "disable_lookahead_block_hashes": true}'
    how = replace(GREEDY, options=options, keeps_last_block=False)
    explanation = explained(CACHED, speculation=how)

    assert explanation.remedy.startswith("Remove `disable_lookahead_block_hashes`")
    assert json.loads(explanation.config) == {"method": "eagle"}


def test_the_command_that_verifies_ends_when_the_pods_are_done():
    """32 requests of 128 tokens, 8 rounds, two pods, two temperatures; 9.2 requests run."""
    slow = {phase: latency(1.0 if phase is Phase.TTFT else 0.1) for phase in Phase}
    verify = explained(HOT_AND_COLD, latencies=slow).verify
    arguments = shlex.split(verify.split("`")[1])

    known = parser(arguments[1:]).parse_args(arguments[1:])
    assert (known.rounds, known.concurrency, known.temperatures) == (8, (9,), (0.7, 1.0))
    seconds = 8 * 2 * 2 * 4 * (1.0 + 128 * 0.1)
    assert seconds < known.duration < 2 * seconds


def test_structured_output_says_why_the_grammar_matters_and_what_knows_more_of_it():
    structured = explained(STRUCTURED)

    assert (
        structured.what
        == "Requests with structured output accept 45% of their draft tokens, 25 ± 4 points less"
        " than the 70% of those without it that are otherwise alike."
    )
    assert structured.remedy.startswith("Try n-gram or suffix decoding, which repeats keys")
    assert structured.remedy.endswith("route these requests to pods that do not speculate.")
    assert structured.expect.endswith("and vLLM drops the draft tokens that the grammar forbids.")


def test_structured_output_whose_grammar_forbids_every_draft_token():
    forbidden = explained(ForbiddenDrafts(acceptance=0.64))

    assert (
        forbidden.what
        == "Requests with structured output get no draft tokens: the grammar forbids all of them."
        " Over all requests, vLLM accepts 64% of the draft tokens."
    )


def test_too_many_tokens_by_time():
    """With the time per token before and after, and a schedule where the load decides."""
    tokens = FEWER
    advice = Advice(tokens=tokens, schedule=((1, 4, 3), (5, 16, 1)), can_schedule=True)
    many = explained(NumberOfTokens(code="too_many_tokens", tokens=tokens), advice=advice)

    what = (
        "1 draft token instead of 3: in steps that prefill nothing, about 21 ms"
        " per token instead of 30 ms at this load; 24 ms without speculation."
    )
    assert many.what == what
    assert many.remedy.startswith(
        'Set `"num_speculative_tokens": 1` in --speculative-config. To follow the load, set'
    )
    assert "[[1, 4, 3], [5, 16, 1]]" in many.remedy


@pytest.mark.parametrize(
    ("code", "staged"),
    [
        pytest.param(code, staged, id=f"{code}-{evidence.__name__}")
        for (code, evidence), staged in examples().items()
    ],
)
def test_every_finding_says_what_to_do_and_what_to_expect(code, staged):
    """In whole sentences, with all numbers filled in; a fact says why there is nothing to do."""
    (finding,) = staged.findings
    (explanation,) = explanations(replace(staged.report, findings=(finding,)))
    said = [explanation.what, explanation.expect]
    if finding.is_advice:
        said.append(explanation.remedy)

    assert all(text and text[-1] in ".`" and "{" not in text for text in said)
    assert bool(explanation.remedy) == finding.is_advice
    assert explanation.verify.startswith("`specdec-sidecar ") == finding.is_advice
    assert explanation.code == code


RUNBOOKS = sorted((ROOT / "alerts" / "runbooks").glob("*.md"))


def test_the_table_of_findings_and_the_lists_in_the_runbooks_have_their_words():
    why = (ROOT / "docs" / "why.md").read_text()

    assert why_page(why) == why, "run scripts/docs"
    for path in RUNBOOKS:
        page = path.read_text()
        assert runbook_page(page, path.stem) == page, f"{path.name}: run scripts/docs"


def test_a_runbook_to_which_no_finding_leads_any_more_loses_its_list():
    section = "### Check first\n\n- The load.\n"
    page = f"{section}\n### Findings that lead here\n\n- `gone`: x. Remedy: y.\n"

    assert runbook_page(page, "SpecDecodeStopped") == section


def test_room_says_what_is_known_of_the_drafts_share():
    """By its layers or beside the baseline, whichever is known."""
    by_layers = explained(Room(engines=("0",), less_than_plain=None, share_of_layers=0.2))
    by_baseline = explained(Room(engines=("0",), less_than_plain=0.25, share_of_layers=None))

    assert by_layers.what.startswith("Engine 0 runs out of KV cache: ")
    assert "The draft takes about 20% of it, by its share of the layers." in by_layers.what
    assert "It is 25% smaller than the baseline's." in by_baseline.what

    fitting = Fitting(tokens=3100.0, requests=6, plain=8)
    in_requests = explained(
        Room(engines=("0",), less_than_plain=0.25, share_of_layers=None, fitting=fitting)
    )
    assert in_requests.what.endswith(
        "It is 25% smaller than the baseline's: 6 requests of 3,100 tokens, their mean, fit at"
        " once; without speculation 8 would."
    )


def test_outputs_that_end_badly_are_told_with_what_is_usual():
    looping = explained(LOOPING)
    empty = explained(
        EndsBadly(code="empty_replies", ending="empty", share=0.4, requests=120, change=MORE_EMPTY)
    )

    assert looping.what == (
        "36% of the last 130 replies repeat themselves until they are cut off. At the same"
        " temperatures it was 2% on this pod before."
    )
    assert empty.what == (
        "40% of the last 120 replies are empty (at most one token). At the same temperatures it was"
        " 2% without speculation (baseline)."
    )
    assert looping.remedy.startswith("Send one prompt to this pod and read the reply.")


def test_greedy_drafting_says_that_the_rate_at_temperature_0_leaves_out_loops():
    """The page shows the rate with them beside it."""
    judged = judgement(Verdict.NET_POSITIVE, 0.7)
    loops = Loops(rate=0.98, share=0.18, whole=0.71, without=0.62)
    flattered = replace(judged, evidence=replace(judged.evidence, loops=loops))
    pod = model(temperature("0"), findings=(HOT_AND_COLD,), judgement=flattered)
    (explanation,) = explanations(pod)

    assert "than the 76% at temperature 0;" in explained(HOT_AND_COLD).what
    assert (
        "than the 76% at temperature 0 without replies that repeat themselves;" in explanation.what
    )


def test_the_temperatures_where_replies_have_changed_are_named_with_what_was_usual_there():
    """Those of a few requests, since the share of all says little."""
    cold = EndingAt(temperature="0", requests=880, share=0.6, usual=0.01)
    hot = EndingAt(temperature="1+", requests=50, share=0.3, usual=0.0)
    few = replace(LOOPING, share=0.06, requests=8771, temperatures=(cold,))
    both = replace(few, temperatures=(cold, hot))

    assert explained(few).what == (
        "60% of the last 880 replies at temperature 0 (1% on this pod before) repeat themselves"
        " until they are cut off. Of all 8,771 replies it is 6%."
    )
    assert explained(both).what.startswith(
        "60% of the last 880 replies at temperature 0 (1% on this pod before) and 30% of the last"
        " 50 replies at temperature 1+ (0% on this pod before) repeat themselves"
    )


def test_temperatures_are_not_listed_where_replies_have_changed_at_all_of_them():
    everywhere = [
        EndingAt(temperature=label, requests=60, share=0.4, usual=0.02) for label in ("0", "1+")
    ]
    finding = replace(LOOPING, share=0.4, requests=120, temperatures=tuple(everywhere))

    assert explained(finding).what.startswith("40% of the last 120 replies repeat themselves")


def test_loops_with_nothing_to_compare_with_are_a_fact():
    fact = explained(replace(LOOPING, change=None, is_advice=False))

    assert fact.what == "36% of the last 130 replies repeat themselves until they are cut off."
    assert (fact.remedy, fact.verify) == ("", "")
    assert fact.expect.startswith("There is nothing to compare it with yet.")
    assert "Some models repeat themselves at temperature 0" in fact.expect
    assert "`specdec-sidecar baseline" in fact.expect


def test_empty_replies_that_were_usual_before_are_a_fact_that_says_what_to_do():
    """A pod may have been broken from its start."""
    before = replace(MORE_EMPTY, reference=Reference.PAST, usual=0.36)
    fact = explained(
        EndsBadly(
            code="empty_replies",
            ending="empty",
            share=0.38,
            requests=120,
            change=before,
            is_advice=False,
        )
    )

    assert fact.what == (
        "38% of the last 120 replies are empty (at most one token). At the same temperatures it was"
        " 36% on this pod before."
    )
    assert fact.expect.startswith("This pod has done so before, but it may have been wrong from")
    assert "Send one prompt to this pod and read the reply. If it is empty, too," in fact.expect
    assert "repeat" not in fact.expect


SHARES = {"normal": 0.45, "loop": 0.12, "empty": 0.43}
SEEN = "Of the last 120 replies, 43% are empty and 12% repeat themselves until they are cut off"


@pytest.mark.parametrize(
    ("endings", "said"),
    [
        (None, "The replies may be wrong as well: the fault can be in the target model."),
        (
            EndingsReport(requests=120, shares=SHARES),
            f"{SEEN}; the others may be wrong as well.",
        ),
        (
            EndingsReport(requests=120, shares=SHARES, changes={"loop": MORE_LOOPS}),
            f"The replies have changed for the worse as well. {SEEN}.",
        ),
    ],
)
def test_what_a_collapse_says_of_the_replies_follows_what_is_measured(endings, said):
    collapsed = model(temperature("0"), findings=(Mismatch(acceptance=0.01),), endings=endings)
    (explanation,) = explanations(collapsed)

    assert f"{said} Send one prompt to this pod and read the reply." in explanation.what


HALF_FOUND = CacheWindow(requests=40, queries=4000, hits=2000)
DFLASH = Speculation("dflash", 7, parallel_drafting=True)


@pytest.mark.parametrize("finding", [Mismatch(acceptance=0.004), LONG_PROMPTS])
def test_a_draft_of_the_target_s_states_is_doubted_behind_cached_prefixes_first(finding):
    """Restored tokens have no such states; the draft itself may be right (vLLM issue 47930)."""
    doubted = explained(finding, speculation=DFLASH, cache=HALF_FOUND)

    assert doubted.remedy.startswith(
        "First try `--no-enable-prefix-caching` on one pod: 50% of the prompt tokens come from the"
        " prefix cache, and behind those dflash may draft wrongly (vLLM issue 47930). "
    )
    for others in (
        explained(finding, cache=HALF_FOUND),  # an EAGLE head
        explained(finding, speculation=DFLASH, cache=replace(HALF_FOUND, hits=40)),
        explained(finding, speculation=DFLASH, cache=CacheWindow()),  # nothing is known
    ):
        assert others.remedy
        assert "prefix" not in others.remedy


def test_a_target_whose_weights_are_updated_in_place_is_not_helped_by_a_restart():
    """As in reinforcement learning: its draft is the one of before."""
    expect = explained(Mismatch(acceptance=0.01)).expect
    assert "updated in place, as in reinforcement learning, a restart does not help" in expect
    assert "update the draft with them" in expect


def test_the_answer_of_a_collapse_is_what_to_do_first_and_the_exceptions_are_in_the_finding():
    first = collapse_sentence(model(temperature("0"), engines=(engine(speculation=GREEDY),)))
    assert first == (
        "Send one prompt to this pod and read the reply. If it is wrong, take the pod out of"
        " traffic. Restart vLLM; if the rate stays, check that the draft was made for this target."
    )
