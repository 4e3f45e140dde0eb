"""What plug-ins report: totals that add up and go on, states, and which lives count.

All of it takes bounded memory.
"""

import pickle

import pytest

from sidecar.analysis.split.life import MOST_CELLS
from sidecar.analysis.split.lives import MOST_WAITING_BYTES
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.restarts import WAITED
from sidecar.requests.keys import Table
from sidecar.requests.messages import HelloState, ReportPart, Unreadable
from sidecar.requests.tally import NO_REQUESTS, Outcome
from tests.analysis.analysis_tools import EAGLE, PluginEnd, Server, finished, snap

LABELS = ("0", "0-0.3", "0.3-0.5", "0.5-0.7", "0.7-1", "1+")
SEVERAL = NoSplit(NoSplitReason.SEVERAL_SENDERS, "0")
HALF = NoSplit(NoSplitReason.COUNTS_OTHERWISE, "0", ratio=pytest.approx(0.5, abs=0.05))


@pytest.fixture
def server():
    server = Server(thresholds={"min_requests": 1})
    server.poll(snap(drafts=0))
    return server


def confirm(server, *plugins, **options):
    """Each of the ``plugins`` reports, and vLLM, which has counted the same, is polled."""
    for plugin in plugins:
        plugin.tick()
    return server.poll(*(plugin.counted() for plugin in plugins), **options)


def drafts(server, label="0"):
    return server.temperature(label).tally.drafts


def withheld(server):
    """Why there is no split, of which then nothing is shown."""
    model = server.model()
    assert (model.temperatures, model.groups, model.acceptance_p10) == ((), (), None)
    return model.no_split


def coverage(server):
    return server.engines()[EngineKey("m", "0")].coverage


def test_a_late_page_of_the_last_process_does_not_end_a_life_of_the_next(server):
    """The new plug-in may be heard before the page shows that vLLM restarted."""
    old = PluginEnd(server)
    confirm(server, old.serve(drafts=20))
    process_start = server.at
    new = PluginEnd(server, 2).tick()
    old.close()
    server.poll(old.counted())  # read before vLLM restarted
    confirm(server, new.serve(drafts=5), start=process_start)
    assert drafts(server) == 5


def test_totals_begin_at_0_for_every_temperature_and_grow_while_requests_run(server):
    """Drafts count before their request has finished, and requests once it has."""
    plugin = PluginEnd(server)
    confirm(server, plugin)
    tallies = {row.temperature: row.tally for row in server.model().temperatures}
    assert tallies == dict.fromkeys(LABELS, NO_REQUESTS)
    confirm(server, plugin.serve(80, requests=0, drafts=7, accepted=9))
    hot = server.temperature("0.7-1")
    assert (
        hot.tally.drafts,
        hot.tally.draft_tokens,
        hot.tally.accepted_tokens,
        hot.tally.requests,
    ) == (7, 21, 9, 0)
    assert (hot.tally.drafted_at, hot.tally.accepted_at) == ((7, 7, 7), (7, 2, 0))
    assert hot.window.rate == pytest.approx(9 / 21)
    confirm(server, plugin.serve(80, requests=3, drafts=0, accepted=0))
    outcomes = server.temperature("0.7-1").tally.by_outcome
    assert outcomes == dict.fromkeys(Outcome, 0) | {Outcome.STOPPED: 3}


def test_drafts_from_before_this_sidecar_are_in_no_window_however_slowly_it_polls(server):
    """They are in the totals, which are since the engine started."""
    plugin = (
        PluginEnd(server, started=server.at - 1e6)
        .serve(drafts=1000, accepted=300)
        .serve(80, drafts=50)
    )
    plugin.tick()
    plugin.serve(drafts=10, accepted=25).tick(only=0)
    plugin.serve(29, drafts=400).tick(only=29)
    plugin.serve(29, drafts=4, accepted=4).tick(only=29)
    server.poll(plugin.counted(), seconds=15.0)
    cold, cool, hot = (server.temperature(label) for label in ("0", "0-0.3", "0.7-1"))
    assert (cold.tally.drafts, cool.tally.drafts, hot.tally.drafts) == (1010, 404, 50)
    assert (cold.window.drafts, cool.window.drafts, hot.window.drafts) == (10, 404, 0)
    assert cold.window.rate == pytest.approx(25 / 30)
    plugin.serve(drafts=10, accepted=25).tick(only=0)
    server.poll(plugin.counted())
    assert (drafts(server), server.temperature("0").window.drafts) == (1020, 20)


