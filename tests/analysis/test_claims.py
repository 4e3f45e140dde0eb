"""Whose numbers are an engine's, where several processes use the socket or follow one another.

A life is confirmed by what vLLM itself counted, and no other says or changes anything.
"""

from dataclasses import replace
from random import Random

import pytest

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.identity import EngineKey
from sidecar.engine.names import Counter
from sidecar.requests.messages import (
    Hello,
    HelloState,
    ReportEnd,
    ReportPart,
    Row,
    Speculation,
    Unreadable,
)
from sidecar.requests.tables import Table
from sidecar.requests.tally import Tally
from tests.analysis.analysis_tools import EAGLE, PluginEnd, Pod, Server, snap

ENGINE = EngineKey("m", "0")
OTHER_WAY = Speculation("mtp", 5)


@pytest.fixture
def server():
    server = Server(thresholds={"min_requests": 1})
    server.poll(snap(drafts=0))
    return server


def served(server, plugin, polls=5, drafts=10, **counted):
    """The plug-in's engine drafts and reports before each poll."""
    for _ in range(polls):
        plugin.serve(drafts=drafts).tick()
        server.poll(plugin.counted(**counted))


def engine(server):
    return server.engines()[ENGINE]


def drafts(server):
    return sum(row.tally.drafts for row in server.model().temperatures)


def plain(tokens, drafts=None):
    """An engine that has generated ``tokens``; it drafts nothing, or has no counters of drafts."""
    counters = {Counter.GENERATION_TOKENS: float(tokens), Counter.FIRST_TOKENS: float(tokens > 0)}
    if drafts is not None:
        counters |= dict.fromkeys(
            (Counter.DRAFTS, Counter.DRAFT_TOKENS, Counter.ACCEPTED_TOKENS), float(drafts)
        )
    return snap(counters=counters)


@pytest.mark.parametrize("state", [HelloState.OBSERVING, HelloState.DISABLED, HelloState.REFUSED])
def test_a_neighbour_that_says_hello_before_vllm_drafts_changes_nothing(server, state):
    """Whatever state and configuration it claims, neither is shown as those of the engine."""
    own, neighbour = PluginEnd(server, 1), PluginEnd(server, 2, speculation=OTHER_WAY)
    own.tick()
    neighbour.tick()
    server.poll(snap(drafts=0))
    neighbour.hello(state=state, reason="x", speculation=OTHER_WAY)
    served(server, own, polls=60)

    assert (drafts(server), server.model().no_split) == (600, None)
    assert (engine(server).speculation, engine(server).coverage) == (EAGLE, 1.0)
    shown = server.report().plugin
    assert [(one.engine, one.state) for one in shown.engines] == [("0", PluginState.OBSERVING)]


def test_a_hello_never_resets_what_vllm_s_own_counters_say():
    """Another configuration in a hello is no reason to begin a new window."""
    pod = Pod()
    pod.serve((0, 10, 6), polls=20)
    neighbour = PluginEnd(pod, 7, speculation=OTHER_WAY)
    for number in range(10):
        neighbour.hello(speculation=replace(OTHER_WAY, num_speculative_tokens=2 + number))
        pod.plugin.hello(speculation=replace(EAGLE, num_speculative_tokens=2 + number))
        pod.serve((0, 10, 6))

    assert pod.model().judgement.evidence.window.drafts == 300
    assert pod.temperature("0").window.drafts == 300
    assert pod.temperature("0").tally.drafts == 300


def test_several_senders_as_one_engine_are_a_state_of_their_own_with_a_limitation(server):
    """Only the requests of the confirmed one count; it ends once the other has left."""
    own, plain_one = PluginEnd(server, 1), PluginEnd(server, 2, speculation=None)
    for _ in range(40):
        own.serve(drafts=10).tick()
        plain_one.serve(80, requests=5, drafts=0).tick()
        server.poll(own.counted())

    plugin = server.report().plugin
    assert (plugin.state, plugin.shared, plugin.observed) == (
        PluginState.SEVERAL_SENDERS,
        (ENGINE,),
        1,
    )
    assert Limitation.SEVERAL_SENDERS in engine(server).limitations
    assert sum(row.tally.requests for row in server.model().temperatures) == 40, "its own alone"
    plain_one.close()
    server.poll(own.counted())
    assert server.report().plugin.state is PluginState.OBSERVING
    assert Limitation.SEVERAL_SENDERS not in engine(server).limitations


