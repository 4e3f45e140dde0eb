"""What is said of a model that does not speculate yet."""

import json
import shlex
from dataclasses import replace

import pytest

from sidecar.analysis.checklist.checklist import checklist
from sidecar.wording.checklist import HEADER, checklist_text, conclusion
from tests.analysis.test_checklist import (
    GOOD,
    HALF_BETWEEN,
    LEAST,
    LIGHT,
    UNDECIDED_LOAD,
    hello,
    judged,
)

HOT = replace(GOOD, cool=0.25, hot=0.75, temperature=1.0)
MEASURE = (
    "The thresholds are rules of thumb. Only a measurement decides: `specdec-sidecar sweep"
    " --url URL --against OTHER` (docs/measure.md)."
)
JUDGED = "Judging by 40 requests in 10 min"
WORTH_A_TRY = f"{JUDGED}, speculation is worth a try: nothing speaks against it."


@pytest.mark.parametrize(
    ("traffic", "load", "sentence"),
    [
        (
            None,
            {},
            (
                "Whether speculation would suit it is not known: that takes what a plug-in reports"
                " of its requests."
            ),
        ),
        (
            replace(GOOD, requests=LEAST - 1),
            {},
            (f"Not enough requests yet to say whether speculation would suit them: 19 of {LEAST}."),
        ),
        (
            GOOD,
            {"busy_polls": 10},
            (
                "Nothing speaks against speculation yet, but it is not known how often requests"
                " wait and how full the KV cache is, which alone could be a reason to leave it off."
                " The load counts from 20 polls with requests on, requests' times from 20 requests"
                " on."
            ),
        ),
        (GOOD, {}, f"{WORTH_A_TRY} {MEASURE}"),
        (
            HOT,
            {},
            (
                f"{JUDGED}, speculation may pay or not. Against it: 75% of the"
                f" requests are above T 0.8. {MEASURE}"
            ),
        ),
        (
            HALF_BETWEEN,
            UNDECIDED_LOAD,
            (f"{JUDGED}, speculation may pay or not: not enough lines speak for it. {MEASURE}"),
        ),
        (
            replace(GOOD, requests=103, rejected={"min_p": 1 / 103}),
            {},
            (
                f"{WORTH_A_TRY.replace('40', '103')} But vLLM rejects min_p (1 request) with"
                f" status 400 while it speculates. {MEASURE}"
            ),
        ),
        (
            replace(HOT, rejected={"min_p": 0.25, "logit_bias": 0.5}),
            {},
            (
                f"{JUDGED}, leave speculation off for now: vLLM rejects min_p (25%"
                " of the requests) and logit_bias (50% of the requests) with status 400 while it"
                " speculates."
            ),
        ),
        (
            GOOD,
            {"queued": 0.4},
            (f"{JUDGED}, leave speculation off for now: requests wait at 40% of the busy polls."),
        ),
        (
            GOOD,
            {"kv_cache_high": 0.95},
            (
                f"{JUDGED}, leave speculation off for now: the KV cache is 95% full"
                " (P95 of busy polls)."
            ),
        ),
    ],
)
def test_the_conclusion_names_what_decides(traffic, load, sentence):
    """A reason that blocks hides the others, which do not matter until it is gone."""
    assert conclusion(judged(traffic, replace(LIGHT, **load))) == sentence


def test_a_few_requests_with_a_parameter_that_vllm_rejects_are_counted():
    """In percent they would be 0%, as if there were none."""
    rare = replace(GOOD, requests=1000, rejected={"min_p": 0.003})
    rows = {row[0]: row[1:] for row in checklist_text(judged(rare)).rows}

    assert rows["min_p and logit_bias"] == (
        "between",
        "min_p in 3 requests",
        "none",
        "1% or more: status 400 while vLLM speculates",
    )


def test_an_old_vllm_rejects_no_parameter():
    """That began with 0.14, so until then it is no reason to leave speculation off."""
    used = replace(GOOD, rejected={"min_p": 0.25})
    text = checklist_text(checklist(used, [LIGHT], LEAST, hello("0.13.0")))
    rows = {row[0]: row[1:] for row in text.rows}

    assert rows["min_p and logit_bias"][:2] == ("for", "vLLM 0.13.0 rejects none")
    assert text.conclusion == f"{WORTH_A_TRY} {MEASURE}"


def test_each_line_has_this_pods_number_and_the_limits():
    rows = {row[0]: row[1:] for row in checklist_text(judged(HOT)).rows}

    assert rows["temperatures"] == (
        "against",
        "median 1; 25% up to 0.5, 75% above 0.8",
        "60% up to 0.5",
        "60% above 0.8",
    )
    assert rows["output length"] == (
        "for",
        "P50 100, P95 200 tokens",
        "P50 of 50 or more",
        "P50 of 20 or fewer",
    )
    assert rows["structured output"] == (
        "for",
        "0% of the requests",
        "at most 20%",
        "-",
    )
    assert rows["load of the busiest engine"] == (
        "for",
        "2.0 running on average, 6 at most",
        "up to 8 running",
        "32 or more",
    )


@pytest.mark.parametrize("traffic", [None, replace(GOOD, requests=LEAST - 1)])
def test_a_number_that_is_not_known_is_a_dash(traffic):
    """Without a plug-in, and with too few requests, nothing is said of them."""
    text = checklist_text(judged(traffic))

    assert {row[2] for row in text.rows if row[1] == "not known"} == {"-"}
    assert [row[0] for row in text.rows if row[1] != "not known"] == [
        "load of the busiest engine",
        "busy polls at which requests wait",
        "KV cache used, P95 of busy polls",
    ]
    assert all(len(row) == len(HEADER) for row in text.rows)
    assert text.candidates == ()


def test_what_to_try_is_a_whole_option_with_its_price():
    """Of traffic that repeats much, and of hot traffic, whose drafts are to be sampled."""
    known = hello(async_scheduling=True, model_runner_v2=True)
    repeating = replace(GOOD, structured=0.5)
    suffix, head = checklist_text(checklist(repeating, [LIGHT], LEAST, known)).candidates
    sampled, _ = checklist_text(judged(HOT)).candidates

    option, config = shlex.split(suffix.option)
    assert option == "--speculative-config"
    assert json.loads(config) == {"method": "suffix", "num_speculative_tokens": 12}
    assert "vLLM gives up async scheduling and model runner V2 for it." in suffix.why
    assert "measure a baseline before" in suffix.why
    assert "gives up" not in head.why
    assert json.loads(shlex.split(sampled.option)[1])["draft_sample_method"] == "probabilistic"
    assert "since 75% are above 0.8" in sampled.why
    assert "The load is not known" not in sampled.why


def test_draft_tokens_that_do_not_follow_from_the_load_say_so():
    """One busy poll of 100 requests is no load; a suffix tree needs none."""
    quiet = replace(LIGHT, busy_polls=1, running=100.0)
    mixed = replace(HALF_BETWEEN, structured=0.5)
    suffix, head = checklist_text(judged(mixed, quiet)).candidates

    assert json.loads(shlex.split(head.option)[1])["num_speculative_tokens"] == 3
    assert head.why.endswith("The load is not known yet: draft fewer tokens if it is high.")
    assert "The load is not known" not in suffix.why