def test_totals_start_again_at_0_when_vllm_does_and_windows_go_on(server):
    """As `rate()` expects of a counter; the window spans the restart."""
    old = PluginEnd(server).serve(drafts=100)
    confirm(server, old)
    old.close()
    server.fail()
    new = PluginEnd(server, 2)
    assert drafts(server) == 100, "while vLLM is down, the last values stay"
    for total in (3, 6):
        confirm(server, new.serve(drafts=3), start=2.0)
        assert drafts(server) == total
    assert server.temperature("0").window.drafts == 106


@pytest.mark.parametrize("process", [1.0, None])
def test_the_drafts_of_an_engine_that_leaves_or_restarts_alone_stay_in_the_sum(server, process):
    """With ``process``, vLLM's counter of the engine goes on, too.

    The page of several API servers shows no process.
    """
    first, second = PluginEnd(server, 1), PluginEnd(server, 2, engine=1)
    confirm(server, first.serve(drafts=500), second.serve(drafts=70), start=process)
    assert drafts(server) == 570
    second.close()
    confirm(server, first.serve(drafts=5), start=process)
    assert drafts(server) == 575
    new = PluginEnd(server, 3, engine=1)
    for polls, total in enumerate((4, 8, 12, 16)):
        first.serve(drafts=1).tick()
        new.serve(drafts=4).tick()
        server.poll(
            first.counted(),
            new.counted() if process is None else snap("1", 70 + total),
            start=process,
        )
        if process is None and polls < WAITED:  # that its counters fell may mean another server
            continue
        assert drafts(server) == first.total.drafts + 70 + total
    assert server.drafts() == {"0": 509, "1": 16 if process is None else 86}


def test_after_a_restart_of_the_sidecar_the_split_appears_whole(server):
    """Not while an engine that has drafted has not reported.

    Prometheus would take the rest for growth.
    """
    first = PluginEnd(server, 1, started=10.0).serve(drafts=500).tick()
    plugin = server.poll(first.counted(), snap("1", drafts=70)).plugin
    assert (plugin.observed, plugin.expected) == (1, 2)
    assert withheld(server) == NoSplit(NoSplitReason.NOT_REPORTED, "1")
    second = PluginEnd(server, 2, started=10.0, engine=1).serve(drafts=70)
    server.poll(first.counted(), second.counted())
    assert withheld(server) == NoSplit(NoSplitReason.FIRST_REPORT, "1")
    plugin = confirm(server, first, second).plugin
    assert (plugin.observed, plugin.expected, drafts(server)) == (2, 2, 570)
    engines = server.engines().values()
    known = [(engine.coverage, engine.speculation.num_speculative_tokens) for engine in engines]
    assert known == [(1.0, 3)] * 2


def test_a_report_counts_once_it_is_whole(server):
    """Parts without the end of their report change nothing."""
    plugin = PluginEnd(server).serve(drafts=3)
    confirm(server, plugin)
    plugin.send(ReportPart(cells=tuple(PluginEnd(server, 9, of="another").serve().cells.items())))
    server.poll(plugin.counted())
    assert drafts(server) == 3
    confirm(server, plugin.serve(drafts=6))
    assert drafts(server) == 9