def test_where_vllm_drafts_nothing_generated_tokens_tell_whose_the_requests_are():
    """The neighbour generates another number of tokens and is no part of the split."""
    server = Server()
    server.poll(plain(0))
    own, neighbour = PluginEnd(server, 1, speculation=None), PluginEnd(server, 2)
    for number in range(1, 41):
        own.generate(30).tick()
        neighbour.generate(7, temperature=80).tick()
        server.poll(plain(30 * number))

    tallies = {row.temperature: row.tally.requests for row in server.model().temperatures}
    assert (tallies["0"], tallies["0.7-1"]) == (40, 0)
    assert engine(server).coverage == 1.0


@pytest.mark.parametrize("counted", [plain(900), plain(900, drafts=0)])
def test_a_plugin_that_does_not_say_how_many_tokens_it_saw_is_not_confirmed_without_drafts(counted):
    """There is nothing of its that vLLM also counts, and the reason says so."""
    server = Server()
    PluginEnd(server).serve(drafts=0).tick()
    server.poll(counted)
    assert server.model().no_split == NoSplit(NoSplitReason.NOTHING_COMPARABLE, "0")


def test_the_confirmation_is_withdrawn_once_the_numbers_part(server):
    """As where two vLLMs had served the same requests at first."""
    sender = PluginEnd(server, speculation=OTHER_WAY)
    served(server, sender)
    assert (engine(server).speculation, drafts(server)) == (OTHER_WAY, 50)
    for number in range(60):
        sender.serve(drafts=1).tick()
        server.poll(snap(drafts=60 + 10 * number))

    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    assert (engine(server).speculation, engine(server).said) == (None, OTHER_WAY)
    assert server.model().judgement.evidence.speculation is None


def test_a_dispute_ends_once_the_other_sender_s_reports_contradict_vllm(server):
    """What was withheld in the meantime is in the owner's window."""
    own = PluginEnd(server, 1)
    served(server, own)
    twin = PluginEnd(server, 2, started=server.at - 100).serve(drafts=50)
    own.tick()
    twin.tick()
    for _ in range(3):
        server.poll(own.counted())
    assert server.model().no_split == NoSplit(NoSplitReason.SEVERAL_CLAIM, "0")
    for _ in range(60):
        own.serve(drafts=10).tick()
        twin.serve(drafts=3).tick()
        server.poll(own.counted())

    assert (server.model().no_split, drafts(server)) == (None, 650)
    assert server.temperature("0").window.drafts == 650


def test_a_packet_of_another_version_changes_nothing_where_a_plugin_can_be_read(server):
    """Its version is named all the same."""
    own = PluginEnd(server)
    served(server, own)
    server.state.plugin.receive(2, Unreadable(9))
    served(server, own)
    plugin = server.report().plugin
    assert (plugin.state, plugin.unreadable_format) == (PluginState.OBSERVING, 9)


def test_plugins_of_engines_that_are_not_on_the_page_are_named_as_such(server):
    """Not as disabled, which would be said of this vLLM."""
    PluginEnd(server, 1, engine=7, state=HelloState.DISABLED, reason="x")
    plugin = server.poll(snap()).plugin
    assert (plugin.state, plugin.engines, plugin.elsewhere) == (PluginState.ELSEWHERE, (), 1)


@pytest.mark.parametrize("lost", [0, 400])
def test_an_engine_core_that_ends_under_load_costs_no_more_than_what_it_had_not_reported(
    server, lost
):
    """Its API server and its counters go on, and a new core starts."""
    old = PluginEnd(server, 1)
    served(server, old, polls=20, drafts=50)
    old.close()
    server.poll(snap(drafts=1000 + lost))
    new = PluginEnd(server, 2, started=server.at + 0.1)
    shown = []
    for number in range(1, 21):
        new.serve(drafts=3).tick()
        server.poll(snap(drafts=1000 + lost + 3 * number))
        shown.append(drafts(server) if server.model().no_split is None else None)

    assert shown[-1] == 1060
    assert None not in shown
    assert shown == sorted(shown)


