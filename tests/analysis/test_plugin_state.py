"""What the plug-ins say: its totals put together and continued, its states, and whether it agrees with vLLM."""

import pickle

import pytest

from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.plan import EngineKey
from sidecar.requests import messages
from sidecar.requests.messages import ReportEnd, ReportPart, Table
from sidecar.requests.tally import NOTHING, Outcome, Tally
from tests.analysis.analysis_tools import PluginEnd, Server, finished, snap

REFUSED, DISABLED, CHECKING = (messages.HelloState[name] for name in ("REFUSED", "DISABLED", "CHECKING"))


@pytest.fixture
def server():
    found = Server(thresholds={"min_requests": 1})
    found.poll(snap(drafts=0))
    return found


def drafts(server, label="0"):
    return server.temperature(label).tally.drafts


def serve(server, plugin, polls, each=10, *, vllm=None, missing=0):
    """Polls, each after a tick of ``each`` drafts at temperature 0; vLLM counts the same and ``missing`` a poll."""
    total = plugin.total.drafts if vllm is None else vllm
    for _ in range(polls):
        plugin.serve(drafts=each, accepted=2 * each).tick()
        total += each + missing
        server.poll(snap(drafts=total))


def test_totals_begin_at_0_for_every_temperature_and_grow_while_requests_run(server):
    plugin = PluginEnd(server).tick()
    server.poll(snap(drafts=0))
    assert [one.temperature for one in server.model().temperatures] == [
        "0",
        "0-0.3",
        "0.3-0.5",
        "0.5-0.7",
        "0.7-1",
        "1+",
    ]
    assert all(one.tally == NOTHING for one in server.model().temperatures)
    plugin.serve(80, requests=0, drafts=7, accepted=9).tick()
    server.poll(snap(drafts=7, accepted=9))
    hot = server.temperature("0.7-1")
    assert (hot.tally.drafts, hot.tally.draft_tokens, hot.tally.accepted_tokens) == (7, 21, 9)
    assert (hot.tally.drafted_at, hot.tally.accepted_at) == ((7, 7, 7), (7, 2, 0))
    assert hot.window.rate == pytest.approx(9 / 21)
    assert hot.tally.requests == 0
    plugin.serve(80, requests=3, drafts=0, accepted=0).tick()
    server.poll(snap(drafts=7, accepted=9))
    assert server.temperature("0.7-1").tally.by_outcome == {
        Outcome.STOPPED: 3, Outcome.LENGTH: 0, Outcome.ABORTED: 0, Outcome.ERROR: 0,
    }  # fmt: skip


def test_what_came_before_this_sidecar_is_in_no_window_however_slowly_it_polls(server):
    plugin = PluginEnd(server, started=server.at - 1e6).serve(drafts=1000, accepted=300).serve(80, drafts=50)
    plugin.tick()
    plugin.serve(drafts=10, accepted=25).tick(only=0)
    plugin.serve(29, drafts=400).tick(only=29)
    plugin.serve(29, drafts=4, accepted=4).tick(only=29)
    server.poll(plugin.counted(), seconds=15.0)
    found = {label: server.temperature(label) for label in ("0", "0-0.3", "0.7-1")}
    assert [one.tally.drafts for one in found.values()] == [1010, 404, 50]
    assert [one.window.drafts for one in found.values()] == [10, 404, 0]
    assert found["0"].window.rate == pytest.approx(25 / 30)
    plugin.serve(drafts=10, accepted=25).tick(only=0)
    server.poll(plugin.counted())
    assert (drafts(server), server.temperature("0").window.drafts) == (1020, 20)


def test_totals_start_again_at_0_when_vllm_does_and_windows_go_on(server):
    old = PluginEnd(server, start="a").serve(drafts=100).tick()
    server.poll(old.counted())
    old.close()
    server.fail()
    new = PluginEnd(server, 2, start="b").serve(drafts=3).tick()
    assert drafts(server) == 100, "while vLLM is down, the last values stay"
    server.poll(new.counted(), start=2.0)
    assert drafts(server) == 3
    new.serve(drafts=4).tick()
    server.poll(new.counted(), start=2.0)
    assert drafts(server) == 7
    assert server.temperature("0").window.drafts == 107


