"""What the growth of a life says, poll by poll, and what each event changes."""

import pytest

from sidecar.analysis.split.comparison import Compared
from sidecar.analysis.split.growth import Growth, Told
from sidecar.analysis.split.standing import Event, Standing, after

AGREED, STRAYED, SILENT = Event.AGREED, Event.STRAYED, Event.FELL_SILENT


def totals(drafts, **changed):
    numbers = {
        Compared.DRAFTS: drafts,
        Compared.DRAFT_TOKENS: 3 * drafts,
        Compared.ACCEPTED_TOKENS: 2 * drafts,
    }
    return numbers | {Compared(name): number for name, number in changed.items()}


def poll(growth, at, reports, total, counted, *, is_connected=True, counts=True):
    told = Told(
        at=float(at),
        reports=reports,
        total=total,
        counted=counted,
        is_connected=is_connected,
        counts=counts,
    )
    return growth.take(told, 0.02)


def events(polls, start=0, **options):
    """What each poll says; polls are (vLLM's drafts, the plug-in's), one a second.

    A total that differs from the last one is a new report. ``start`` is what vLLM had counted.
    """
    growth, reports, before = Growth(None if start is None else totals(start)), 0, 0
    said = []
    for at, (counted, told) in enumerate(polls):
        reports += told != before
        before = told
        said.append(poll(growth, at, reports, totals(told), totals(counted), **options))
    return said


def last(polls, **options):
    return events(polls, **options)[-1]


@pytest.mark.parametrize(
    ("polls", "event"),
    [
        ([(0, 0)] * 100, None),  # nothing is compared
        ([(9 * n, 9 * n) for n in range(13)], None),  # fewer than a hundred
        ([(9 * n, 9 * n) for n in range(20)], AGREED),
        ([(10 * n + n % 7, 10 * n) for n in range(40)], AGREED),  # the page is a little ahead
        ([(10 * n, 10 * n + 9) for n in range(40)], AGREED),  # or the API server behind
        ([(1010 * n, 1000 * n) for n in range(1, 400)], AGREED),  # the tolerance
        ([(1000 * n, 900 * n) for n in range(60)], STRAYED),
        ([(1000 * n, 1100 * n) for n in range(60)], STRAYED),
        ([(1000 * n, 500 if n else 0) for n in range(40)], None),  # for so long it may be busy
        ([(1000 * n, 500 if n else 0) for n in range(70)], SILENT),
        ([(min(1000 * n, 9000), min(1000 * n, 9000)) for n in range(900)], AGREED),  # idle
    ],
)
def test_growth_agrees_if_vllm_may_have_counted_the_same_in_that_time(polls, event):
    """A poll and a report are never of one moment; only what lasts longer than that contradicts."""
    assert last(polls) is event


@pytest.mark.parametrize("start", [None, 700])
def test_totals_of_different_times_are_no_contradiction(start):
    """VLLM had counted before the life began; or the life, which a sidecar that restarts hears."""
    offset = 5000 if start is None else 0
    polls = [((start or 0) + 10 * n, offset + 10 * n) for n in range(1, 40)]
    assert last(polls, start=start) is AGREED