def test_a_life_that_began_before_the_last_page_but_said_hello_after_it_is_compared_whole(server):
    """Its first connection was refused."""
    server.poll(snap(drafts=40))
    late = PluginEnd(server, started=server.at - 0.9).serve(drafts=60).tick()
    server.poll(late.counted())
    assert drafts(server) == 60


@pytest.mark.parametrize("tables", [None, frozenset({Table.TEMPERATURE, Table.OUTPUT})])
def test_a_table_that_the_plugin_does_not_send_is_an_absent_group_and_never_0(server, tables):
    """Also of a plug-in that does not yet name its tables."""
    hello = Hello(
        plugin="0", vllm=None, model="m", engine=0, start="a", started=server.at,
        state=HelloState.OBSERVING, tables=tables,
    )  # fmt: skip
    server.state.plugin.receive(1, hello)
    tally = Tally(stopped=1, drafts=10, draft_tokens=30, accepted_tokens=20)
    rows = {
        Table.TEMPERATURE: (Row(key=0, since=0.0, counts=tally),),
        Table.OUTPUT: (Row(key="free", since=0.0, counts=tally),),
    }
    server.state.plugin.receive(1, ReportPart(tables=rows, end=ReportEnd(total=tally, lost=0)))
    server.poll(snap(drafts=10))

    assert drafts(server) == 10
    assert {group.by for group in server.model().groups} == {"output"}


def test_the_age_of_the_newest_report_grows_while_none_comes(server):
    """While the page fails it is unknown, since vLLM may be down."""
    plugin = PluginEnd(server)
    served(server, plugin)
    assert engine(server).report_age == pytest.approx(1.0)
    server.poll(plugin.counted(), seconds=20.0)
    assert engine(server).report_age == pytest.approx(21.0)
    server.fail()
    assert engine(server).report_age is None


def test_between_a_plugin_s_goodbye_and_the_next_poll_the_report_is_of_one_moment(server):
    """Otherwise it would show a split that no connected plug-in has sent."""
    plugin = PluginEnd(server)
    served(server, plugin)
    before = server.report()
    plugin.close()
    after = server.report()

    assert after.models == before.models
    assert after.plugin.state is before.plugin.state is PluginState.OBSERVING
    server.fail()
    assert server.report().plugin.state is PluginState.NOT_CONNECTED


def test_requests_that_pass_without_a_plugin_are_noted_until_one_connects(server):
    """Only after some seconds of traffic, in which a plug-in would have connected."""
    for number in range(1, 5):
        assert not server.poll(snap(drafts=number)).plugin.has_served
    for number in range(5, 9):
        server.poll(snap(drafts=number))
    assert server.report().plugin.has_served
    PluginEnd(server)
    assert not server.poll(snap(drafts=9)).plugin.has_served


def test_a_life_goes_on_when_vllm_makes_its_engine_s_counters_anew():
    """The process and the plug-in go on (elastic expert parallelism)."""
    server = Server(thresholds={"min_requests": 1})
    first, second = PluginEnd(server, 1), PluginEnd(server, 2, engine=1)
    server.poll(snap("0"), snap("1"), start=None)
    shown = []
    for number in range(1, 61):
        first.serve(drafts=10).tick()
        second.serve(drafts=10).tick()
        counted = 10 * number if number < 20 else 10 * (number - 19)
        report = server.poll(first.counted(), snap("1", counted), start=None)
        if not report.models:  # while nobody knows why the counters fell
            assert number in {20, 21}
            continue
        shown.append(drafts(server) if server.model().no_split is None else None)

    assert None not in shown
    assert (shown, shown[-1]) == (sorted(shown), 1200)
    assert server.engines()[EngineKey("m", "1")].coverage == 1.0