def test_an_engine_that_is_crowded_off_counts_once_and_is_not_forgotten(server):
    """A flood of connections of eight seconds, in which it connects again and again."""
    plugin = PluginEnd(server).serve(drafts=1000)
    confirm(server, plugin)
    number = 2
    for _ in range(40):
        plugin.close()
        for _ in range(32):
            number += 1
            PluginEnd(server, number).close()
        assert drafts(server) == plugin.total.drafts
        plugin.connection = number = number + 1
        plugin.hello()
        confirm(server, plugin.serve(drafts=1))
    assert (drafts(server), server.temperature("0").window.drafts, coverage(server)) == (
        1040,
        1040,
        1.0,
    )


@pytest.mark.parametrize("was_away", [False, True])
def test_a_split_that_does_not_add_up_is_withheld_until_vllm_restarts(server, was_away):
    """Also where the plug-in was away when vLLM restarted, and is compared again."""
    plugin = PluginEnd(server)
    if was_away:
        plugin.close()
        server.poll(snap(drafts=0), start=2.0)
        plugin.hello()
    process = 2.0 if was_away else 1.0
    for total in range(20, 1220, 20):
        plugin.serve(drafts=10).tick()
        server.poll(snap(drafts=total), start=process)
    assert withheld(server) == HALF
    assert coverage(server) == HALF.ratio
    engine = server.engines()[EngineKey("m", "0")]
    assert (engine.speculation, engine.said) == (None, EAGLE), "shown, but not judged by"
    assert engine.vllm is None
    assert server.model().judgement.is_known
    plugin.close()
    server.poll(snap(drafts=1200), start=process)
    assert withheld(server) == HALF
    PluginEnd(server, 2)
    server.poll(snap(drafts=0), start=3.0)
    assert drafts(server) == 0


def test_two_plugins_that_are_one_engine_withhold_the_split_while_both_are_connected(server):
    """Early data-parallel engines may all have the rank 0."""
    first, second = PluginEnd(server, 1), PluginEnd(server, 2)
    for count in range(1, 120):
        first.serve(drafts=10).tick()
        second.serve(drafts=10).tick()
        server.poll(snap("0", 10 * count), snap("1", 10 * count))
    assert (withheld(server), coverage(server)) == (SEVERAL, 0)
    first.close()
    second.close()
    confirm(server, PluginEnd(server, 3).serve(drafts=3), start=2.0)
    assert (drafts(server), coverage(server), server.temperature("0").window.drafts) == (3, 1, 3)


def test_a_number_that_has_fallen_ends_the_trust_in_a_life_for_good(server):
    """Later numbers that are right again do not restore it. It covers nothing."""
    plugin = PluginEnd(server).serve(drafts=10)
    confirm(server, plugin)
    assert (drafts(server), coverage(server)) == (10, 1)
    cells, plugin.cells = plugin.cells, {}
    plugin.serve(drafts=4).tick()
    plugin.cells = cells
    confirm(server, plugin)
    assert withheld(server) == NoSplit(NoSplitReason.CONTRADICTS_ITSELF, "0")
    assert coverage(server) == 0


def test_without_vllm_s_counters_and_an_id_nothing_tells_whose_a_plugin_is():
    """There is no coverage either: it is unknown, not 0."""
    server = Server(server=None)
    PluginEnd(server).serve(drafts=10).tick()
    server.poll(snap(counters={}))
    assert withheld(server) == NoSplit(NoSplitReason.NOT_COMPARED, "0")
    assert coverage(server) is None


def test_engines_that_are_not_on_the_page_are_refused_and_counted(server):
    """They have been heard, but count as neither observed nor expected."""
    for stranger in (PluginEnd(server, 1, engine=5), PluginEnd(server, 2, model="another")):
        stranger.serve(drafts=10).tick()
        stranger.finish()
    plugin = server.poll(snap(drafts=0)).plugin
    assert (plugin.dropped["other_engine"], plugin.heard, plugin.observed, plugin.expected) == (
        4,
        True,
        0,
        1,
    )
    assert withheld(server) == NoSplit(NoSplitReason.NOT_CONNECTED)