def test_an_engine_that_outlives_its_vllm_is_no_part_of_the_next_one(server):
    """Its API server died and started again with an engine of its own; the old one never left the socket."""
    old = PluginEnd(server, start="a").serve(drafts=100).tick()
    server.poll(old.counted())
    new = PluginEnd(server, 2, start="b").serve(drafts=3).tick()
    server.poll(new.counted(), start=2.0)
    for hello_again in (False, True):
        if hello_again:
            old.hello()
        old.serve(drafts=50).finish()
        new.serve(drafts=4).tick()
        server.poll(new.counted(), start=2.0)
        assert drafts(server) == new.total.drafts
    assert server.temperature("0").window.drafts == 100 + new.total.drafts
    assert server.report().plugin.dropped["other_engine"] > 0
    assert len(server.report().plugin.engines) == 1


@pytest.mark.parametrize("process", [1.0, None])
def test_an_engine_that_restarts_alone_keeps_what_it_had_counted_in_the_sum(server, process):
    """With ``process``, vLLM's counter of the engine goes on, too; several API servers' page shows none."""
    first, second = PluginEnd(server, 1, start="a"), PluginEnd(server, 2, start="b", engine=1)
    first.serve(drafts=500).tick()
    second.serve(drafts=70).tick()
    server.poll(first.counted(), second.counted(engine="1"), start=process)
    assert drafts(server) == 570
    second.close()
    new = PluginEnd(server, 3, start="c", engine=1)
    for total in (4, 8):
        first.serve(drafts=1).tick()
        new.serve(drafts=4).tick()
        counted = new.counted(engine="1") if process is None else snap("1", drafts=70 + total)
        server.poll(first.counted(), counted, start=process)
        assert drafts(server) == first.total.drafts + 70 + total
    assert server.drafts() == {"0": 502, "1": 8 if process is None else 78}


def test_what_an_engine_that_left_had_counted_stays_in_the_sum(server):
    first, second = PluginEnd(server, 1, start="a"), PluginEnd(server, 2, start="b", engine=1)
    first.serve(drafts=500).tick()
    second.serve(drafts=70).tick()
    server.poll(first.counted(), second.counted(engine="1"))
    second.close()
    first.serve(drafts=5).tick()
    server.poll(first.counted())
    assert drafts(server) == 575


def test_after_a_restart_of_the_sidecar_the_split_appears_whole(server):
    """Not while an engine that has drafted has not reported: Prometheus would take the rest for growth."""
    first = PluginEnd(server, 1, start="a", started=10.0).serve(drafts=500).tick()
    server.poll(first.counted(), snap("1", drafts=70))
    assert server.model().temperatures == ()
    assert server.model().no_split == NoSplit(NoSplitReason.NOT_REPORTED, "1")
    second = PluginEnd(server, 2, start="b", started=10.0, engine=1).serve(drafts=70)
    server.poll(first.counted(), second.counted(engine="1"))
    assert server.model().no_split == NoSplit(NoSplitReason.NOT_COMPARED, "1")
    second.tick()
    server.poll(first.counted(), second.counted(engine="1"))
    assert drafts(server) == 570


def test_a_report_counts_once_it_is_whole(server):
    plugin = PluginEnd(server).serve(drafts=3).tick()
    server.poll(plugin.counted())
    row = messages.Row(key=0, since=0.0, counts=Tally(drafts=9, draft_tokens=27))
    plugin.send(messages.ReportPart(temperature=(row,)))
    server.poll(plugin.counted())
    assert drafts(server) == 3
    plugin.serve(drafts=6).tick()
    server.poll(plugin.counted())
    assert drafts(server) == 9