def test_a_stranger_that_has_left_is_not_added_to_what_the_engine_s_own_plugin_counts(server):
    """As after a restart of the sidecar, where the own plug-in connects later."""
    stranger = PluginEnd(server, 1, started=1.0).serve(80, drafts=30).tick()
    server.poll(snap(drafts=900))
    stranger.close()
    own = PluginEnd(server, 2, started=1.0).serve(drafts=900)
    for _ in range(40):
        own.serve(drafts=10).tick()
        server.poll(own.counted())

    assert (server.model().no_split, drafts(server)) == (None, 1300)


def test_an_engine_core_that_starts_before_the_sidecar_s_first_poll_is_compared_by_its_growth():
    """The one before it ended after the sidecar had restarted, and never connected."""
    server = Server(thresholds={"min_requests": 1})
    new = PluginEnd(server)
    for number in range(1, 21):
        new.serve(drafts=10).tick()
        server.poll(snap(drafts=5000 + 10 * number))
    assert (server.model().no_split, drafts(server)) == (None, 200)

    for number in range(21, 100):
        new.serve(drafts=5).tick()
        server.poll(snap(drafts=5000 + 10 * number))
    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE


def ends_and_another_begins(server, old, *, counted):
    """The engine core of ``old`` ends, and another one serves for a minute; its plug-in."""
    old.close()
    new = PluginEnd(server, 2, started=server.at + 0.1)
    for _ in range(60):
        new.serve(drafts=10).tick()
        server.poll(snap(drafts=counted + new.total.drafts))
    rest(server, new, counted)
    return new


def rest(server, plugin, counted, **options):
    """Requests without drafts: nothing is under way, and vLLM's count of drafts is exact."""
    for _ in range(3):
        plugin.serve(drafts=0).tick()
        server.poll(snap(drafts=counted + plugin.total.drafts), **options)


def test_what_an_engine_core_could_not_send_before_it_ended_is_missing_from_coverage(server):
    """It was 1: the next core's growth agreed, and the sums were short without saying so."""
    old = PluginEnd(server, 1)
    served(server, old, polls=20)
    ends_and_another_begins(server, old, counted=250)

    assert (server.model().no_split, drafts(server)) == (None, 800)
    assert engine(server).coverage == pytest.approx(800 / 850)


def test_the_last_counts_of_an_engine_core_are_in_the_sum_although_it_ended_before_a_poll(server):
    """Another report took the room of a life that had left unconfirmed, however much there was."""
    old = PluginEnd(server, 1).serve(drafts=50).tick()
    ends_and_another_begins(server, old, counted=50)

    assert (server.model().no_split, drafts(server)) == (None, 650)
    assert engine(server).coverage == 1.0


def test_the_last_counts_of_an_engine_core_that_lagged_are_in_the_sum_once_they_came(server):
    """Only those were that had agreed while it lived."""
    old = PluginEnd(server, 1)
    served(server, old)
    for _ in range(40):
        server.poll(snap(drafts=90))
    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    old.serve(drafts=40).tick()
    ends_and_another_begins(server, old, counted=90)

    assert (server.model().no_split, drafts(server)) == (None, 690)
    assert engine(server).coverage == 1.0


def test_a_stranger_s_few_drafts_are_not_what_vllm_is_ahead_by(server):
    """vLLM's page is a little ahead of a report, by about as many drafts as the stranger had."""
    stranger = PluginEnd(server, 1, started=1.0).serve(80, drafts=7).tick()
    stranger.close()
    own = PluginEnd(server, 2, started=1.0)
    for number in range(60):
        own.serve(drafts=10).tick()
        server.poll(snap(drafts=own.total.drafts + 4 + number % 5))

    assert (server.model().no_split, drafts(server)) == (None, 600)


def test_a_stranger_s_few_drafts_are_not_counted_beside_those_of_an_engine_core_that_ended(server):
    """Both together were within the tolerance of what vLLM had counted before the next core."""
    stranger = PluginEnd(server, 3, started=1.0).serve(80, drafts=7).tick()
    server.poll(snap(drafts=0))
    old = PluginEnd(server, 1)
    served(server, old, polls=20, drafts=50)
    stranger.close()
    ends_and_another_begins(server, old, counted=1000)

    assert (server.model().no_split, drafts(server)) == (None, 1600)
    assert engine(server).coverage == 1.0