@pytest.mark.parametrize(
    ("state", "expected", "no_split"),
    [
        (
            HelloState.REFUSED,
            PluginState.REFUSED,
            NoSplit(NoSplitReason.REFUSED, "0", "reason", "0.32.0"),
        ),
        (HelloState.DISABLED, PluginState.DISABLED, NoSplit(NoSplitReason.DISABLED, "0", "reason")),
        (HelloState.OBSERVING, PluginState.IDLE, NoSplit(NoSplitReason.FIRST_REPORT, "0")),
    ],
)
def test_a_plugin_that_has_observed_nothing_makes_no_split_of_zeros(
    server, state, expected, no_split
):
    """Each state has a reason of its own, with what the plug-in gave as its own."""
    PluginEnd(server, state=state, reason="reason")
    plugin = server.poll(snap(drafts=10)).plugin
    assert plugin.state is expected
    assert [(engine.state, engine.reason) for engine in plugin.engines] == [(expected, "reason")]
    assert withheld(server) == no_split


def test_a_plugin_that_is_gone_is_told_from_one_that_never_connected(server):
    """The one needs a restart, the other an installation."""
    plugin = server.report(problem="Permission denied").plugin
    assert (plugin.state, plugin.heard, plugin.problem) == (
        PluginState.NOT_CONNECTED,
        False,
        "Permission denied",
    )
    assert withheld(server) == NoSplit(NoSplitReason.NOT_CONNECTED)
    end = PluginEnd(server).serve()
    assert confirm(server, end).plugin.state is PluginState.OBSERVING
    end.close()
    plugin = server.poll(end.counted()).plugin
    assert (plugin.state, plugin.heard, plugin.engines) == (PluginState.NOT_CONNECTED, True, ())
    assert drafts(server) == 10  # what was counted stays


def test_another_format_is_named_until_its_sender_leaves(server):
    """Its version says which of both sides to update."""
    server.state.plugin.receive(1, Unreadable(2))
    plugin = server.poll(snap()).plugin
    assert (plugin.state, plugin.unreadable_format, plugin.heard) == (
        PluginState.OTHER_FORMAT,
        2,
        True,
    )
    server.state.plugin.receive(1, None)
    assert server.poll(snap()).plugin.state is PluginState.NOT_CONNECTED


def test_a_plugin_that_disabled_itself_has_no_split_until_vllm_restarts(server):
    """Its totals stand still from then on, also after it has lost its connection."""
    plugin, disabled = PluginEnd(server), NoSplit(NoSplitReason.DISABLED, "0", "KeyError")
    confirm(server, plugin.serve(drafts=50))
    assert coverage(server) == 1.0
    plugin.hello(state=HelloState.DISABLED, reason="KeyError")
    assert server.poll(snap(drafts=51)).plugin.state is PluginState.DISABLED
    assert (withheld(server), coverage(server)) == (disabled, None)
    plugin.close()  # as the one silent longest, which gives way to another connection
    server.poll(snap(drafts=70))
    assert withheld(server) == disabled
    confirm(server, PluginEnd(server, 2).serve(drafts=3), start=2.0)
    assert (server.model().no_split, drafts(server)) == (None, 3)


def test_a_plugin_that_is_away_while_vllm_drafts_loses_its_split_until_it_is_back(server):
    """Totals heal: once it is back, nothing that it counted meanwhile is missing."""
    plugin = PluginEnd(server)
    confirm(server, plugin.serve(drafts=50))
    plugin.close()
    for _ in range(60):
        server.poll(snap(drafts=50))
    assert (drafts(server), coverage(server)) == (50, 1.0)
    PluginEnd(server, 2).close()  # of the same name, and counts nothing
    for second in range(40):
        server.poll(snap(drafts=60 + 10 * second))
    assert coverage(server) < 0.2
    assert withheld(server) == NoSplit(NoSplitReason.SILENT, "0")
    plugin.hello()
    confirm(server, plugin.serve(drafts=400))
    assert (drafts(server), coverage(server)) == (450, 1.0)


