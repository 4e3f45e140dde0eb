"""What the growth of a life says, poll by poll, and what each event changes."""

import itertools
import pickle

import pytest

from sidecar.analysis.split.comparison import Compared
from sidecar.analysis.split.growth import Growth
from sidecar.analysis.split.standing import Event, Standing, after
from tests.marks import slow

AGREED, STRAYED, SILENT = Event.AGREED, Event.STRAYED, Event.FELL_SILENT


def totals(drafts, **changed):
    numbers = {
        Compared.DRAFTS: drafts,
        Compared.DRAFT_TOKENS: 3 * drafts,
        Compared.ACCEPTED_TOKENS: 2 * drafts,
    }
    return numbers | {Compared(name): number for name, number in changed.items()}


NOTHING = totals(0)


def report(growth, at, told):
    growth.report(float(at), told)


def poll(growth, at, counted, **options):
    return growth.poll(float(at), counted, 0.02, **options)


def events(polls, told=NOTHING, **options):
    """What each poll says; polls are (vLLM's drafts, the plug-in's), one a second.

    A total that differs from the last one is a report of the second before. ``told`` is what the
    life had told before; None: unknown.
    """
    growth, before = Growth(told), 0
    said = []
    for at, (counted, now) in enumerate(polls):
        if now != before:
            report(growth, at - 0.5, totals(now))
        before = now
        said.append(poll(growth, at, totals(counted), **options))
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


@pytest.mark.parametrize(("earlier", "told"), [(700, NOTHING), (0, None)])
def test_totals_of_different_times_are_no_contradiction(earlier, told):
    """VLLM had counted before the life began; or the life, which a sidecar that restarts hears."""
    offset = 5000 if told is None else 0
    polls = [(earlier + 10 * n, offset + 10 * n) for n in range(1, 40)]
    assert last(polls, told=told) is AGREED