def test_an_engine_core_that_ended_before_it_drafted_is_no_rival_of_the_one_before_it(server):
    """Both had left, and both were confirmed: the split was withheld until vLLM restarted."""

    def poll(drafts, tokens):
        counters = snap(drafts=drafts).counters | {Counter.GENERATION_TOKENS: float(tokens)}
        server.poll(snap(counters=counters))

    old = PluginEnd(server, 1)
    for _ in range(5):
        old.serve(drafts=10).generate(10).tick()
        poll(old.total.drafts, old.generated)
    old.close()

    short = PluginEnd(server, 2, started=server.at + 0.1).tick()
    short.generate(7).tick().close()
    for _ in range(3):
        poll(50, 57)

    new = PluginEnd(server, 3, started=server.at + 0.1)
    for _ in range(30):
        new.serve(drafts=10).generate(10).tick()
        poll(50 + new.total.drafts, 57 + new.generated)

    assert (server.model().no_split, drafts(server)) == (None, 350)


def test_an_engine_core_that_came_and_went_while_a_restart_was_in_doubt_is_in_the_sum():
    """It was taken for one of the vLLM before: on a page without a start time two polls tell."""
    server = Server(thresholds={"min_requests": 1})
    old = PluginEnd(server, 1)
    for _ in range(5):
        old.serve(drafts=100).tick()
        server.poll(old.counted(), start=None)
    old.close()
    first = PluginEnd(server, 2, started=server.at + 0.1).serve(drafts=26).tick()
    assert not server.poll(first.counted(), start=None).models
    first.close()
    second = PluginEnd(server, 3, started=server.at + 0.1)
    for _ in range(60):
        second.serve(drafts=10).tick()
        server.poll(snap(drafts=26 + second.total.drafts), start=None)
    rest(server, second, 26, start=None)

    assert (server.model().no_split, drafts(server)) == (None, 626)
    assert engine(server).coverage == 1.0


def older_than_its_counters(started, *, drafts=10, counted=10, polls=60, pause=0):
    """A server whose engine had drafted 1,000 times before the sidecar listened.

    All but 100 of them were before vLLM made the engine's counters anew. From then on its plug-in
    reports ``drafts`` a poll, and vLLM counts as many as ``counted``. After 40 polls of traffic
    comes a ``pause`` of so many.
    """
    server = Server(thresholds={"min_requests": 1})
    plugin = PluginEnd(server, started=started).serve(drafts=1000).tick()
    busy = 0
    for number in range(polls):
        if number % (40 + pause) < 40:
            busy += 1
            plugin.serve(drafts=drafts).tick()
        server.poll(snap(drafts=100 + counted * busy))
    return server


@pytest.mark.parametrize("started", [1.0, 1e6])
def test_a_life_older_than_vllm_s_counters_is_confirmed_by_its_growth_after_a_sidecar_s_restart(
    started,
):
    """It was withheld until vLLM restarted, as too much. By a clock set back it began later."""
    server = older_than_its_counters(started, polls=180, pause=4)

    assert (server.model().no_split, drafts(server)) == (None, 2640)
    assert engine(server).coverage == 1.0
    assert 1500 <= server.temperature("0").window.drafts <= 1640, "what it grew since"


@pytest.mark.parametrize(
    "traffic",
    [
        {"drafts": 10, "counted": 9},
        {"drafts": 9, "counted": 10},
        {"drafts": 0, "counted": 0},
        {"drafts": 105, "counted": 100, "polls": 400},
        {"drafts": 92, "counted": 100, "polls": 400},
        {"drafts": 101, "counted": 100, "polls": 400, "pause": 4},
        {"drafts": 10, "counted": 10, "polls": 120, "pause": 4},
        {"drafts": 30, "counted": 30, "polls": 25},
        {"drafts": 1, "counted": 1, "polls": 30},
    ],
)
def test_a_total_that_is_too_high_is_withheld_while_its_growth_does_not_prove_it_right(traffic):
    """Growth proves nothing if it differs, is too little, or has no pauses to tell it by."""
    server = older_than_its_counters(1.0, **traffic)

    assert server.model().no_split.code in {
        NoSplitReason.COUNTS_OTHERWISE,
        NoSplitReason.NOT_COMPARED,
    }
    assert engine(server).speculation is None