def test_an_engine_that_was_crowded_off_and_forgotten_does_not_count_twice(server):
    """A flood of connections of eight seconds, in which it connects again and again."""
    plugin = PluginEnd(server).serve(drafts=1000).tick()
    server.poll(plugin.counted())
    number = 2
    for _ in range(40):
        plugin.close()
        for _ in range(32):
            number += 1
            crowd = PluginEnd(server, number, start=f"crowd {number}")
            crowd.close()
        plugin.connection = number = number + 1
        plugin.hello()
        plugin.serve(drafts=1).tick()
        server.poll(plugin.counted())
    assert drafts(server) == 1040
    assert server.temperature("0").window.drafts == 1040
    assert server.engines()[EngineKey("m", "0")].coverage == 1.0


def test_a_plugin_that_was_away_when_vllm_restarted_is_compared_again(server):
    plugin = PluginEnd(server)
    plugin.close()
    server.poll(snap(drafts=0), start=2.0)
    plugin.hello()
    for total in range(10, 510, 10):
        plugin.serve(drafts=5).tick()
        server.poll(snap(drafts=total), start=2.0)
    (engine,) = server.engines().values()
    assert engine.coverage == pytest.approx(0.5, abs=0.1)
    assert engine.speculation is not None
    assert server.model().no_split == NoSplit(NoSplitReason.COUNTS_OTHERWISE, "0", ratio=pytest.approx(0.5, abs=0.1))


def test_engines_of_a_model_add_up(server):
    first, second = PluginEnd(server, 1, start="a"), PluginEnd(server, 2, start="b", engine=1)
    first.serve(drafts=5).tick()
    second.serve(drafts=7).tick()
    server.poll(snap("0", 5), snap("1", 7))
    assert drafts(server) == 12
    server.poll(snap("0", 5), snap("1", 7))
    assert {key.engine: engine.coverage for key, engine in server.engines().items()} == {"0": 1.0, "1": 1.0}
    assert (server.report().plugin.observed, server.report().plugin.expected) == (2, 2)
    assert [engine.speculation.num_speculative_tokens for engine in server.engines().values()] == [3, 3]


def test_a_split_that_does_not_add_up_is_withheld_with_the_reason_until_vllm_restarts(server):
    plugin = PluginEnd(server)
    serve(server, plugin, 60, 10, vllm=0, missing=10)
    model = server.model()
    assert server.engines()[EngineKey("m", "0")].coverage == pytest.approx(0.5, abs=0.02)
    assert (model.temperatures, model.groups, model.acceptance_p10) == ((), (), None)
    assert model.no_split == NoSplit(NoSplitReason.COUNTS_OTHERWISE, "0", ratio=pytest.approx(0.5, abs=0.02))
    assert model.judgement.is_known
    plugin.close()
    server.poll(snap(drafts=1200))
    assert server.model().temperatures == ()
    PluginEnd(server, 2, start="b")
    server.poll(snap(drafts=0), start=2.0)
    assert drafts(server) == 0


def test_two_that_say_they_are_the_same_engine_are_noticed(server):
    """Early data-parallel engines may all have the rank 0."""
    first, second = PluginEnd(server, 1, start="a"), PluginEnd(server, 2, start="b")
    for count in range(1, 120):
        first.serve(drafts=10).tick()
        second.serve(drafts=10).tick()
        server.poll(snap("0", 10 * count), snap("1", 10 * count))
    assert server.model().no_split == NoSplit(NoSplitReason.SEVERAL_CLAIM, "0")
    assert server.model().temperatures == ()
    assert server.engines()[EngineKey("m", "0")].coverage == 0


def test_one_that_contradicts_itself_covers_nothing(server):
    plugin = PluginEnd(server)
    serve(server, plugin, 5)
    assert server.engines()[EngineKey("m", "0")].coverage == 1
    plugin.rows[Table.OUTPUT, "free"] = Tally(drafts=1, draft_tokens=3)
    serve(server, plugin, 5)
    assert server.engines()[EngineKey("m", "0")].coverage == 0
    assert server.model().no_split == NoSplit(NoSplitReason.CONTRADICTS_ITSELF, "0")


