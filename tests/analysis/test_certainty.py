"""Whether a rate is certain to be on one side of a line: by requests, over up to four hours."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from sidecar.analysis.certainty.past import WINDOWS, Counted, PastWatch
from sidecar.analysis.certainty.side import NOWHERE, CertainSide, Line, Side, alarming, certain_side
from sidecar.analysis.certainty.spread import BLOCK, Spread, SpreadWatch
from sidecar.analysis.certainty.sums import Sums
from sidecar.analysis.judgement import Verdict
from sidecar.analysis.verdict import judge
from sidecar.settings.groups import Thresholds
from tests.analysis.analysis_tools import Server, evidence, snap

POLL = 30.0
TOKENS = 90  # draft tokens of a request


class Traffic:
    """Requests of one kind, poll by poll; those of a session are alike."""

    def __init__(self, *, is_told=True, at_once=1):
        self.watch, self.at, self.random = PastWatch(), 1000.0, Random(1)
        self.is_told, self.at_once = is_told, at_once
        self.watch.mark(self.at)

    def serve(self, rate, *, seconds, requests=15):
        """``requests`` a poll finish; their rates have a standard deviation of 0.15."""
        for _ in range(int(seconds / POLL)):
            accepted = []
            for _ in range(requests // self.at_once):
                own = min(max(self.random.gauss(rate, 0.15), 0.0), 1.0)
                accepted += [round(own * TOKENS)] * self.at_once
            drafted = [TOKENS] * len(accepted)
            self.watch.grow(Counted(len(accepted), sum(drafted), sum(accepted)))
            if self.is_told:
                self.watch.finished(Sums.of(drafted, accepted))
            self.at += POLL
            self.watch.mark(self.at)
        return self

    @property
    def past(self):
        return self.watch.past


def known(past, least=20, **since):
    return {round(one.seconds): one for one in past.estimates(least, **since)}


def test_a_rate_is_known_over_four_windows_by_what_was_counted_in_each():
    """The shortest notices a change first, and the longest has the smallest error."""
    traffic = Traffic().serve(0.6, seconds=5 * 3600).serve(0.3, seconds=600)
    found = known(traffic.past)

    assert list(found) == list(WINDOWS)
    assert found[600].rate == pytest.approx(0.3, abs=0.02)
    assert found[14_400].rate == pytest.approx(0.6 - 0.3 / 24, abs=0.02)
    assert found[600].requests == 300
    errors = [one.error for one in found.values()]
    assert errors == sorted(errors, reverse=True)


def test_a_young_pod_has_one_window_and_none_begins_before_a_change():
    """Two windows of the same beginning are the same."""
    past = Traffic().serve(0.6, seconds=480).past

    assert list(known(past)) == [480]
    assert list(known(past, since=past.at - 240)) == [240]
    assert known(past, least=500) == {}


def test_long_requests_count_while_they_run():
    """A request of an hour finishes in no window of ten minutes."""
    watch = PastWatch()
    for number in range(21):
        watch.grow(Counted(0, 3000, 1200))
        watch.mark(1000.0 + 30 * number, running=32)
    (found,) = watch.past.estimates(20)

    assert (found.requests, found.rate) == (32, pytest.approx(0.4))


def test_memory_is_bounded_and_a_clock_that_was_set_back_begins_again():
    """Four hours of readings, two minutes apart, at any interval of polls."""
    traffic = Traffic().serve(0.6, seconds=6 * 3600)
    assert len(traffic.past.readings) <= 122
    traffic.at -= 3600
    traffic.watch.mark(traffic.at)

    assert known(traffic.past) == {}


def test_a_window_does_not_reach_over_an_outage_that_is_longer_than_itself():
    """Ten minutes of requests from before an hour without polls say nothing of now."""
    traffic = Traffic().serve(0.6, seconds=3600)
    traffic.at += 3600
    traffic.serve(0.3, seconds=240)
    found = known(traffic.past)

    assert found.pop(240 if 240 in found else min(found)).rate == pytest.approx(0.3, abs=0.02)
    assert max(found) > 3600  # the longest spans it


@pytest.mark.parametrize("is_told", [True, False])
def test_the_error_is_that_of_requests_with_the_plug_in_and_without(is_told):
    """Without it, only the differences of blocks tell how much requests differ."""
    traffic = Traffic(is_told=is_told).serve(0.6, seconds=24 * 3600)
    error = traffic.past.spread.error(150)

    assert error == pytest.approx(0.15 / 150**0.5, rel=0.2 if is_told else 0.35)


def test_requests_that_come_alike_have_a_larger_error():
    """Five alike tell as much as one; their own variance does not show it, blocks do."""
    alone = Traffic().serve(0.6, seconds=24 * 3600)
    alike = Traffic(at_once=5).serve(0.6, seconds=24 * 3600)
    ratio = alike.past.spread.error(150) / alone.past.spread.error(150)

    assert ratio == pytest.approx(5**0.5, rel=0.25)


def test_before_anything_is_known_sessions_are_assumed():
    """Else the first minutes after a start would be too sure."""
    young = Traffic().serve(0.6, seconds=BLOCK).past.spread
    later = Traffic().serve(0.6, seconds=6 * 3600).past.spread

    assert young.factor > 3
    assert later.factor < 1.8
    assert Spread().error(100) == pytest.approx(0.02)


def test_a_standing_begins_by_what_is_certain_and_ends_sooner_for_an_alarm():
    """What led to a change does not count twice."""
    traffic = Traffic()
    line, where = alarming(0.5), NOWHERE
    told = []
    for rate, minutes in ((0.65, 60), (0.42, 20), (0.51, 20), (0.65, 60)):
        for _ in range(minutes):
            traffic.serve(rate, seconds=60)
            estimates = partial(traffic.past.estimates, 20)
            where = certain_side(where, line, estimates, traffic.at)
            told.append(where.side)
    changes = [minute for minute in range(1, len(told)) if told[minute] is not told[minute - 1]]

    assert [told[minute] for minute in changes[-2:]] == [Side.BELOW, Side.ABOVE]
    fell, rose = changes[-2:]
    assert 60 + 3 <= fell <= 60 + 10
    assert 100 < rose <= 140
    assert where == CertainSide(Side.ABOVE, 1000.0 + 60 * (rose + 1))


def test_without_estimates_a_standing_stays():
    """Nothing is known since a change of a moment ago."""
    before = CertainSide(Side.BELOW, 5.0)
    assert certain_side(before, Line(0.5), lambda _: (), 9.0) is before


def pod():
    return Server(thresholds={"min_drafts_per_second": 0})


def page(server, rate, *, minutes, requests=30, drafts=0, accepted=0.0):
    """So many requests a minute, of one draft each; returns what the page has counted."""
    for _ in range(round(minutes * 2)):
        drafts += requests // 2
        accepted += requests // 2 * 3 * rate
        server.poll(snap(drafts=drafts, accepted=accepted), seconds=POLL)
    return {"drafts": drafts, "accepted": accepted}


def test_a_pod_without_the_plug_in_is_judged_by_its_page():
    """The error comes from the differences of five minutes."""
    server = pod()
    page(server, 0.42, minutes=40, requests=30)
    judged = server.model().judgement

    assert judged.verdict is Verdict.NET_NEGATIVE
    assert judged.is_low
    assert server.engines()[snap().key].judgement.verdict is Verdict.NET_NEGATIVE


def test_after_a_start_of_the_sidecar_nothing_is_said_until_it_is_certain():
    """Then the alert that fires stays: a 0 would end it."""
    server = pod()
    counted = {"drafts": 900_000, "accepted": 900_000 * 3 * 0.6}
    seen = []
    for _ in range(40):
        counted = page(server, 0.42, minutes=0.5, requests=60, **counted)
        seen.append(server.model().judgement.is_low)
    first = seen.index(True)

    assert set(seen[:first]) == {None}
    assert first <= 20  # ten minutes
    assert set(seen[first:]) == {True}


def test_another_server_at_the_address_is_judged_by_its_own_requests():
    """What was certain of the one before is not of this one."""
    server = pod()
    page(server, 0.42, minutes=40)
    assert server.model().judgement.verdict is Verdict.NET_NEGATIVE
    drafts = 9_000_000
    for _ in range(3):
        drafts += 20
        other = snap(drafts=drafts, accepted=drafts * 3 * 0.6)
        server.poll(other, servers={"another"}, start=0.5, seconds=POLL)

    judged = server.model().judgement
    assert judged.acceptance == pytest.approx(0.6)
    assert (judged.verdict, judged.is_low) == (Verdict.INSUFFICIENT_DATA, None)


def test_a_standing_is_forgotten_with_all_that_it_was_based_on():
    """Else a model whose past begins again would keep an old verdict."""
    before = judge(evidence(0.3), Thresholds())
    assert before.is_low
    empty = PastWatch()
    empty.mark(1.0)
    forgotten = replace(evidence(0.4), past=empty.past)
    again = judge(forgotten, Thresholds(), before=before)

    assert (again.verdict, again.is_low) == (Verdict.INSUFFICIENT_DATA, None)


def test_traffic_that_ended_long_ago_leaves_what_is_assumed():
    """What is left of its sums becomes smaller with each block, and their squares would be 0."""
    watch = SpreadWatch()
    watch.finished(Sums.of([TOKENS] * 50, [40, 50] * 25))
    for _ in range(40_000):  # more than four months without requests
        watch.block(0.0, None)
    assert watch.spread == SpreadWatch().spread