def test_a_total_that_is_too_high_from_the_life_s_start_on_is_never_confirmed_by_its_growth():
    """The sidecar would have seen vLLM's counters fall."""
    server = older_than_its_counters(1000.0)

    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    assert engine(server).coverage > 2


def test_a_neighbour_of_the_same_growth_claims_no_engine_that_has_a_plugin_of_its_own():
    """As one of two vLLMs behind a load balancer that share a socket."""
    server = Server(thresholds={"min_requests": 1})
    neighbour = PluginEnd(server, 1, started=1.0).serve(80, drafts=5000).tick()
    own = PluginEnd(server, 2, started=1.0).serve(drafts=1000).tick()
    for _ in range(120):
        neighbour.serve(80, drafts=10).tick()
        own.serve(drafts=10).tick()
        server.poll(own.counted())

    assert (server.model().no_split, drafts(server)) == (None, 2200)
    assert server.temperature("0.7-1").tally.drafts == 0


def beside_its_own_plugin(neighbour_first):
    """Two plug-ins, both older than vLLM's counters, which grow alike. Only one is the engine's."""
    server = Server(thresholds={"min_requests": 1})
    both = [PluginEnd(server, number, started=1.0) for number in (1, 2)]
    own, neighbour = reversed(both) if neighbour_first else both
    neighbour.serve(80, drafts=5000).tick()
    own.serve(drafts=1000).tick()
    for number in range(180):
        if number % 44 < 40:
            neighbour.serve(80, drafts=10).tick()
            own.serve(drafts=10).tick()
        server.poll(snap(drafts=own.total.drafts - 900))
    return server


@pytest.mark.parametrize("neighbour_first", [False, True])
def test_of_two_lives_older_than_vllm_s_counters_neither_is_confirmed_by_its_growth(
    neighbour_first,
):
    """The one that said hello first got the engine."""
    server = beside_its_own_plugin(neighbour_first)

    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    assert server.report().plugin.state is PluginState.SEVERAL_SENDERS
    assert engine(server).speculation is None


def requests_of(random, mean):
    """How many come in a second, at random."""
    return sum(random.random() < mean / 1000 for _ in range(1000))


@pytest.mark.parametrize("mean", [10, 40])
@pytest.mark.parametrize("seed", range(2))
def test_a_neighbour_with_as_much_traffic_of_its_own_is_not_confirmed_by_its_growth(mean, seed):
    """It was within a minute: the two met by chance at some poll."""
    random = Random(seed)
    server = Server(thresholds={"min_requests": 1})
    neighbour = PluginEnd(server, started=1.0).serve(80, drafts=50_000).tick()
    counted = 100
    for number in range(300):
        if number % 44 < 40:
            neighbour.serve(80, drafts=requests_of(random, mean)).tick()
            counted += requests_of(random, mean)
        server.poll(snap(drafts=counted))

        assert engine(server).speculation is None


def test_a_life_older_than_vllm_s_process_is_not_confirmed_by_its_growth():
    """It did not see its counters begin anew: they are those of another vLLM."""
    server = Server(thresholds={"min_requests": 1})
    plugin = PluginEnd(server, started=400.0).serve(drafts=1000).tick()
    for number in range(180):
        if number % 44 < 40:
            plugin.serve(drafts=10).tick()
        server.poll(snap(drafts=plugin.total.drafts - 900), start=500.0)

    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE


def test_growth_alone_does_not_confirm_a_life_that_has_less_than_vllm_counted():
    """A part of what the engine did would be missing."""
    server = Server(thresholds={"min_requests": 1})
    plugin = PluginEnd(server, started=1.0).serve(drafts=1000).tick()
    for number in range(180):
        if number % 44 < 40:
            plugin.serve(drafts=10).tick()
        server.poll(snap(drafts=plugin.total.drafts + 1000))

    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE


