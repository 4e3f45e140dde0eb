"""When the sidecar asks for a restart of vLLM, and when it does not."""

import pytest

from sidecar.analysis.engine.health import Ailment, HealthWatch
from sidecar.engine.engine_key import EngineKey
from sidecar.errors import NoLogStats, TimedOut, Unreachable
from sidecar.settings.groups import EngineHealth
from tests.analysis.analysis_tools import Server, snap, vitals

KEY = EngineKey("m", "0")
OTHER_RANK = EngineKey("m", "1")


class Polls:
    """Polls a watch, each second by default; each poll says whether anything has moved."""

    def __init__(self, interval=1, *, says_paused=False, **settings):
        """``says_paused`` is what vLLM answers if it is asked; None: nobody asks it."""
        self.watch = HealthWatch(EngineHealth(**settings))
        self.says_paused = says_paused
        self.interval = interval
        self.at = 1000.0
        self.moved = 0

    def __call__(self, seconds, *, moves=False, running=1, restarted=False, **more):
        for _ in range(seconds // self.interval):
            self.at += self.interval
            self.moved += moves
            self.poll(
                vitals(KEY, moving=(self.moved,), running=running, **more), restarted=restarted
            )
            restarted = False
        return self.report

    def poll(self, *engines, restarted=False):
        self.watch.polled(self.at, self.interval, engines, has_restarted=restarted)
        if self.watch.suspects_stall and self.says_paused is not None:
            self.watch.answered(self.at, is_paused=self.says_paused)

    @property
    def report(self):
        return self.watch.report(is_fresh=True)


def test_an_engine_whose_requests_stand_still_is_stalled_after_the_set_time():
    """It is stalled since the last movement, and well again once anything moves."""
    polls = Polls(stalled_after=120)
    polls(10, moves=True)
    since = polls.at

    assert not polls(119).ailing
    assert [(one.key, one.ailment, one.since) for one in polls(1).ailing] == [
        (KEY, Ailment.STALLED, since)
    ]
    assert polls.report.asks_for_restart
    assert not polls(1, moves=True).ailing
    assert polls.report.ailments == {(*KEY, Ailment.STALLED): False}


@pytest.mark.parametrize(
    "state",
    [{"running": 0}, {"is_awake": False}, {"moves": True}],
    ids=["idle", "asleep", "working"],
)
def test_an_engine_that_need_not_move_or_does_is_healthy(state):
    """An idle or sleeping engine may stand still for hours."""
    assert not Polls()(7200, **state).ailing


def test_an_engine_is_unknown_until_something_has_moved():
    """One look tells nothing of what moves."""
    polls = Polls()

    assert not polls(2).ailments
    assert polls(1, moves=True).ailments == {(*KEY, Ailment.STALLED): False}


@pytest.mark.parametrize(
    "state",
    [
        {"running": 0},
        # They may wait for a KV transfer or a decoder: vLLM calls that capacity, too.
        {"running": 0, "waiting": 40},
        {"is_awake": False},
    ],
)
def test_whether_an_engine_without_work_hangs_is_unknown(state):
    """Its page looks the same: one hung for 17 hours with no request running, and was called well.

    A probe asks for a restart only where it is known to hang.
    """
    polls = Polls(stalled_after=120)
    polls(10, moves=True)
    assert polls.report.ailments == {(*KEY, Ailment.STALLED): False}

    assert not polls(121, **state).ailments
    assert not polls.report.asks_for_restart
    assert polls(1, moves=True).ailments == {(*KEY, Ailment.STALLED): False}


def test_short_requests_between_two_polls_show_that_an_idle_looking_engine_works():
    polls = Polls(stalled_after=120)
    assert polls(300, moves=True, running=0).ailments == {(*KEY, Ailment.STALLED): False}


def test_a_page_of_several_processes_says_nothing_of_a_stall():
    """There, a gauge may keep the value of the process that last heard from the engine."""
    report = Polls()(7200, is_told=False)

    assert not report.ailing
    assert not report.ailments


def test_an_engine_that_has_generated_nothing_yet_may_compile_kernels():
    """Its first requests can take minutes on a healthy vLLM."""
    polls = Polls(stalled_after=120)

    assert not polls(299, has_generated=False).ailing
    assert polls(2, has_generated=False).ailing


def test_polls_that_are_far_apart_by_plan_see_a_stall_too():
    """vLLM's counters do not go back: what stood still at both ends stood still between them."""
    polls = Polls(interval=100, stalled_after=120)
    polls(100, moves=True)

    assert not polls(100).ailing  # now vLLM is asked whether it is paused
    assert polls(100).ailing


def test_settings_apply_from_the_next_poll_on():
    """An engine that has stood still for a while is stalled by a shorter limit at once."""
    polls = Polls(stalled_after=120)
    polls(60)
    polls.watch.apply(EngineHealth(stalled_after=30))

    assert not polls(15).ailing  # first vLLM is asked whether it is paused
    assert polls(2).ailing


def test_waking_up_starts_the_clock_anew():
    """The hours in which an engine slept or was idle are no stall."""
    polls = Polls(stalled_after=120)
    polls(3600, running=0)
    polls(3600, is_awake=False)

    assert not polls(119).ailing
    assert polls(2).ailing


def test_a_paused_engine_is_not_stalled_until_it_stands_still_after_its_resumption():
    """Requests that ``/pause`` keeps count as running; only vLLM's own answer tells."""
    polls = Polls(stalled_after=120, says_paused=True)
    for _ in range(600):
        assert not polls(1).ailing

    polls.says_paused = False
    assert not polls(29).ailing
    assert polls(150).ailing


def test_nothing_is_stalled_before_vllm_was_asked():
    """While nobody has asked whether vLLM is paused, its stillness is unknown, so healthy."""
    polls = Polls(stalled_after=120, says_paused=None)
    polls(600)

    assert polls.watch.suspects_stall
    assert not polls.report.ailing


def test_one_idle_rank_does_not_hide_or_cause_a_stall():
    """With data parallelism each engine is watched alone."""
    polls = Polls(stalled_after=120)
    for second in range(200):
        polls.at += 1
        polls.poll(vitals(KEY, moving=(second,)), vitals(OTHER_RANK, running=0))
    assert not polls.report.ailing

    for second in range(200):
        polls.at += 1
        polls.poll(vitals(KEY, moving=(second,)), vitals(OTHER_RANK))

    assert [one.key for one in polls.report.ailing] == [OTHER_RANK]
    assert not polls.report.hanging  # the model has an engine that works


def test_a_model_hangs_if_all_its_engines_on_the_page_do():
    """Not those that left it lately, and no other model's."""
    polls = Polls(stalled_after=120)
    elsewhere = EngineKey("n", "0")
    gone = EngineKey("m", "2")
    for second in range(400):
        polls.at += 1
        engines = [vitals(KEY, moving=(0,)), vitals(OTHER_RANK, moving=(0,))]
        engines += [vitals(gone, moving=(second,))] * (second < 100)
        polls.poll(*engines, vitals(elsewhere, moving=(second,)))
    assert polls.report.hanging == {"m"}

    polls.at += 1
    polls.poll(vitals(KEY, moving=(1,)), vitals(OTHER_RANK, moving=(0,)))
    assert not polls.report.hanging
    assert not polls.watch.report(is_fresh=False).hanging


def test_a_stall_is_not_concluded_from_polls_that_failed():
    """After a gap in the polls nobody knows what moved, so the clock starts anew."""
    polls = Polls(stalled_after=120)
    polls(100)
    polls.at += 61

    assert not polls(119).ailing
    assert polls(2).ailing


def test_stale_polls_say_nothing():
    """An engine whose page does not answer is unknown, and so not reported as ailing."""
    polls = Polls(stalled_after=120)
    polls(200)

    stale = polls.watch.report(is_fresh=False)
    assert not stale.ailing
    assert not stale.ailments
    assert not stale.asks_for_restart


@pytest.mark.parametrize(
    "error",
    [TimedOut("x"), Unreachable("x"), NoLogStats("x")],
    ids=["hangs", "loads", "disable_log_stats"],
)
def test_a_vllm_whose_page_tells_nothing_is_left_alone(error):
    """While it loads nothing listens yet, and with --disable-log-stats it shows no metrics."""
    server = Server()
    server.poll(snap(drafts=5))  # a request runs
    for _ in range(600):
        report = server.fail(error)

    assert not report.health.ailing
    assert not report.health.ailments


def test_a_collapse_counts_only_if_it_is_switched_on_and_lasts():
    """By default an engine that answers with a collapsed acceptance rate goes on."""
    assert not Polls()(3600, moves=True, has_collapsed=True).ailing

    polls = Polls(collapsed_after=600)
    assert not polls(600, moves=True, has_collapsed=True).ailing
    assert polls(1, moves=True, has_collapsed=True).ailing[0].ailment is Ailment.COLLAPSED
    assert not polls(1, moves=True).ailing


def test_a_crash_loop_ends_at_its_budget():
    """Two restarts in an hour that did not help are enough; an hour later it may try again."""
    polls = Polls(stalled_after=120, most_restarts_per_hour=2)
    polls(200)
    assert polls.report.asks_for_restart

    polls(200, restarted=True)
    assert polls.report.asks_for_restart

    polls(200, restarted=True)
    assert polls.report.ailing
    assert not polls.report.asks_for_restart

    polls(3600)
    assert polls.report.asks_for_restart


def test_restarts_of_a_healthy_vllm_use_up_no_budget():
    """Rollouts and crashes that nobody was asked for do not count."""
    polls = Polls(stalled_after=120, most_restarts_per_hour=1)
    for _ in range(5):
        polls(60, moves=True, restarted=True)
    polls(200)
    polls(1000, moves=True)
    polls(60, moves=True, restarted=True)  # it had stalled, and worked again

    assert polls(200).asks_for_restart
