"""A vLLM with nothing to do is asked for a token, and one that does not answer it hangs."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from sidecar.analysis.engine.health import HealthWatch
from sidecar.analysis.engine.probes import Probes
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.probe import ProbeOutcome, ProbeTarget
from sidecar.settings.groups import EngineHealth, Probe
from tests.analysis.analysis_tools import Server, snap, vitals

KEY = EngineKey("m", "0")
OTHER = EngineKey("m", "1")
INTERVAL = 60
STALLED_AFTER = 120


def idle(key=KEY, **changes):
    """An engine without requests, of which nothing has moved."""
    return vitals(key, **{"running": 0} | changes)


class Idle:
    """Polls each second, sends what is due, and has the watch take in both as the state does.

    ``answers``: whether requests are answered, within the second in which they are sent.
    """

    def __init__(self, *, interval=INTERVAL, answers=True, says_paused=False):
        self.probes = Probes(Probe(interval=interval))
        self.watch = HealthWatch(EngineHealth(stalled_after=STALLED_AFTER))
        self.answers = answers
        self.says_paused = says_paused
        self.at = 1000.0
        self.moved = Counter()
        self.sent = []  # when, and to whom
        self.timeout = 600
        self.out_since = None

    def __call__(self, seconds, *, engines=(KEY,), moves=False, restarted=False, **more):
        """The worst that the health was: the ailing of all polls."""
        ailing = []
        for _ in range(seconds):
            self.at += 1
            self.moved.update(engines if moves else ())
            present = [idle(key, moving=(self.moved[key],), **more) for key in engines]
            self._poll(present, restarted=restarted)
            restarted = False
            ailing += self.report.ailing
            self._probe()
        return ailing

    def _poll(self, present, *, restarted=False, is_whole=True):
        self.probes.polled(self.at, present, is_whole=is_whole, has_restarted=restarted)
        probed = [replace(one, is_probed=self.probes.awaits(one.key)) for one in present]
        self.watch.polled(self.at, 1, probed, has_restarted=restarted)
        if self.watch.suspects_stall:
            self.watch.answered(self.at, is_paused=self.says_paused)

    def _probe(self):
        if self.out_since is not None and self.at - self.out_since >= self.timeout:
            self.end(ProbeOutcome.UNANSWERED)
            return  # the next look is a second later

        target = self.probes.due(self.at)
        if target is None:
            return
        self.sent.append((self.at, target))
        self.probes.sent(self.at)
        self.out_since = self.at
        if self.answers:
            self.moved[EngineKey("m", target.rank or "0")] += 1
            self.end(ProbeOutcome.ANSWERED)

    def end(self, outcome, seconds=0.04):
        self.out_since = None
        return self.probes.ended(outcome, seconds)

    @property
    def report(self):
        return self.watch.report(is_fresh=True)


def test_nothing_is_sent_unless_it_is_switched_on():
    vllm = Idle(interval=None)
    vllm(3600)

    assert not vllm.sent
    assert not vllm.probes.report.outcomes


def test_an_idle_vllm_is_asked_once_an_interval_and_is_known_to_be_well():
    """Without a probe its health is unknown: its page looks the same if it hangs."""
    vllm = Idle()
    assert not vllm(600)

    times = [at for at, _ in vllm.sent]
    assert len(times) == 9
    assert min(after - before for before, after in pairwise(times)) >= INTERVAL
    assert vllm.report.ailments == {(*KEY, "stalled"): False}
    assert vllm.probes.report.is_answered is True
    assert vllm.probes.report.seconds == 0.04
    assert vllm.probes.report.outcomes["answered"] == 9


@pytest.mark.parametrize(
    "state",
    [
        {"running": 1, "moves": True},
        {"moves": True},
        {"running": 1},
        {"waiting": 1},
        {"is_awake": False},
        {"is_told": False},
    ],
    ids=["busy", "works", "runs", "waits", "asleep", "several_processes"],
)
def test_a_vllm_that_works_sleeps_or_cannot_be_told_is_not_asked(state):
    """What moves is known to work; the probe is a request more for what is busy."""
    vllm = Idle()
    vllm(3600, **state)

    assert not vllm.sent


def test_a_vllm_whose_page_does_not_answer_is_not_asked():
    """While vLLM loads, nobody knows what it does."""
    vllm = Idle()
    vllm(INTERVAL)
    vllm.at += INTERVAL
    vllm.probes.missed()
    assert vllm.probes.due(vllm.at) is None

    vllm._poll([idle()])
    assert vllm.probes.due(vllm.at) is not None


def test_a_page_with_engines_that_are_not_told_apart_is_not_asked():
    """Past ``limits.engines`` nobody knows what one of them does."""
    vllm = Idle()
    for _ in range(3600):
        vllm.at += 1
        vllm._poll([idle()], is_whole=False)
        assert vllm.probes.due(vllm.at) is None


def test_a_failed_poll_does_not_hide_a_hang():
    """It does not answer for a moment, and the engine still owes its answer."""
    vllm = Idle(answers=False)
    assert vllm(INTERVAL + STALLED_AFTER + 5)

    for _ in range(700):
        vllm.probes.missed()
        assert vllm(1)


def test_an_engine_that_hangs_while_idle_is_stalled_once_it_owes_an_answer_for_long():
    """Found within an interval and the time of a stall, and for as long as it hangs."""
    vllm = Idle()
    vllm(300)
    hung_at = vllm.at
    vllm.answers = False

    assert not vllm(STALLED_AFTER)
    (first, *_) = vllm(INTERVAL + 2)
    assert (first.key, first.ailment, first.is_probed) == (KEY, "stalled", True)
    assert first.since - hung_at <= INTERVAL + 1
    assert vllm.report.asks_for_restart
    assert vllm.probes.report.is_answered is None  # one is out

    # Also between one request that has timed out and the next.
    assert len(vllm(3000)) == 3000
    assert vllm.probes.report.outcomes["unanswered"] >= 4


def test_it_works_again_with_the_answer_that_it_owes():
    vllm = Idle(answers=False)
    assert vllm(INTERVAL + STALLED_AFTER + 5)

    vllm.moved[KEY] += 1
    assert vllm.end(ProbeOutcome.ANSWERED) is ProbeOutcome.ANSWERED
    assert not vllm(1)
    assert vllm.report.ailments == {(*KEY, "stalled"): False}
    assert vllm.probes.report.is_answered is True


def test_an_engine_that_never_had_a_token_may_compile_kernels():
    vllm = Idle(answers=False)

    assert not vllm(INTERVAL + 299, has_generated=False)
    assert vllm(5, has_generated=False)


def test_a_paused_vllm_is_not_stalled():
    """It was paused after the request was sent."""
    vllm = Idle(answers=False, says_paused=True)

    assert not vllm(3600)


def test_a_vllm_that_falls_asleep_is_not_stalled():
    vllm = Idle(answers=False)
    vllm(INTERVAL + 60)

    assert vllm.sent
    assert not vllm(3600, is_awake=False)


@pytest.mark.parametrize("state", [{"running": 8}, {"waiting": 5}, {}], ids=str)
def test_a_saturated_vllm_is_never_ill(state):
    """Other requests came while the probe waited: it is late, and no failure."""
    vllm = Idle(answers=False)
    vllm(INTERVAL + 2)
    assert vllm.out_since is not None

    assert not vllm(900, moves=True, **state)
    assert vllm.probes.report.is_answered is None
    assert vllm.probes.report.outcomes["overtaken"] == 1
    assert vllm.probes.report.outcomes["unanswered"] == 0


def test_requests_that_a_hung_engine_gets_change_nothing():
    """Its page still says that none run, however many wait."""
    vllm = Idle(answers=False)

    assert vllm(INTERVAL + STALLED_AFTER + 5)


@pytest.mark.parametrize("outcome", [ProbeOutcome.REFUSED, ProbeOutcome.UNREACHABLE])
def test_a_refusal_is_a_failure_and_no_hang(outcome):
    """A wrong key says nothing of the engine."""
    vllm = Idle(answers=False)
    for _ in range(30):
        assert not vllm(INTERVAL + 1)
        vllm.end(outcome)

    assert len(vllm.sent) == 30
    assert vllm.probes.report.is_answered is False
    assert vllm.probes.report.outcomes[outcome] == 30


def until_unanswered(vllm):
    """Lets a request time out; the next one is not sent yet."""
    while not vllm.probes.report.outcomes["unanswered"]:
        vllm(1)


def test_a_restart_ends_what_an_engine_owes():
    """The new one has got no request: it is idle, whatever the old one owed."""
    vllm = Idle(interval=1800, answers=False)
    until_unanswered(vllm)
    assert vllm.report.asks_for_restart

    assert not vllm(1799, restarted=True)


def test_an_engine_that_went_on_after_a_request_timed_out_is_asked_again_at_once():
    """Nothing moved for it, as the request was withdrawn, and the interval may be long."""
    vllm = Idle(interval=1800, answers=False)
    until_unanswered(vllm)

    vllm.answers = True
    vllm(1)
    assert not vllm(600)


def test_a_pause_explains_a_request_that_was_not_answered():
    vllm = Idle(interval=1800, answers=False)
    until_unanswered(vllm)
    vllm.probes.put_off(vllm.at)

    assert not vllm(1799)


def test_each_idle_rank_is_asked_in_turn():
    """By vLLM's own header; one that hangs is asked again until it answers."""
    vllm = Idle()
    vllm(10 * INTERVAL, engines=(KEY, OTHER))

    ranks = [target.rank for _, target in vllm.sent]
    assert ranks[:4] in (["0", "1", "0", "1"], ["1", "0", "1", "0"])
    assert vllm.sent[0][1] == ProbeTarget("m", ranks[0])