def test_a_burst_at_a_life_s_first_reports_does_not_keep_it_unknown_for_long():
    """Its growth is from within the burst on: how much of that vLLM had counted is not known."""
    server = Server(thresholds={"min_requests": 1})
    plugin = PluginEnd(server, started=1.0).serve(drafts=5000).tick()
    for number in range(400):
        if number < 8:
            plugin.serve(drafts=100).tick()
        elif number % 100 < 90:
            plugin.serve(drafts=4).tick()
        server.poll(snap(drafts=plugin.total.drafts - 5000))

    assert (server.model().no_split, drafts(server)) == (None, 7208)


def test_a_life_whose_counters_began_anew_while_it_was_not_connected_is_compared_by_its_growth():
    """It was compared with what vLLM had counted before."""
    server = Server(thresholds={"min_requests": 1})
    other, life = PluginEnd(server, 1, engine=1), PluginEnd(server, 2)
    counted = 0
    for number in range(60):
        other.serve(drafts=10).tick()
        life.serve(drafts=10)
        counted = 0 if number == 20 else counted + 10
        if number == 15:
            life.close()
        if number == 30:
            life.connection = 3
            life.hello()
        if not 15 <= number < 30:
            life.tick()
        server.poll(snap("0", counted), other.counted(), start=None)

    assert server.model().no_split is None
    assert drafts(server) == 1200


def test_a_life_that_lags_while_its_counters_begin_anew_is_compared_by_its_growth():
    """Its latest report was as small as vLLM's new counts, so it was said to be as new as these."""
    server = Server(thresholds={"min_requests": 1})
    other, life = PluginEnd(server, 1, engine=1), PluginEnd(server, 2)
    counted = 0
    for number in range(120):
        other.serve(drafts=10).tick()
        life.serve(drafts=10)
        counted = 10 if number == 20 else counted + 10
        if not 2 <= number < 25:
            life.tick()
        server.poll(snap("0", counted), other.counted(), start=None)

    assert (server.model().no_split, drafts(server)) == (None, 2400)


def test_counters_that_begin_anew_and_grow_past_their_old_values_at_once_leave_no_life_in_doubt():
    """One page showed lower ones, and the next one higher ones than ever."""
    server = Server(thresholds={"min_requests": 1})
    life = PluginEnd(server).serve(drafts=200).tick()
    server.poll(snap(drafts=200))
    server.poll(snap(drafts=1))
    assert server.state.last_error is not None

    life.serve(drafts=210)
    for number in range(80):
        life.tick()
        server.poll(snap(drafts=210 + 10 * number))
        life.serve(drafts=10)

    assert (server.model().no_split, drafts(server)) == (None, 1200)


@pytest.mark.parametrize("returns", [False, True])
def test_an_engine_core_that_follows_one_whose_counters_began_anew_takes_its_place(returns):
    """VLLM's counters have an unknown part of what the earlier one had counted."""
    server = Server(thresholds={"min_requests": 1})
    other, old = PluginEnd(server, 1, engine=1), PluginEnd(server, 2)
    new = None
    counted = 0
    for number in range(120):
        counted = 0 if number == 20 else counted + 10
        if returns and number == 18:
            old.close()
        if returns and number == 25:
            old.connection = 4
            old.hello()
        if number == 40:
            old.close()
            new = PluginEnd(server, 3, started=server.at + 0.1)
        for plugin in (other, new or old):
            plugin.serve(drafts=10)
            if not (returns and plugin is old and 18 <= number < 25):
                plugin.tick()
        server.poll(snap("0", counted), other.counted(), start=None)

    assert (server.model().no_split, drafts(server)) == (None, 2400)
    assert engine(server).coverage == 1.0


def test_what_a_vllm_before_had_counted_is_no_origin_where_nothing_told_of_its_restart():
    """Its page has no start time, and the new one had counted more when it was first read."""
    server = Server(thresholds={"min_requests": 1})
    server.poll(snap(drafts=37), start=None)
    new = PluginEnd(server, started=server.at + 0.1).serve(drafts=90)
    for _ in range(60):
        new.serve(drafts=10).tick()
        server.poll(new.counted(), start=None)

    assert (server.model().no_split, drafts(server)) == (None, 690)