def test_rows_that_fall_end_the_trust_although_they_sum_to_the_total(server):
    plugin = PluginEnd(server)
    plugin.serve(0, drafts=10).serve(150, drafts=10).tick()
    server.poll(plugin.counted())
    assert drafts(server) == 10
    cold, hot = plugin.rows[Table.TEMPERATURE, 0], plugin.rows[Table.TEMPERATURE, 150]
    plugin.rows |= {(Table.TEMPERATURE, 0): NOTHING, (Table.TEMPERATURE, 150): cold + hot}
    plugin.tick()
    server.poll(plugin.counted())
    assert server.model().no_split == NoSplit(NoSplitReason.CONTRADICTS_ITSELF, "0")


def test_without_vllm_s_counters_there_is_nothing_to_compare_with(server):
    plugin = PluginEnd(server)
    plugin.serve(drafts=10).tick()
    server.poll(snap(counters={}))
    assert server.engines()[EngineKey("m", "0")].coverage is None
    assert drafts(server) == 10


def test_engines_that_are_not_on_the_page_are_refused_and_counted(server):
    for stranger in (PluginEnd(server, 1, engine=5), PluginEnd(server, 2, start="b", model="another")):
        stranger.serve(drafts=10).tick()
        stranger.finish()
    report = server.poll(snap(drafts=0))
    assert report.plugin.dropped["other_engine"] == 4
    assert report.plugin.observed == 0
    assert report.models[0].temperatures == ()
    assert (report.plugin.heard, report.plugin.expected) == (True, 1)


def test_before_there_is_a_page_nothing_is_refused():
    server = Server()
    plugin = PluginEnd(server)
    plugin.finish()
    server.poll(plugin.counted())
    assert drafts(server) == 10
    assert server.temperature("0").acceptances.count == 1
    assert server.report().plugin.dropped["other_engine"] == 0


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        (REFUSED, "no method _free_request", PluginState.REFUSED),
        (CHECKING, "Custom has its own _free_request", PluginState.CHECKING),
        (DISABLED, "ValueError", PluginState.DISABLED),
        (messages.HelloState.OBSERVING, "", PluginState.IDLE),
    ],
)
def test_a_plugin_has_the_state_of_its_hello_and_is_idle_until_drafts_are_counted(server, state, reason, expected):
    PluginEnd(server, state=state, reason=reason)
    plugin = server.poll(snap()).plugin
    assert plugin.state is expected
    assert [one.state for one in plugin.engines] == [expected]
    assert plugin.engines[0].reason == reason


def test_not_heard_is_not_the_same_as_gone(server):
    never = server.report().plugin
    assert (never.state, never.heard) == (PluginState.NOT_CONNECTED, False)
    assert server.model().no_split == NoSplit(NoSplitReason.NOT_CONNECTED)
    plugin = PluginEnd(server)
    plugin.serve().tick()
    assert server.poll(snap(drafts=10)).plugin.state is PluginState.OBSERVING
    plugin.close()
    gone = server.poll(snap(drafts=10)).plugin
    assert (gone.state, gone.heard, gone.engines) == (PluginState.NOT_CONNECTED, True, ())
    assert drafts(server) == 10  # what was counted stays


def test_a_socket_that_cannot_be_opened_is_the_reason(server):
    assert server.report(problem="Permission denied").plugin.problem == "Permission denied"


def test_one_of_two_engines_observed_is_said(server):
    PluginEnd(server).serve().tick()
    plugin = server.poll(snap("0", 10), snap("1", 10)).plugin
    assert (plugin.observed, plugin.expected) == (1, 2)


def test_another_format_is_named_until_its_sender_leaves(server):
    server.state.plugin.receive(1, messages.Unreadable(2))
    plugin = server.report().plugin
    assert (plugin.state, plugin.unreadable_format, plugin.heard) == (PluginState.OTHER_FORMAT, 2, True)
    server.state.plugin.receive(1, None)
    assert server.report().plugin.state is PluginState.NOT_CONNECTED


def test_what_was_lost_is_counted_once_and_not_what_an_earlier_sidecar_missed(server):
    plugin = PluginEnd(server, started=10.0)
    plugin.tick(lost=7)
    assert server.report().plugin.dropped["lost"] == 0
    plugin.tick(lost=9)
    plugin.tick(lost=9)
    assert server.report().plugin.dropped["lost"] == 2


UNDRAFTED = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}