def test_a_rank_that_hangs_is_named_while_no_other_has_work():
    """With other work the request may be on its way to another engine."""
    vllm = Idle(answers=False)
    ailing = vllm(INTERVAL + STALLED_AFTER + 5, engines=(KEY, OTHER))
    assert {one.key for one in ailing} == {KEY}

    vllm.at += 1
    vllm._poll([idle(), idle(OTHER, running=1, moving=(5,))])
    assert not vllm.report.ailing


def test_a_vllm_that_was_put_off_is_asked_an_interval_later():
    vllm = Idle()
    vllm(INTERVAL)
    vllm.at += 1
    vllm._poll([idle()])
    assert vllm.probes.due(vllm.at) is not None
    vllm.probes.put_off(vllm.at)

    vllm(INTERVAL - 1)
    assert not vllm.sent
    vllm(1)
    assert len(vllm.sent) == 1


def test_the_report_says_that_an_idle_engine_hangs():
    """From a page to the answer: requests that run are none."""
    server = Server(probe=Probe(interval=INTERVAL))
    quiet = snap(drafts=5, usage=0.0)
    gauges = dict.fromkeys(quiet.gauges, 0.0)
    quiet = replace(quiet, gauges=gauges)
    for _ in range(INTERVAL + 2):
        server.poll(quiet)
    assert server.state.probes.due(server.at) == ProbeTarget("m", None)

    server.state.probes.sent(server.at)
    for _ in range(400):
        report = server.poll(quiet)
        if server.state.health.suspects_stall:
            server.state.health.answered(server.at, is_paused=False)

    assert report.health.asks_for_restart
    assert report.health.stalled[0].is_probed
    assert report.probe.is_answered is None