def test_counters_made_anew_that_look_like_a_restart_of_vllm_leave_no_life_in_doubt():
    """The page has no start time and no other engine that would go on."""
    server = Server(thresholds={"min_requests": 1})
    life = PluginEnd(server, started=1.0).serve(drafts=1000).tick()
    busy = 0
    for number in range(220):
        if number % 44 < 40:
            busy += 1
            life.serve(drafts=10).tick()
        server.poll(snap(drafts=90 + 10 * busy if number < 5 else 10 * (busy - 5)), start=None)

    assert (server.model().no_split, drafts(server)) == (None, 3000)


def test_growth_that_had_agreed_and_no_longer_does_withdraws_the_confirmation():
    """The split is withheld again: it was a neighbour after all, or counts otherwise by now."""
    server = Server(thresholds={"min_requests": 1})
    plugin = PluginEnd(server, started=1.0).serve(drafts=1000).tick()
    counted = 0
    for number in range(200):
        counted += 10 if number < 60 else 20
        plugin.serve(drafts=10).tick()
        server.poll(snap(drafts=counted))

    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE


def test_by_a_clock_set_back_nothing_from_before_the_sidecar_listened_is_growth():
    """The life's start is in the future, so it was taken for one that the sidecar saw begin."""
    server = Server(thresholds={"min_requests": 1})
    plugin = PluginEnd(server, started=server.at + 3600).serve(drafts=1000).tick()
    served(server, plugin, polls=40)
    [life] = server.state.plugin.view.lives

    assert drafts(server) == 1400
    assert (life.began, life.first.total.drafts) == (None, 1010)


def test_a_life_that_was_heard_from_its_start_stays_so_when_the_clock_is_set_back(server):
    """All that it has counted is growth of the window."""
    plugin = PluginEnd(server)
    server.poll(snap(drafts=0))
    server.at = 500.0
    served(server, plugin)

    assert drafts(server) == 50
    assert [life.began for life in server.state.plugin.view.lives] == [plugin.started]


def test_a_life_that_connects_after_its_counters_began_anew_is_compared_by_its_growth():
    """As after a restart of the sidecar. Its total was too much, so the split was withheld."""
    server = Server(thresholds={"min_requests": 1})
    other = PluginEnd(server, 1, engine=1, started=1.0)
    for number in range(8):
        other.serve(drafts=10).tick()
        server.poll(snap("0", 5000 if number < 4 else 0), other.counted())
    life = PluginEnd(server, 2, started=2.0).serve(drafts=5000)
    for _ in range(40):
        life.serve(drafts=10).tick()
        other.serve(drafts=10).tick()
        server.poll(snap("0", life.total.drafts - 5000), other.counted())

    assert (server.model().no_split, engine(server).coverage) == (None, 1.0)
    assert server.temperature("0").window.drafts >= 400


def test_a_stranger_that_has_left_is_not_confirmed_once_vllm_has_accepted_as_many_tokens():
    """By then the engine had drafted twice as often as the stranger."""
    server = Server(thresholds={"min_requests": 1})
    own = PluginEnd(server, 1, started=1.0)
    stranger = PluginEnd(server, 2)
    for number in range(300):
        own.serve(drafts=4, accepted=4).tick()
        if number == 40:
            stranger.serve(80, drafts=1).tick()
            stranger.serve(80, drafts=399).tick()
        if number == 41:
            stranger.close()
        server.poll(snap(drafts=own.total.drafts, accepted=own.total.accepted_tokens))

    assert (server.model().no_split, drafts(server)) == (None, 1200)
    assert server.temperature("0.7-1").tally.drafts == 0


def test_a_life_that_drafted_nothing_before_it_left_is_confirmed_by_no_other_s_drafts(server):
    """It may have been of the vLLM before; its requests were counted all the same."""
    gone = PluginEnd(server, 1, started=1.0).generate(5, temperature=80).tick()
    gone.close()
    own = PluginEnd(server, 2)
    served(server, own, polls=20)

    assert server.model().no_split is None
    assert server.temperature("0.7-1").tally.requests == 0
