"""What is said of a model that does not speculate yet."""

import json
import shlex
from dataclasses import replace

import pytest

from sidecar.wording.checklist import HEADER, checklist_text, conclusion
from tests.analysis.test_checklist import GOOD, LEAST, LIGHT, judged

HOT = replace(GOOD, cool=0.25, hot=0.75, temperature=1.0)


@pytest.mark.parametrize(
    ("traffic", "load", "sentence"),
    [
        (None, {}, "Whether speculation would suit it is not known: that takes what a"),
        (replace(GOOD, requests=LEAST - 1), {}, "Not enough requests yet to say whether"),
        (GOOD, {}, "By 40 requests in 10 min, speculation is worth a try: nothing speaks against"),
        (
            HOT,
            {},
            (
                "By 40 requests in 10 min, speculation may pay or not. Against it: 75% of the"
                " requests are above T 0.8. These limits are rules of thumb. Only a measurement"
            ),
        ),
        (replace(GOOD, cool=0.5, hot=0.1), {"running": 20.0}, "By 40 requests in 10 min, specul"),
        (
            replace(HOT, rejected={"min_p": 0.25, "logit_bias": 0.5}),
            {},
            (
                "By 40 requests in 10 min, leave speculation off for now: vLLM rejects min_p (25%"
                " of the requests) and logit_bias (50% of the requests) with status 400 while it"
                " speculates."
            ),
        ),
        (GOOD, {"queued": 0.4}, "By 40 requests in 10 min, leave speculation off for now: requ"),
    ],
)
def test_the_conclusion_names_what_decides(traffic, load, sentence):
    """A reason that blocks hides the others, which do not matter until it is gone."""
    assert conclusion(judged(traffic, replace(LIGHT, **load))).startswith(sentence)


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
        "60% or more",
    )
    assert rows["load of the busiest engine"] == (
        "for",
        "2.0 running on average, 6 at most",
        "up to 8 running",
        "32 or more",
    )


def test_a_number_that_is_not_known_is_a_dash():
    """Without a plug-in, nothing is said of requests."""
    text = checklist_text(judged(None))

    assert {row[2] for row in text.rows if row[1] == "not known"} == {"-"}
    assert [row[0] for row in text.rows if row[1] != "not known"] == [
        "load of the busiest engine",
        "polls at which requests wait",
        "KV cache used, at 95% of the polls",
    ]
    assert all(len(row) == len(HEADER) for row in text.rows)
    assert text.candidates == ()


def test_what_to_try_is_a_whole_option_with_its_price():
    """Of traffic that repeats much, and of hot traffic, whose drafts are to be sampled."""
    suffix, head = checklist_text(judged(replace(GOOD, structured=0.5))).candidates
    sampled, _ = checklist_text(judged(HOT)).candidates

    option, config = shlex.split(suffix.option)
    assert option == "--speculative-config"
    assert json.loads(config) == {"method": "suffix", "num_speculative_tokens": 12}
    assert "vLLM gives up async scheduling and model runner V2 for it." in suffix.why
    assert "measure a baseline before" in suffix.why
    assert "gives up" not in head.why
    assert json.loads(shlex.split(sampled.option)[1])["draft_sample_method"] == "probabilistic"
    assert "since 75% are above 0.8" in sampled.why