@pytest.mark.parametrize("name", ["drafts", "draft_tokens", "accepted_tokens"])
def test_each_of_the_three_numbers_is_compared_and_the_ratio_says_how_far_it_is_off(name):
    """A plug-in that miscounts only accepted tokens must not be trusted for its drafts."""
    growth = Growth(totals(0))
    for number in range(1, 60):
        usual = totals(1000 * number)
        other = usual | {Compared(name): usual[Compared(name)] // 2}
        event = poll(growth, number, number, other, usual)
    assert event is STRAYED
    assert growth.ratio == pytest.approx(0.5, abs=0.02)


def test_tokens_are_compared_where_nothing_is_drafted():
    growth = Growth(totals(0, generation_tokens=0))
    said = [
        poll(growth, number, min(number, 9), totals(0, generation_tokens=told), counted)
        for number, told in enumerate([30 * n for n in range(1, 10)] + [270] * 90, 1)
        for counted in [totals(0, generation_tokens=30 * number)]
    ]
    assert (said[1], said[8], said[-1]) == (None, AGREED, SILENT)


@pytest.mark.parametrize(("factor", "ratio"), [(0.9, 0.9), (1.1, 1.1), (0.5, 0.5)])
def test_a_plug_in_that_miscounts_after_a_long_exact_life_is_noticed(factor, ratio):
    """Ten million exact drafts do not hide that the growth since then is wrong."""
    exact = [(10_000_000 + 300 * n, 10_000_000 + 300 * n) for n in range(700)]
    counted = exact[-1][0]
    wrong = [(counted + 300 * n, counted + round(300 * factor * n) + n % 2) for n in range(1, 400)]
    said = events([*exact, *wrong], start=None)
    assert STRAYED not in said[:720]
    assert said[-1] is STRAYED
    first = said.index(STRAYED) - len(exact)
    assert 30 < first < 130


def test_growth_is_of_five_minutes_at_most_so_what_was_missed_before_is_forgotten():
    """From then on it agrees again, with less in its totals than vLLM has."""
    polls = [(10 * n, 10 * min(n, 100) + 10 * max(n - 200, 0)) for n in range(700)]
    said = events(polls)
    assert SILENT in said[:260]
    assert said[280] is not AGREED
    assert AGREED in said[500:570]
    assert said[-1] is AGREED


@pytest.mark.parametrize("behind", range(6))
def test_bursts_between_polls_and_late_reports_contradict_nothing(behind):
    """Traffic that comes in bursts, and reports that are up to six polls old, are usual."""
    counted = [1000 * (n // 50) + (n % 50 > 40) * 10 * (n % 50 - 40) for n in range(1000)]
    growth = Growth()
    for at, now in enumerate(counted):
        cut = max(at - at % 7 - behind, 0)
        event = poll(growth, at, cut // 7, totals(counted[cut]), totals(now))
        assert event in {None, AGREED}


def test_a_mark_of_a_late_report_contradicts_nothing():
    """It is read after vLLM has counted more than its cut has, as after a stall of the sidecar."""
    growth = Growth(totals(0))
    for at in range(200):
        late = 25 if at in {58, 59, 60, 61} else 0
        event = poll(growth, at, at - late, totals(100 * (at - late)), totals(100 * at))
        assert event in {None, AGREED}, at


def test_one_that_has_left_is_compared_with_all_that_vllm_has():
    """No report will come."""
    growth = Growth(totals(0))
    for at in range(1, 10):
        poll(growth, at, at, totals(100 * at), totals(100 * at))
    said = [
        poll(growth, at, 9, totals(900), totals(100 * at), is_connected=False)
        for at in range(10, 50)
    ]
    assert said.index(SILENT) in {30, 31}


def test_a_clock_that_is_set_back_ends_nothing_early_and_keeps_nothing_for_ever():
    growth = Growth(totals(0))
    for number in range(100):
        poll(growth, 5000 + number, number, totals(10 * number), totals(10 * number))
    said = [
        poll(growth, number, 100 + number, totals(990 + 8 * number), totals(990 + 10 * number))
        for number in range(1, 400)
    ]
    assert 30 < said.index(STRAYED) < 130


@pytest.mark.parametrize("counts", [True, False])
def test_one_that_does_not_count_yet_is_compared_for_as_long_as_it_takes(counts):
    """A hundred drafts in ten minutes."""
    polls = [(n // 6, n // 6) for n in range(1000)]
    assert last(polls, counts=counts) is (None if counts else AGREED)


def test_counters_that_start_again_begin_a_new_comparison():
    growth = Growth(totals(0))
    for number in range(50):
        poll(growth, number, number, totals(10 * number), totals(10 * number))
    growth.restart_counters()
    said = [
        poll(growth, number, number, totals(10 * number), totals(10 * (number - 50)))
        for number in range(50, 100)
    ]
    assert STRAYED not in said
    assert said[-1] is AGREED


# The table


@pytest.mark.parametrize(
    ("first", "then", "standing"),
    [
        (Standing.WAITS, [Event.IS_OURS], Standing.COUNTS),
        (Standing.WAITS, [AGREED], Standing.COUNTS),
        (Standing.WAITS, [Event.IS_ANOTHERS], Standing.ELSEWHERE),
        (Standing.COUNTS, [STRAYED, Event.IS_OURS], Standing.DIFFERS),
        (Standing.COUNTS, [STRAYED, AGREED], Standing.COUNTS),
        (Standing.COUNTS, [SILENT, Event.IS_OURS], Standing.SILENT),
        (Standing.COUNTS, [SILENT, AGREED], Standing.COUNTS),
        (Standing.COUNTS, [Event.CONTRADICTED, AGREED, Event.IS_OURS], Standing.BROKEN),
        (Standing.COUNTS, [Event.RESTARTED], Standing.WAITS),
        (Standing.COUNTS, [Event.ENDED, AGREED, Event.IS_OURS], Standing.ELSEWHERE),
        (Standing.DIFFERS, [Event.ENDED, Event.RETURNED, Event.IS_OURS], Standing.COUNTS),
        (Standing.BROKEN, [Event.ENDED, Event.RETURNED], Standing.WAITS),
    ],
)
def test_what_changes_the_standing_of_a_life(first, then, standing):
    for event in then:
        first = after(first, event)
    assert first is standing


@pytest.mark.parametrize("standing", [one for one in Standing if one is not Standing.ELSEWHERE])
def test_of_another_vllm_nothing_counts_whatever_it_was(standing):
    assert after(standing, Event.IS_ANOTHERS) is Standing.ELSEWHERE
    assert after(standing, Event.ENDED) is Standing.ELSEWHERE