@pytest.mark.parametrize("next_vllm", ["without", "refused", "speculates no more"])
def test_the_drafts_of_an_earlier_vllm_are_neither_held_against_the_next_nor_shown(
    server, next_vllm
):
    """Whether the next one has no plug-in, refuses it, or no longer speculates."""
    plugin, reason = PluginEnd(server), NoSplitReason.RESTARTED_WITHOUT
    confirm(server, plugin.serve(drafts=50))
    plugin.close()
    server.poll(plugin.counted())
    assert drafts(server) == 50
    refused = None
    if next_vllm == "refused":
        refused = PluginEnd(server, 2, state=HelloState.REFUSED, reason="no method _free_request")
        reason = NoSplitReason.REFUSED
    for second in range(40):
        counters = {"counters": {}} if next_vllm == "speculates no more" else {}
        server.poll(snap(drafts=second, **counters), start=2.0)
        assert withheld(server).code is reason
    assert coverage(server) is None
    if refused is not None:
        refused.close()
    confirm(server, PluginEnd(server, 3).serve(drafts=40), start=2.0)
    assert drafts(server) == 40


def test_lost_requests_count_once_and_those_that_an_earlier_sidecar_missed_do_not(server):
    """The plug-in sends their total, of which only the growth is new."""
    plugin = PluginEnd(server, started=10.0)
    for lost, expected in ((7, 0), (9, 2), (9, 2)):
        plugin.tick(lost=lost)
        assert server.report().plugin.dropped["lost"] == expected


UNDRAFTED = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


