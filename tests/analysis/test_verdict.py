import pytest

from sidecar.analysis.request_stats import RecentWork
from sidecar.analysis.verdict import Judge, Verdict, VerdictThresholds, advice, tokens_advice

THRESHOLDS = VerdictThresholds(min_requests=20, min_drafts_per_second=1.0, window=100.0, min_share=0.1, margin=0.01)


def work(acceptance, *, requests=100, drafts=1000.0, draft_tokens=3000.0):
    accepted = (acceptance or 0) * draft_tokens
    return RecentWork(
        requests=requests,
        drafts=drafts,
        draft_tokens=draft_tokens,
        accepted_tokens=accepted,
        acceptance=acceptance,
        p10=acceptance,
        p50=acceptance,
        p90=acceptance,
        distribution=(),
        positions=(),
    )


def verdicts(*rates):
    judge = Judge(THRESHOLDS)
    return [judge.judge({"0": work(rate)})["0"] for rate in rates]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0.0, Verdict.NET_NEGATIVE),
        (0.4999, Verdict.NET_NEGATIVE),
        (0.5, Verdict.BREAK_EVEN),
        (0.6499, Verdict.BREAK_EVEN),
        (0.65, Verdict.NET_POSITIVE),
        (1.0, Verdict.NET_POSITIVE),
        (None, Verdict.INSUFFICIENT_DATA),
    ],
)
def test_the_first_verdict_goes_by_the_thresholds(rate, expected):
    assert verdicts(rate) == [expected]


def test_a_rate_at_a_threshold_does_not_flap():
    assert set(verdicts(0.505, 0.495, 0.503, 0.497, 0.499)) == {Verdict.BREAK_EVEN}
    assert set(verdicts(0.645, 0.655, 0.648, 0.652)) == {Verdict.BREAK_EVEN}


def test_a_rate_beyond_the_margin_changes_the_verdict():
    assert verdicts(0.6, 0.48, 0.505, 0.52, 0.7, 0.645, 0.63, 0.3) == [
        Verdict.BREAK_EVEN,
        Verdict.NET_NEGATIVE,
        Verdict.NET_NEGATIVE,
        Verdict.BREAK_EVEN,
        Verdict.NET_POSITIVE,
        Verdict.NET_POSITIVE,
        Verdict.BREAK_EVEN,
        Verdict.NET_NEGATIVE,
    ]


@pytest.mark.parametrize(
    "little",
    [
        {"requests": 19},
        {"drafts": 99.0},
        {"draft_tokens": 300.0},  # 9 % of all, with the other temperature's 3000
    ],
)
def test_too_little_volume_gives_no_verdict(little):
    found = Judge(THRESHOLDS).judge({"0": work(0.3, **little), "1+": work(0.9)})
    assert found == {"0": Verdict.INSUFFICIENT_DATA, "1+": Verdict.NET_POSITIVE}


def test_a_verdict_holds_while_the_volume_hovers_around_what_it_takes():
    judge = Judge(THRESHOLDS)
    found = [judge.judge({"0": work(0.3, requests=count)})["0"] for count in (20, 19, 10, 9, 19, 20)]
    negative, none = Verdict.NET_NEGATIVE, Verdict.INSUFFICIENT_DATA
    assert found == [negative, negative, negative, none, none, negative]


def test_fewer_tokens_are_advised_as_far_as_positions_are_worth_it():
    text = tokens_advice(0.33, (0.7, 0.45, 0.3, 0.15, 0.05), THRESHOLDS)
    assert "2 instead of 5" in text
    assert "30%" in text


def test_none_at_all_are_advised_where_not_even_the_first_is_worth_it():
    assert "or none" in tokens_advice(0.1, (0.25, 0.05), THRESHOLDS)


def test_more_tokens_are_advised_as_far_as_acceptance_reaches():
    # It falls by 10 % a position: 0.9, 0.81, 0.73, then 0.66, 0.59, 0.53.
    assert "up to 6 instead of 3" in tokens_advice(0.81, (0.9, 0.81, 0.729), THRESHOLDS)
    # It falls by a third a position, and is 0.42 at the third already.
    assert tokens_advice(0.81, (0.75, 0.56, 0.42), THRESHOLDS) is None


def test_more_tokens_have_an_end():
    assert "up to 16 instead of 12" in tokens_advice(0.99, (0.99,) * 12, THRESHOLDS)


def test_between_the_thresholds_there_is_no_advice():
    assert tokens_advice(0.4, (0.5,), THRESHOLDS) is None
    assert tokens_advice(0.8, (0.8,), THRESHOLDS) is None


@pytest.mark.parametrize(("rate", "word"), [(0.2, "fewer"), (0.9, "more")])
def test_without_positions_the_advice_names_no_number(rate, word):
    assert tokens_advice(rate, (), THRESHOLDS) == f"Acceptance {rate:.2f}: speculate {word} tokens."


def test_without_a_verdict_there_is_no_advice():
    for rate in (0.2, 0.9):
        assert advice(Verdict.INSUFFICIENT_DATA, work(rate, requests=2), THRESHOLDS) is None


def test_what_loses_is_advised_on_though_its_number_of_tokens_fits():
    assert tokens_advice(0.45, (), THRESHOLDS) is None
    assert "pods that don't speculate" in advice(Verdict.NET_NEGATIVE, work(0.45), THRESHOLDS)
    assert advice(Verdict.BREAK_EVEN, work(0.55), THRESHOLDS) is None
    # The number of tokens says more.
    assert advice(Verdict.NET_NEGATIVE, work(0.2), THRESHOLDS) == "Acceptance 0.20: speculate fewer tokens."