@pytest.mark.parametrize(
    "forged",
    [{"drafts": 10}, {"draft_tokens": 30}, {"accepted_tokens": 1}, {"outcome": Outcome.ABORTED}, {}],
)
def test_finished_requests_that_its_totals_do_not_have_end_the_trust_in_a_life(server, forged):
    """Before vLLM drafts, a liar's totals of 0 agree with vLLM's."""
    liar = PluginEnd(server, 2, start="b")
    request = finished(**UNDRAFTED | {"outcome": Outcome.STOPPED} | forged)
    end = ReportEnd(total=Tally(stopped=0 if not forged else 1), lost=0)
    liar.send(ReportPart(finished=(request,), end=end))
    server.poll(snap(drafts=0))
    report = server.report()
    assert (report.plugin.dropped["unconfirmed"], server.model().temperatures) == (1, ())


def test_a_sender_that_agreed_with_vllm_once_is_a_dispute_even_if_it_contradicts_itself_later(server):
    """As after a restart of the sidecar beside an idle engine, whose own plug-in reports late."""
    liar = PluginEnd(server, 1, start="liar").serve(drafts=5000).tick()
    server.poll(liar.counted())
    liar.tick(finished=[finished(drafts=9999, draft_tokens=29_997, accepted_tokens=19_998)])
    server.poll(liar.counted())
    honest = PluginEnd(server, 2, start="honest").serve(drafts=5010).tick()
    for _ in range(2):
        server.poll(honest.counted())
    assert server.model().temperatures == ()
    assert server.model().no_split == NoSplit(NoSplitReason.SEVERAL_CLAIM, "0")