@pytest.mark.parametrize("state", [HelloState.REFUSED, HelloState.DISABLED])
def test_one_sender_leaves_room_for_the_finished_requests_of_another(server, state):
    """One that says that it observes nothing, or is never confirmed by vLLM, takes no more room."""
    greedy = [PluginEnd(server, 1, state=state), PluginEnd(server, 2).serve(drafts=10**6)]
    for plugin in greedy:
        for _ in range(12_000 // 60):
            plugin.tick(finished=[finished(**UNDRAFTED)] * 60)
    honest = PluginEnd(server, 3)
    for _ in range(100):
        honest.finish()
    for plugin in greedy:
        plugin.close()
    server.poll(honest.counted())
    assert server.temperature("0").ttft.count == 100


@pytest.mark.slow
def test_finished_requests_without_end_wait_in_bounded_memory_whoever_sends_them(server):
    """What does not fit is counted as dropped."""
    engines = [PluginEnd(server, number) for number in range(1, 11)]
    for _ in range(1500):
        for engine in engines:
            engine.finish(adapter="a" * 64)

    waiting = sum(life.waiting_size for life in server.state.plugin._lives.values())
    assert 0.9 * MOST_WAITING_BYTES < waiting <= MOST_WAITING_BYTES
    assert server.poll(snap(drafts=0)).plugin.events == 15_000
    assert server.report().plugin.dropped["overflow"] > 5000
    server.poll(engines[0].counted())
    engines[0].finish()
    server.poll(engines[0].counted())


@pytest.mark.slow
def test_finished_requests_that_wait_for_a_page_without_their_engine_take_no_room_after_it():
    """Those of the engine on the page are taken in again at once."""
    server = Server()
    stranger = PluginEnd(server, 1, engine=5)
    for _ in range(12_000):
        stranger.finish(**UNDRAFTED)
    server.fail()
    plugin = PluginEnd(server, 2)
    server.poll(snap(drafts=0))
    plugin.finish()
    assert server.poll(plugin.counted()).plugin.dropped["other_engine"] > 5000
    assert server.temperature("0").ttft.count == 1


def test_unfinished_reports_of_dead_lives_take_no_room(server):
    """Each sent 200 finished requests of a report that never ended."""
    for number in range(60):
        dead = PluginEnd(server, number, of="another")
        dead.send(ReportPart(finished=(finished(**UNDRAFTED),) * 200))
        dead.close()
    server.poll(snap(drafts=0))
    alive = PluginEnd(server, 100)
    server.poll(snap(drafts=0))
    alive.finish()
    assert server.poll(alive.counted()).plugin.dropped["unconfirmed"] >= 8000
    assert server.temperature("0").ttft.count == 1


def test_rows_of_steps_of_lives_that_left_take_no_room(server):
    """They filled it: after some restarts of an engine core, the rows of the next had none."""
    steps = [(number, {"steps": 1, "decodes": number}) for number in range(1, 2001)]
    for number in range(40):
        core = PluginEnd(server, number).serve(drafts=1).tick()
        server.poll(snap(drafts=number + 1))
        core.tick(steps=steps).close()
    assert (drafts(server), server.report().plugin.dropped["overflow"]) == (40, 0)


def test_steps_that_a_life_sends_again_after_it_was_away_are_no_growth(server):
    def told(number):
        """At a load of two, of prefill alone, and at a load that the plug-in had only before."""
        return [
            (2, {"steps": number, "tokens": 3 * number}),
            (0, {"steps": 2 * number}),
            (9, {"steps": 5, "tokens": 5}),
        ]

    plugin = PluginEnd(server).serve().tick(steps=told(10))
    server.poll(plugin.counted())
    plugin.close()
    server.poll(plugin.counted())
    plugin.connection = 2
    plugin.hello()
    plugin.serve().tick(steps=told(12))
    server.poll(plugin.counted())
    [life] = server.state.plugin.view.lives
    assert (life.steps.decoding.steps, life.steps.decoding.tokens) == (2, 6)
    assert life.steps.prefilling.steps == 4

    plugin.hello(state=HelloState.OBSERVING)  # on the same connection, only what has changed
    plugin.serve().tick(steps=told(13)[:1])
    server.poll(plugin.counted())
    [life] = server.state.plugin.view.lives
    assert (life.steps.decoding.steps, life.steps.decoding.tokens) == (1, 3)


@pytest.mark.slow
def test_keys_and_lives_without_end_cost_bounded_memory(server):
    """A life has so many cells, and old lives give way to new ones."""
    plugin = PluginEnd(server)
    for number in range(MOST_CELLS + 500):
        plugin.serve(number % 200, drafts=1, table=Table.ADAPTER, key=f"a{number}")
    plugin.tick()
    assert server.report().plugin.dropped["overflow"] == 500
    sizes = []
    for life in range(1000):
        plugin.start = str(life)
        plugin.hello()
        sizes.append(len(pickle.dumps(server.state.plugin)))
    assert max(sizes[100:]) < 2 * sizes[50]


def test_engines_that_never_connect_do_not_withhold_the_split_of_the_others(server):
    """As on another node, whose plug-ins cannot reach the socket."""
    near = PluginEnd(server).serve(drafts=100)
    for far in range(1000, 1010):
        near.serve(drafts=1).tick()
        server.poll(near.counted(), snap("1", drafts=far))
    assert withheld(server) == NoSplit(NoSplitReason.NOT_REPORTED, "1")

    for far in range(1010, 1050):
        near.serve(drafts=1).tick()
        server.poll(near.counted(), snap("1", drafts=far))
    assert drafts(server) == near.total.drafts

    late = PluginEnd(server, 2, engine=1, started=10.0).serve(drafts=1050)
    for _ in range(5):
        confirm(server, near.serve(drafts=1), late.serve(drafts=1))
        assert drafts(server) == near.total.drafts, "what it had counted would look like growth"


def test_lives_that_told_nothing_give_way_to_new_ones_before_one_that_counts(server):
    """As of a flood of connections with the server's id. The oldest went, and the sum fell."""
    plugin = PluginEnd(server).serve(drafts=1000)
    confirm(server, plugin)
    plugin.close()
    for number in range(200):
        PluginEnd(server, 2 + number).close()
        if number % 30 == 0:
            server.poll(plugin.counted())
    plugin.hello()
    confirm(server, plugin.serve(drafts=1))

    assert drafts(server) == 1001