@pytest.mark.parametrize("name", ["drafts", "draft_tokens", "accepted_tokens"])
def test_each_of_the_three_numbers_is_compared_and_the_ratio_says_how_far_it_is_off(name):
    """A plug-in that miscounts only accepted tokens must not be trusted for its drafts."""
    growth = Growth(NOTHING)
    for at in range(1, 60):
        usual = totals(1000 * at)
        report(growth, at, usual | {Compared(name): usual[Compared(name)] // 2})
        event = poll(growth, at, usual)
    assert event is STRAYED
    assert growth.ratio == pytest.approx(0.5, abs=0.03)


def test_tokens_are_compared_where_nothing_is_drafted():
    growth = Growth(totals(0, generation_tokens=0))
    said = []
    for at in range(1, 100):
        if at < 10:
            report(growth, at, totals(0, generation_tokens=30 * at))
        said.append(poll(growth, at, totals(0, generation_tokens=30 * at)))
    assert (said[1], said[8], said[-1]) == (None, AGREED, SILENT)


@pytest.mark.parametrize("seconds", [0.1, 1, 5, 15, 60])
def test_a_plug_in_that_misses_one_draft_of_eleven_is_noticed_however_seldom_vllm_is_polled(
    seconds,
):
    """What was told by a poll was known to an interval, so at 15 s nothing was ever noticed."""
    growth = Growth(NOTHING)
    said = {}
    for tick in range(1, 12_000):  # tenths of a second
        if tick % 10 == 0:
            report(growth, tick / 10, totals(10 * tick))
        if tick % round(10 * seconds) == 0:
            said[tick / 10] = poll(growth, tick / 10, totals(11 * tick))

    noticed = [at for at, event in said.items() if event is STRAYED]
    assert noticed[0] <= 60 + 4 * seconds
    assert {event for at, event in said.items() if at > noticed[0]} == {STRAYED}


@pytest.mark.parametrize("seconds", [0.1, 1, 5, 15, 60])
def test_a_plug_in_that_counts_all_is_never_doubted_however_seldom_vllm_is_polled(seconds):
    """Bursts of three seconds in ten; a report is up to two seconds late, and so is the page."""
    growth = Growth(NOTHING)
    counted = [0]
    for tick in range(12_000):
        counted.append(counted[-1] + 50 * (tick % 100 < 30))

    said = set()
    for tick in range(30, 12_000):
        if tick % 10 == 0:
            made = tick - tick % 20
            report(growth, made / 10, totals(counted[made]))
        if tick % round(10 * seconds) == 0:
            said.add(poll(growth, tick / 10, totals(counted[tick - tick % 7])))
    assert said <= {None, AGREED}
    assert AGREED in said


@pytest.mark.parametrize(("factor", "ratio"), [(0.9, 0.9), (1.1, 1.1), (0.5, 0.5)])
def test_a_plug_in_that_miscounts_after_a_long_exact_life_is_noticed(factor, ratio):
    """Ten million exact drafts do not hide that the growth since then is wrong."""
    exact = [(10_000_000 + 300 * n, 10_000_000 + 300 * n) for n in range(700)]
    counted = exact[-1][0]
    wrong = [(counted + 300 * n, counted + round(300 * factor * n) + n % 2) for n in range(1, 400)]
    said = events([*exact, *wrong], told=None)
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
        if at % 7 == 0:
            made = max(at - behind, 0)
            report(growth, made, totals(counted[made]))
        assert poll(growth, at, totals(now)) in {None, AGREED}


@pytest.mark.parametrize("stall", range(50, 70))
def test_reports_that_are_read_late_contradict_nothing(stall):
    """As after a stall of the sidecar: a poll is there before the reports of half a minute."""
    growth = Growth(NOTHING)
    for at in range(200):
        late = 25 if stall <= at < stall + 4 else 0
        for made in range(stall, at + 1) if at == stall + 4 else [at] if not late else []:
            report(growth, made, totals(100 * made))
        assert poll(growth, at, totals(100 * at)) in {None, AGREED}, at


def test_one_whose_first_report_tells_of_minutes_is_known_well_soon_after():
    """As one that was away: half of its growth was unknown until it had grown as much again."""
    growth = Growth(NOTHING)
    poll(growth, 0, totals(1000))
    for at in range(1, 16):
        told = totals(1000 + 10 * at)
        report(growth, at, told)
        event = poll(growth, at, told, standing=Standing.WAITS)
    assert event is AGREED


def waits(factor=1.0, *, lag=0, spacing=20, period=21, told=NOTHING):
    """When one that waits agrees at the earliest and at the latest, wherever reports and polls are.

    In seconds since the first step; 99 is never. VLLM drafts a thousand times a second in steps of
    0.05 s, and before the first one, its page is polled once. A plug-in, which had ``told`` so much
    before, tells ``factor`` times as much, every ``period`` steps; a poll comes every ``spacing``
    steps, and its page is of ``lag`` steps before, or of as many as ``lag`` says.
    """
    agreed = []
    for phase, first in itertools.product(range(0, spacing, spacing // 5), (0, 5, 10, 15)):
        growth = Growth(told)
        said = {0.0: poll(growth, -0.5, NOTHING, standing=Standing.WAITS)}
        for step in range(1200):
            if step % period == first:
                report(growth, step / 20, totals(round(50 * factor * step)))
            if step % spacing == phase:
                late = lag(step) if callable(lag) else lag
                counted = totals(50 * max(step - late, 0))
                said[step / 20] = poll(growth, step / 20, counted, standing=Standing.WAITS)
        agreed.append(next((at for at, event in said.items() if event is AGREED), 99))
        assert factor != 1 or STRAYED not in said.values()
    return min(agreed), max(agreed)


@pytest.mark.parametrize("lag", [0, 10])
@pytest.mark.parametrize(("told", "seconds"), [(NOTHING, 8.0), (None, 10.0)])
def test_one_that_waits_under_load_agrees_within_seconds_if_the_api_server_keeps_up(
    told, seconds, lag
):
    """It took 9.3 and 14: what was told at a poll was known to two reports at each end."""
    assert waits(lag=lag, told=told)[1] <= seconds


@pytest.mark.parametrize("is_behind", [lambda at: at < 2, lambda at: at > 5])
def test_one_that_waits_never_strays_by_what_the_api_server_counts_late(is_behind):
    """For a while the page is a second late, so the last report has more than vLLM's count.

    If that were what had been told, its growth would be outside for a minute.
    """
    assert waits(lag=lambda step: 20 * is_behind(step / 20), told=None)[1] <= 20.0


@pytest.mark.parametrize("spacing", [20, 100])
@pytest.mark.parametrize("period", [20, 21, 30])
@pytest.mark.parametrize("factor", [0.5, 0.6, 1.6, 2.0])
def test_one_that_waits_and_grows_at_another_rate_never_agrees(factor, period, spacing):
    """Wherever the reports are between the polls, and if the page is half a second late."""
    assert waits(factor, period=period, spacing=spacing, lag=10) == (99, 99)


def test_a_neighbour_whose_growth_passes_vllm_s_does_not_agree_sooner_on_the_way():
    """It begins later, at twice the rate: for a moment, both have grown as much."""
    growth = Growth(NOTHING)
    said = set()
    for at in range(60):
        report(growth, at, totals(2000 * max(at - 2, 0)))
        said.add(poll(growth, at + 0.5, totals(1000 * at), standing=Standing.WAITS))
    assert AGREED not in said


def test_of_an_idle_engine_all_is_known_after_two_seconds():
    """It was so once the last report was half a minute old."""
    growth = Growth(NOTHING)
    for at in range(20):
        report(growth, at, totals(10 * at))
        poll(growth, at, totals(10 * at))
    report(growth, 19.5, totals(195))
    known = [poll_now(growth, 20 + at, 195, is_idle=True) for at in range(4)]
    assert known == [190, 190, 195, 195]


def poll_now(growth, at, counted, **options):
    """The drafts of the poll up to which all is known."""
    poll(growth, at, totals(counted), **options)
    return growth.now.counted[Compared.DRAFTS]


@pytest.mark.parametrize("options", [{}, {"is_idle": False}])
def test_while_a_step_is_under_way_less_is_known_however_long_it_takes(options):
    growth = Growth(NOTHING)
    for at in range(20):
        report(growth, at, totals(10 * at))
        poll(growth, at, totals(10 * at))
    assert [poll_now(growth, 20 + at, 200, **options) for at in range(20)] == [180] * 20


def test_one_whose_last_report_was_lost_falls_silent_in_an_idle_engine_and_is_back_with_the_next():
    growth = Growth(NOTHING)
    for at in range(20):
        report(growth, at, totals(10 * at))
        poll(growth, at, totals(10 * at))
    said = [poll(growth, 20 + at, totals(200), is_idle=True) for at in range(40)]
    assert said.index(SILENT) in {31, 32, 33}
    assert STRAYED not in said
    report(growth, 60, totals(210))
    assert poll(growth, 61, totals(210)) in {AGREED, Event.CAUGHT_UP}


def test_a_sender_whose_times_are_always_in_the_past_is_compared_all_the_same():
    growth = Growth(NOTHING)
    for at in range(1, 300):
        report(growth, 0, totals(5 * at))
        event = poll(growth, 1000 + at, totals(10 * at))
    assert event is STRAYED


def test_one_that_has_left_is_compared_with_all_that_vllm_has():
    """No report will come."""
    growth = Growth(NOTHING)
    for at in range(1, 10):
        report(growth, at, totals(100 * at))
        poll(growth, at, totals(100 * at))
    said = [poll(growth, at, totals(100 * at), is_connected=False) for at in range(10, 50)]
    assert said.index(SILENT) in {30, 31}


def test_one_that_leaves_after_its_first_report_is_silent_once_vllm_has_counted_on():
    growth = Growth(NOTHING)
    report(growth, 0, totals(50))
    idle = [poll(growth, at, totals(50), is_connected=False) for at in range(60)]
    said = [poll(growth, 60 + at, totals(50 + at), is_connected=False) for at in range(100)]
    assert set(idle) == {None}
    assert said[-1] is SILENT
    report(growth, 170, totals(180))
    assert poll(growth, 171, totals(180)) is Event.CAUGHT_UP


def test_a_clock_that_is_set_back_ends_nothing_early_and_keeps_nothing_for_ever():
    growth = Growth(NOTHING)
    for at in range(100):
        report(growth, 5000 + at, totals(10 * at))
        poll(growth, 5000 + at, totals(10 * at))
    said = []
    for at in range(1, 400):
        report(growth, at, totals(990 + 8 * at))
        said.append(poll(growth, at, totals(990 + 10 * at)))
    assert 30 < said.index(STRAYED) < 130


@pytest.mark.parametrize(
    ("standing", "event"),
    [(Standing.COUNTS, None), (Standing.WAITS, AGREED), (Standing.DIFFERS, AGREED)],
)
def test_one_that_does_not_count_is_compared_for_as_long_as_it_takes(standing, event):
    """A hundred drafts in ten minutes."""
    polls = [(n // 6, n // 6) for n in range(1000)]
    assert last(polls, standing=standing) is event


def test_one_that_waits_agrees_however_seldom_it_reports():
    """One short request a minute: the reports around a poll are a request apart, and more."""
    growth = Growth(NOTHING)
    said = []
    for minute in range(60):
        told = totals(50 * minute)
        report(growth, 60 * minute - 30, told)
        said.append(poll(growth, 60 * minute, told, standing=Standing.WAITS))
    assert AGREED not in said[:5]
    assert said[15] is AGREED


@pytest.mark.parametrize(
    "standing", [Standing.WAITS, *(slow(one) for one in Standing if one is not Standing.WAITS)]
)
def test_what_is_kept_of_a_life_is_bounded_however_long_it_waits(standing):
    """As a neighbour's beside an idle vLLM."""
    growth = Growth(NOTHING)
    sizes = []
    for at in range(0, 60 * 2000, 60):
        report(growth, at - 1, totals(at))
        poll(growth, at, NOTHING, standing=standing)
        sizes.append(len(pickle.dumps(growth)))
    assert sizes[-1] <= 2 * max(sizes[:100])


def test_counters_that_start_again_begin_a_new_comparison():
    growth = Growth(NOTHING)
    said = []
    for at in range(100):
        if at == 50:
            growth.restart_counters()
        report(growth, at, totals(10 * at))
        said.append(poll(growth, at, totals(10 * (at % 50))))
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