@pytest.mark.parametrize("state", [REFUSED, CHECKING])
def test_one_sender_leaves_room_for_the_finished_requests_of_another(server, state):
    """Neither one that says that it observes nothing, nor one that vLLM's counters never confirm."""
    greedy = [PluginEnd(server, 1, start="a", state=state), PluginEnd(server, 2, start="b").serve(drafts=10**6)]
    for one in greedy:
        for _ in range(9000 // 60):
            one.tick(finished=[finished(**UNDRAFTED)] * 60)
    honest = PluginEnd(server, 3, start="c")
    for _ in range(100):
        honest.finish(**UNDRAFTED)
    server.poll(snap(drafts=0))
    assert server.temperature("0").ttft.count == 100


def test_finished_requests_without_end_wait_in_bounded_memory_whoever_sends_them(server):
    engines = [PluginEnd(server, number, start=str(number)) for number in range(1, 11)]
    for _ in range(1000):
        for one in engines:
            one.finish(**UNDRAFTED)
    assert server.report().plugin.dropped["overflow"] == 10 * (1000 - 8192 // 10)
    server.poll(snap(drafts=0))
    assert server.temperature("0").ttft.count == 10 * (8192 // 10)
    assert server.report().plugin.events == 10_000
    engines[0].finish(**UNDRAFTED)
    server.poll(snap(drafts=0))
    assert server.temperature("0").ttft.count == 10 * (8192 // 10) + 1


def test_finished_requests_that_wait_for_a_page_without_their_engine_take_no_room_after_it():
    server = Server()
    stranger = PluginEnd(server, 1, start="b", engine=5)
    for _ in range(10_000):
        stranger.finish(**UNDRAFTED)
    server.fail()
    plugin = PluginEnd(server, 2)
    server.poll(snap(drafts=0))
    plugin.finish(**UNDRAFTED)
    server.poll(snap(drafts=0))
    assert server.report().plugin.dropped["other_engine"] == 8192
    assert server.temperature("0").ttft.count == 1


def test_what_dead_lives_left_unfinished_takes_no_room(server):
    """Each sent 200 finished requests of a report that never ended."""
    for number in range(42):
        dead = PluginEnd(server, number, start=f"dead {number}")
        dead.send(ReportPart(finished=(finished(**UNDRAFTED),) * 200))
        dead.close()
    server.poll(snap(drafts=0))
    alive = PluginEnd(server, 50, start="alive")
    server.poll(snap(drafts=0))
    alive.finish(**UNDRAFTED)
    report = server.poll(snap(drafts=0))
    assert server.temperature("0").ttft.count == 1
    assert report.plugin.dropped["unconfirmed"] >= 8000


def test_keys_and_lives_without_end_cost_bounded_memory(server):
    plugin = PluginEnd(server)
    for temperature in range(1000):
        plugin.serve(temperature, drafts=1).tick(only=temperature)
    assert server.report().plugin.dropped["overflow"] == 1000 - 257
    sizes = []
    for life in range(1000):
        plugin.start = str(life)
        plugin.hello()
        sizes.append(len(pickle.dumps(server.state.plugin)))
    assert max(sizes[100:]) < 2 * sizes[50]


def test_a_plugin_that_took_itself_out_has_its_split_withheld_with_the_reason_until_vllm_restarts(server):
    plugin = PluginEnd(server)
    serve(server, plugin, 5)
    assert server.engines()[EngineKey("m", "0")].coverage == 1.0
    plugin.hello(state=DISABLED, reason="KeyError")
    disabled = NoSplit(NoSplitReason.DISABLED, "0", "KeyError")
    report = server.poll(snap(drafts=51))
    assert report.plugin.state is PluginState.DISABLED
    assert server.engines()[EngineKey("m", "0")].coverage is None
    model = server.model()
    assert (model.temperatures, model.groups, model.acceptance_p10) == ((), (), None)
    assert model.no_split == disabled
    plugin.close()  # as the one silent longest, which gives way to another connection
    server.poll(snap(drafts=70))
    assert server.model().no_split == disabled
    again = PluginEnd(server, 2, start="b")
    again.serve(drafts=3).tick()
    server.poll(snap(drafts=3), start=2.0)
    assert server.model().no_split is None
    assert drafts(server) == 3


def test_a_plugin_that_refused_from_the_start_makes_no_split_of_zeros(server):
    PluginEnd(server, state=REFUSED, reason="no method _free_request")
    server.poll(snap(drafts=10))
    assert server.model().temperatures == ()
    assert server.model().no_split == NoSplit(NoSplitReason.REFUSED, "0", "no method _free_request", "0.32.0")


def test_a_plugin_that_is_gone_while_vllm_drafts_loses_its_split_and_gets_it_back(server):
    plugin = PluginEnd(server)
    serve(server, plugin, 5)
    plugin.close()
    for _ in range(60):
        server.poll(snap(drafts=50))
    assert server.engines()[EngineKey("m", "0")].coverage == 1.0
    assert drafts(server) == 50
    PluginEnd(server, 2, start="b").close()  # of the same name, and counts nothing
    for second in range(40):
        server.poll(snap(drafts=60 + 10 * second))
    assert server.engines()[EngineKey("m", "0")].coverage < 0.2
    assert server.model().temperatures == ()
    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    plugin.hello()
    plugin.serve(drafts=400).tick()
    server.poll(snap(drafts=450))
    assert server.engines()[EngineKey("m", "0")].coverage == 1.0
    assert drafts(server) == 450


@pytest.mark.parametrize("next_vllm", ["without", "refused", "speculates no more"])
def test_what_an_earlier_vllm_s_plugin_counted_is_neither_held_against_the_next_vllm_nor_shown(server, next_vllm):
    plugin = PluginEnd(server)
    serve(server, plugin, 5)
    plugin.close()
    server.poll(snap(drafts=50))
    assert drafts(server) == 50
    if next_vllm == "refused":
        PluginEnd(server, 2, start="b", state=REFUSED, reason="no method _free_request")
    for second in range(40):
        counters = {"counters": {}} if next_vllm == "speculates no more" else {}
        server.poll(snap(drafts=second, **counters), start=2.0)
        assert server.model().temperatures == ()
    assert server.engines()[EngineKey("m", "0")].coverage is None
    reason = NoSplitReason.REFUSED if next_vllm == "refused" else NoSplitReason.RESTARTED_WITHOUT
    assert server.model().no_split.code is reason
    PluginEnd(server, 3, start="c").serve(drafts=40).tick()
    server.poll(snap(drafts=40), start=2.0)
    assert drafts(server) == 40
