"""Whose numbers an engine's are: known by the server's id, else by growth, and several withheld.

Beside the own vLLM's plug-in there may be a neighbour's at the socket, or one life after another.
"""

from dataclasses import replace

import pytest

from sidecar.analysis.engine.engine_state import Limitation
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.names import Counter
from sidecar.requests.messages import HelloState, Speculation, Unreadable
from tests.analysis.analysis_tools import EAGLE, OWN, PluginEnd, Pod, Server, snap
from tests.engine.engine_tools import snapshot
from tests.marks import slow

ENGINE = EngineKey("m", "0")
OTHER_WAY = Speculation("mtp", 5)
SEVERAL = NoSplit(NoSplitReason.SEVERAL_SENDERS, "0")
NOT_COMPARED = NoSplit(NoSplitReason.NOT_COMPARED, "0")
IDS = pytest.mark.parametrize("server_id", [OWN, None], ids=["by id", "by growth"])


def new_server(server_id=OWN):
    server = Server(thresholds={"min_requests": 1}, server=server_id)
    server.poll(snap(drafts=0))
    return server


@pytest.fixture
def server():
    return new_server()


@pytest.fixture
def nameless():
    """A server whose page has no id, as behind NVIDIA Dynamo or vLLM's Rust frontend."""
    return new_server(None)


def served(server, plugin, polls=5, drafts=10, **counted):
    """The plug-in's engine drafts and reports before each poll."""
    for _ in range(polls):
        plugin.serve(drafts=drafts).tick()
        server.poll(plugin.counted(**counted))


def engine(server):
    return server.engines()[ENGINE]


def drafts(server):
    return sum(row.tally.drafts for row in server.model().temperatures)


def shown(server):
    """The drafts of the split; None while it is withheld."""
    return drafts(server) if server.model().no_split is None else None


def plain(tokens):
    """An engine that has generated ``tokens``, and has no counters of drafts."""
    counters = {Counter.GENERATION_TOKENS: float(tokens), Counter.FIRST_TOKENS: float(tokens > 0)}
    return snap(counters=counters)


# A neighbour at the socket


def test_beside_a_neighbour_of_exactly_its_growth_the_own_split_is_there_at_once(
    server,
):
    """Both were withheld throughout."""
    own, neighbour = PluginEnd(server, 1), PluginEnd(server, 2, of="another")
    for number in range(1, 61):
        own.serve(40, drafts=10).tick()
        neighbour.serve(90, drafts=10).tick()
        server.poll(own.counted())
        assert shown(server) == 10 * number

    assert server.temperature("0.7-1").tally.drafts == 0
    plugin = server.report().plugin
    assert (plugin.state, plugin.elsewhere, plugin.shared) == (PluginState.OBSERVING, 1, ())
    assert engine(server).coverage == 1.0


def test_a_neighbour_alone_with_exactly_vllm_s_counts_has_no_split(server):
    """Its split was shown as vLLM's."""
    neighbour = PluginEnd(server, of="another")
    for _ in range(60):
        neighbour.serve(drafts=10).tick()
        neighbour.finish()
        plugin = server.poll(neighbour.counted()).plugin
        assert server.model().temperatures == ()

    assert (plugin.state, plugin.elsewhere, plugin.engines) == (PluginState.ELSEWHERE, 1, ())
    assert plugin.dropped["other_engine"] > 0
    assert engine(server).speculation is None


@pytest.mark.parametrize("says", ["another", None], ids=["another id", "none"])
@pytest.mark.parametrize("state", [HelloState.OBSERVING, HelloState.DISABLED, HelloState.REFUSED])
def test_beside_the_own_plug_in_what_a_neighbour_says_changes_nothing(server, state, says):
    """Whatever state and configuration it claims. One without an id is not the id's."""
    own, neighbour = PluginEnd(server, 1), PluginEnd(server, 2, of=says, speculation=OTHER_WAY)
    server.poll(snap(drafts=0))
    neighbour.hello(state=state, reason="x", speculation=OTHER_WAY)
    served(server, own, polls=60)

    assert (shown(server), engine(server).coverage) == (600, 1.0)
    assert engine(server).speculation == EAGLE
    plugins = server.report().plugin.engines
    assert [(one.engine, one.state) for one in plugins] == [("0", PluginState.OBSERVING)]


@pytest.mark.parametrize("id_of_both", [OWN, None], ids=["one id for both", "no id"])
def test_of_several_as_one_engine_none_counts_until_one_has_left(id_of_both):
    """One id for both: a launcher that builds vLLM's parser and starts several, or a copied id.

    What was withheld in the meantime is in the window of the one that stays.
    """
    server = new_server(id_of_both)
    own = PluginEnd(server, 1)
    served(server, own, polls=20)
    other = PluginEnd(server, 2)
    for _ in range(40):
        own.serve(drafts=10).tick()
        other.serve(90, drafts=10).tick()
        server.poll(own.counted())
        assert server.model().no_split == SEVERAL

    plugin = server.report().plugin
    assert (plugin.state, plugin.shared) == (PluginState.SEVERAL_SENDERS, (ENGINE,))
    assert Limitation.SEVERAL_SENDERS in engine(server).limitations
    assert engine(server).coverage == 0, "so the alert fires"
    assert engine(server).speculation is None

    other.close()
    served(server, own, polls=1)
    assert shown(server) == 610
    assert server.temperature("0").window.drafts == 610
    assert server.report().plugin.state is PluginState.OBSERVING
    assert Limitation.SEVERAL_SENDERS not in engine(server).limitations


def test_of_several_without_an_id_the_one_that_stays_counts_by_its_growth_alone(nameless):
    """Not by what agreed while the engine's own was connected as well."""
    own, twin = PluginEnd(nameless, 1), PluginEnd(nameless, 2)
    for _ in range(60):
        own.serve(drafts=10).tick()
        twin.serve(90, drafts=10).tick()
        nameless.poll(own.counted())
    own.close()
    for _ in range(8):
        twin.serve(90, drafts=10).tick()
        nameless.poll(twin.counted())
        assert nameless.model().no_split == NOT_COMPARED


def test_an_id_that_the_page_has_only_later_counts_from_then_on(server):
    """VLLM has restarted, and its engine said hello before the page was asked for again."""
    old = PluginEnd(server, 1)
    served(server, old)
    old.close()
    server.server = "next"
    new = PluginEnd(server, 2)
    new.serve(drafts=3).tick()
    server.poll(old.counted(), servers={OWN})  # was asked for before
    server.poll(new.counted(), start=2.0)
    assert shown(server) == 3


# One after the other


@pytest.mark.parametrize("cores", [2, 4])
def test_each_data_parallel_engine_of_a_page_is_a_life_of_its_own(cores):
    server = Server(thresholds={"min_requests": 1})
    server.poll(*(snap(str(number)) for number in range(cores)))
    plugins = [PluginEnd(server, number, engine=number) for number in range(cores)]
    for polls in range(1, 20):
        for plugin in plugins:
            plugin.serve(drafts=1 + plugin.engine).tick()
        server.poll(*(plugin.counted() for plugin in plugins))
        assert shown(server) == polls * sum(range(1, cores + 1))


@pytest.mark.parametrize("cores", [2, 4])
def test_data_parallel_engines_with_a_page_each_share_an_id_but_not_a_number(cores):
    """A supervisor gives all its children one environment, so one id and one socket."""
    server = Server(thresholds={"min_requests": 1})
    server.poll(snap("1"))
    plugins = [PluginEnd(server, number, engine=number) for number in range(cores)]
    for polls in range(1, 20):
        for plugin in plugins:
            plugin.serve(drafts=1 + plugin.engine).tick()
        server.poll(plugins[1].counted())
        assert shown(server) == 2 * polls
    assert server.report().plugin.elsewhere == cores - 1


@pytest.mark.parametrize(("created", "hidden"), [((5.0, 30.0), 0), ((None, None), 2)])
@pytest.mark.parametrize("cores", [(2, 4), (4, 2)], ids=["more", "fewer"])
def test_elastic_expert_parallelism_begins_all_counters_anew_and_takes_nothing_from_the_sum(
    cores, created, hidden
):
    """One process, one id. Without the time at which counters were made, two polls tell why."""
    server = Server(thresholds={"min_requests": 1})
    plugins = [PluginEnd(server, number, engine=number) for number in range(cores[0])]
    before, gone, missing = dict.fromkeys(range(4), 0), 0, []
    for number in range(90):
        if number == 30:
            gone = sum(plugin.total.drafts for plugin in plugins[cores[1] :])
            for plugin in plugins[cores[1] :]:
                plugin.close()
            plugins = plugins[: cores[1]]
            before |= {plugin.engine: plugin.total.drafts for plugin in plugins}
            more = range(len(plugins), cores[1])
            plugins += [PluginEnd(server, engine, engine=engine) for engine in more]
        for plugin in plugins:
            plugin.serve(drafts=10).tick()
        rows = [
            snap(str(plugin.engine), plugin.total.drafts - before[plugin.engine])
            for plugin in plugins
        ]
        server.poll(*(replace(row, created=created[number >= 30]) for row in rows))
        if not server.report().models:
            missing.append(number)
        else:
            assert shown(server) == gone + sum(plugin.total.drafts for plugin in plugins)

    assert missing == [30, 31][:hidden]
    assert server.state.restarts == 0


def test_beside_a_headless_node_which_has_no_page_nothing_is_shown_and_its_plug_ins_are_named():
    server = Server(thresholds={"min_requests": 1})
    plugins = [PluginEnd(server, number, engine=number) for number in (2, 3)]
    for _ in range(60):
        for plugin in plugins:
            plugin.serve(drafts=10).tick()
        server.fail()
    report = server.report()
    assert report.models == ()
    assert [(one.engine, one.state) for one in report.plugin.engines] == [
        ("2", PluginState.OBSERVING),
        ("3", PluginState.OBSERVING),
    ]


@pytest.mark.parametrize("lost", [0, 400])
def test_one_engine_core_that_restarts_under_load_takes_nothing_from_the_sum(server, lost):
    """Its API server and its counters go on. What it had not reported is lost, and in no sum."""
    old = PluginEnd(server, 1)
    served(server, old, polls=20, drafts=50)
    old.close()
    server.poll(snap(drafts=1000 + lost))
    new = PluginEnd(server, 2, started=server.at + 0.1)
    for number in range(1, 21):
        new.serve(drafts=3).tick()
        server.poll(snap(drafts=1000 + lost + 3 * number))
        assert shown(server) == 1000 + 3 * number

    expected = 1060 / (1060 + lost)
    assert engine(server).coverage == pytest.approx(expected, abs=0.005)


@IDS
def test_what_a_core_told_only_an_earlier_sidecar_is_in_no_sum_and_coverage_says_so(server_id):
    """The sidecar restarted, and the idle core ended before its next step told the new one."""
    server = new_server(server_id)
    server.poll(snap(drafts=1000))
    new = PluginEnd(server)
    for _ in range(20):
        new.serve(drafts=50).tick()
        server.poll(snap(drafts=1000 + new.total.drafts))
    assert shown(server) == 1000
    assert engine(server).coverage == pytest.approx(0.5, abs=0.02)


def test_by_growth_an_engine_core_that_restarts_counts_once_it_has_agreed_and_nothing_is_missing(
    nameless,
):
    old = PluginEnd(nameless, 1)
    served(nameless, old, polls=20)
    old.close()
    new = PluginEnd(nameless, 2, started=nameless.at + 0.1)
    seen = []
    for number in range(1, 31):
        new.serve(drafts=10).tick()
        nameless.poll(snap(drafts=200 + 10 * number))
        seen.append(shown(nameless))

    assert 10 <= seen.count(None) <= 16
    assert seen[-1] == 500


def test_vllm_that_restarts_under_a_sidecar_that_stays_begins_at_0_at_its_first_poll(server):
    old = PluginEnd(server, 1)
    served(server, old, polls=20)
    old.close()
    for number in range(5):
        server.fail()
        assert drafts(server) == 200, number
    server.server = "next"
    new = PluginEnd(server, 2)
    for number in range(1, 10):
        new.serve(drafts=3).tick()
        server.poll(new.counted(), start=2.0)
        assert shown(server) == 3 * number


def test_a_plug_in_that_outlives_its_vllm_is_elsewhere_by_its_id(server):
    """Its API server died and started again with an engine of its own, which has another id."""
    old = PluginEnd(server, 1)
    served(server, old, polls=20)
    server.server = "next"
    new = PluginEnd(server, 2)
    for number in range(1, 10):
        old.serve(drafts=50).tick()
        new.serve(drafts=3).tick()
        server.poll(new.counted(), start=2.0)
        assert shown(server) == 3 * number
    assert server.report().plugin.elsewhere == 1


def test_an_engine_that_outlives_a_vllm_without_ids_is_one_of_several(nameless):
    old = PluginEnd(nameless, 1)
    served(nameless, old, polls=20)
    new = PluginEnd(nameless, 2)
    for _ in range(5):
        new.serve(drafts=3).tick()
        nameless.poll(new.counted(), start=2.0)
        assert nameless.model().no_split == SEVERAL
    old.close()
    for _ in range(40):
        new.serve(drafts=3).tick()
        nameless.poll(new.counted(), start=2.0)
    assert shown(nameless) == 135


def test_a_sidecar_that_restarts_under_vllm_has_its_split_at_the_first_poll_after_a_report():
    server = Server(thresholds={"min_requests": 1})
    own = PluginEnd(server, started=1.0).serve(drafts=5000)
    server.poll(own.counted())
    assert server.model().no_split == NoSplit(NoSplitReason.FIRST_REPORT, "0")
    own.tick()
    server.poll(own.counted())
    assert (shown(server), engine(server).coverage) == (5000, 1.0)
    assert server.temperature("0").window.drafts == 0


def test_a_sidecar_that_restarts_without_an_id_counts_what_is_just_what_vllm_has():
    """Two reports, since how much vLLM had counted at the first one is not known."""
    server = Server(thresholds={"min_requests": 1}, server=None)
    own = PluginEnd(server, started=1.0).serve(drafts=5000)
    served(server, own, polls=4)
    assert (shown(server), engine(server).coverage) == (5040, 1.0)


def test_a_life_older_than_vllm_s_counters_is_shown_from_the_first_poll_by_its_id():
    """They were made anew, then the sidecar restarted: the split stayed away until vLLM did."""
    server = Server(thresholds={"min_requests": 1})
    own = PluginEnd(server, started=1.0).serve(drafts=5000)
    for number in range(1, 61):
        own.serve(drafts=10).tick()
        server.poll(snap(drafts=own.total.drafts - 5000))
        assert shown(server) == 5000 + 10 * number
    assert engine(server).coverage == pytest.approx(1.0, abs=0.02), "told since the first poll"


def test_a_life_older_than_vllm_s_counters_without_an_id_is_shown_once_its_growth_agrees():
    server = Server(thresholds={"min_requests": 1}, server=None)
    own = PluginEnd(server, started=1.0).serve(drafts=5000)
    served(server, own, polls=0)
    seen = []
    for _ in range(30):
        own.serve(drafts=10).tick()
        server.poll(snap(drafts=own.total.drafts - 5000))
        seen.append(shown(server))
    assert 10 <= seen.count(None) <= 18
    assert seen[-1] == 5300
    assert engine(server).coverage == pytest.approx(1.0, abs=0.02)


def test_an_old_directory_of_multiprocess_metrics_goes_on_and_so_do_the_sums():
    """Nobody wiped it when vLLM restarted: its counters go on, and the page has both ids."""
    server = Server(thresholds={"min_requests": 1}, server="first")
    old = PluginEnd(server, 1)
    for _ in range(20):
        old.serve(drafts=10).tick()
        server.poll(old.counted(), start=None)
    old.close()
    server.server = "second"
    new = PluginEnd(server, 2, started=server.at + 0.1)
    for number in range(1, 21):
        new.serve(drafts=3).tick()
        server.poll(snap(drafts=200 + 3 * number), start=None, servers={"first", "second"})
        assert shown(server) == 200 + 3 * number
    assert (engine(server).coverage, server.state.restarts) == (1.0, 0)


# By growth


@pytest.mark.parametrize(
    ("on_page", "in_hello"), [(None, "a"), (OWN, None), (None, None)], ids=["page", "hello", "both"]
)
def test_without_an_id_on_either_side_a_life_counts_once_100_drafts_have_agreed(on_page, in_hello):
    """Dynamo's page and the Rust frontend's have none, and engines in Ray's actors neither."""
    server = new_server(on_page)
    own = PluginEnd(server, of=in_hello)
    seen = []
    for _ in range(30):
        own.serve(drafts=10).tick()
        server.poll(own.counted())
        seen.append(shown(server))
    assert seen[8] is None, "fewer than 100"
    assert seen[13] == 140
    assert engine(server).coverage == 1.0


class Dynamo(Server):
    """A worker of NVIDIA Dynamo, whose page passes no gauge of a plug-in: the real one.

    Its engine has drafted as often as it is told.
    """

    def __init__(self, body):
        super().__init__(thresholds={"min_requests": 1}, server=None)
        self.page = snapshot(body)
        self.draft(0)

    def draft(self, drafts):
        [engine] = self.page.engines
        counters = engine.counters | snap(drafts=drafts).counters
        self.poll(replace(engine, counters=counters), servers=self.page.servers)

    def shown(self):
        model = self.model("lab")
        told = sum(row.tally.drafts for row in model.temperatures)
        return told if model.no_split is None else None


@pytest.fixture
def dynamo(recorded):
    return Dynamo(recorded("extra/dynamo-1.6.1.txt"))


def test_behind_nvidia_dynamo_the_plug_in_counts_once_its_growth_agrees(dynamo):
    """The hello has an id, and the page none, so the id tells nothing."""
    own = PluginEnd(dynamo, of="dynamo", model="lab")
    seen = []
    for _ in range(30):
        own.serve(drafts=10).tick()
        dynamo.draft(own.total.drafts)
        seen.append(dynamo.shown())
    assert seen[8] is None, "fewer than 100"
    assert seen[13:] == [*range(140, 310, 10)]
    assert dynamo.engines()[EngineKey("lab", "0")].coverage == 1.0
    assert dynamo.report().plugin.state is PluginState.OBSERVING


def test_behind_nvidia_dynamo_two_vllms_on_one_socket_withhold_the_split(dynamo):
    own = PluginEnd(dynamo, 1, of="dynamo", model="lab")
    neighbour = PluginEnd(dynamo, 2, of="another", model="lab")
    for _ in range(30):
        own.serve(drafts=10).tick()
        neighbour.serve(90, drafts=7).tick()
        dynamo.draft(own.total.drafts)
        assert dynamo.model("lab").no_split == SEVERAL
    neighbour.close()
    for _ in range(14):
        own.serve(drafts=10).tick()
        dynamo.draft(own.total.drafts)
    assert dynamo.shown() == 440


@pytest.mark.parametrize("factor", [0.5, 0.6, 1.6, 2.0])
def test_without_an_id_a_neighbour_at_another_rate_never_counts(nameless, factor):
    """Within the slack of a few polls it agrees."""
    neighbour = PluginEnd(nameless)
    for number in range(1, 200):
        neighbour.serve(drafts=round(20 * factor)).tick()
        nameless.poll(snap(drafts=20 * number))
        assert shown(nameless) is None, number


def test_a_few_drafts_that_are_just_vllm_s_count_confirm_nobody(nameless):
    """Any vLLM may have drafted three times."""
    neighbour = PluginEnd(nameless)
    neighbour.serve(drafts=3).tick()
    for _ in range(60):
        nameless.poll(snap(drafts=3))
        assert shown(nameless) is None


def test_what_a_copied_id_told_while_it_was_alone_leaves_the_sum_with_it(server):
    copied = PluginEnd(server, 1)
    copied.serve(90, drafts=1000).tick()
    server.poll(snap(drafts=0))
    own = PluginEnd(server, 2)
    served(server, own, polls=5)
    assert server.model().no_split == SEVERAL

    copied.close()
    served(server, own, polls=20)
    assert (shown(server), engine(server).coverage) == (250, 1.0)
    assert server.temperature("0.7-1").tally.drafts == 0


def test_a_copied_id_that_followed_vllm_while_it_was_alone_leaves_the_sum_with_it(server):
    """Its growth agreed, as that of whoever reads vLLM's page may."""
    own = PluginEnd(server, 1)
    drafts = 0

    def draft(*told, polls):
        nonlocal drafts
        for _ in range(polls):
            drafts += 10
            own.serve(drafts=10)
            for plugin in told:
                if plugin is not own:
                    plugin.serve(90, drafts=10)
                plugin.tick()
            server.poll(snap(drafts=drafts))

    draft(own, polls=30)
    own.close()
    copied = PluginEnd(server, 2)
    draft(copied, polls=60)
    own.hello()
    draft(own, copied, polls=5)
    copied.close()
    draft(own, polls=60)
    assert (shown(server), engine(server).coverage) == (drafts, 1.0)
    assert server.temperature("0.7-1").tally.drafts == 0


def test_coverage_counts_nothing_of_a_life_that_was_dropped_after_vllms_counters_began():
    """These are younger than the plug-in's, whose numbers then fall; its core is replaced."""
    server = Server()
    drafts = 5000
    server.poll(snap(drafts=drafts))
    old = PluginEnd(server, 1, started=10.0)
    old.serve(drafts=100_000)
    for _ in range(60):
        drafts += 10
        old.serve(drafts=10).tick()
        server.poll(snap(drafts=drafts))
    assert engine(server).coverage == pytest.approx(1.0, abs=0.01)

    (cell,) = old.cells
    old.cells[cell] = (0,) * len(old.cells[cell])
    for _ in range(5):
        drafts += 10
        old.serve(drafts=10).tick()
        server.poll(snap(drafts=drafts))
    old.close()
    new = PluginEnd(server, 3)
    for _ in range(100):
        drafts += 10
        new.serve(drafts=10).tick()
        server.poll(snap(drafts=drafts))
    assert 0 <= engine(server).coverage <= 1


def test_the_plug_in_of_a_plain_engine_that_counts_otherwise_does_not_make_it_speculate():
    server = Server(server=None)
    server.poll(plain(0))
    neighbour = PluginEnd(server, speculation=OTHER_WAY)
    for number in range(1, 120):
        neighbour.generate(7).tick()
        server.poll(plain(100 * number))
    assert server.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    assert server.state.plugin.view.speculating == frozenset()


def test_where_nothing_is_drafted_as_many_tokens_tell():
    server = Server(server=None)
    server.poll(plain(0))
    own = PluginEnd(server, speculation=None)
    seen = []
    for number in range(1, 21):
        own.generate(30).tick()
        server.poll(plain(30 * number))
        seen.append(server.model().no_split)
    assert (seen[1], seen[-1]) == (NOT_COMPARED, None)
    assert server.temperature("0").tally.requests == 20
    assert engine(server).coverage == 1.0


def test_without_an_id_one_that_counts_otherwise_never_counts(nameless):
    """As a neighbour with other traffic, alone at the socket."""
    neighbour = PluginEnd(nameless, speculation=OTHER_WAY)
    for number in range(1, 200):
        neighbour.serve(drafts=7).tick()
        nameless.poll(snap(drafts=10 * number))
        assert shown(nameless) is None
    assert nameless.model().no_split.code is NoSplitReason.COUNTS_OTHERWISE
    assert (engine(nameless).speculation, engine(nameless).said) == (None, OTHER_WAY)


def test_a_stranger_that_left_before_it_agreed_is_in_no_sum(nameless):
    """Neither by what the own one counts, nor as what vLLM is ahead by."""
    stranger = PluginEnd(nameless, 1).serve(80, drafts=7).tick()
    nameless.poll(snap(drafts=0))
    stranger.close()
    own = PluginEnd(nameless, 2)
    for number in range(60):
        own.serve(drafts=10).tick()
        nameless.poll(snap(drafts=own.total.drafts + 4 + number % 5))
    assert shown(nameless) == 600


def test_an_engine_core_that_left_before_it_agreed_is_in_the_sum_if_just_its_counts_are_missing(
    nameless,
):
    """Two cores without an id, of which the first ended after a few drafts."""
    first = PluginEnd(nameless, 1).serve(drafts=26).tick()
    nameless.poll(first.counted())
    first.close()
    second = PluginEnd(nameless, 2, started=nameless.at + 0.1)
    for _ in range(60):
        second.serve(drafts=10).tick()
        nameless.poll(snap(drafts=26 + second.total.drafts))
    rest(nameless, second, 26)
    assert (shown(nameless), engine(nameless).coverage) == (626, 1.0)


def test_in_a_pause_after_traffic_a_core_that_left_after_one_draft_is_in_the_sum(nameless):
    """Its one draft is less than what may be under way in traffic; in a pause, nothing is."""
    first = PluginEnd(nameless, 1).serve(drafts=1).tick()
    nameless.poll(first.counted())
    first.close()
    second = PluginEnd(nameless, 2, started=nameless.at + 0.1)
    for _ in range(30):
        second.serve(drafts=10).tick()
        nameless.poll(snap(drafts=1 + second.total.drafts))
    assert shown(nameless) == 300
    for _ in range(4):
        nameless.poll(snap(drafts=301, is_idle=True))
    assert (shown(nameless), engine(nameless).coverage) == (301, 1.0)


def test_between_two_polls_within_a_report_s_period_what_is_under_way_is_no_stranger_s(nameless):
    """A stranger had told as many, and left: the first time nothing moved, it was in the sum.

    However long a step takes, it is not idle.
    """
    stranger = PluginEnd(nameless, 1).serve(80, drafts=4).tick()
    nameless.poll(snap(drafts=0))
    stranger.close()
    own = PluginEnd(nameless, 2)
    served(nameless, own, polls=30)
    for _ in range(30):  # the step after the one with these 4 takes ten seconds
        nameless.poll(snap(drafts=own.total.drafts + 4), seconds=0.3)
        assert shown(nameless) == 300
    own.serve(drafts=4).tick()
    nameless.poll(own.counted())
    assert (shown(nameless), engine(nameless).coverage) == (304, 1.0)


def test_a_stranger_that_left_hides_no_engine_core_whose_counts_are_just_what_is_missing(nameless):
    """As one of a vLLM whose restart no counter showed. The core's counts stayed out for good."""
    stranger = PluginEnd(nameless, 1).serve(80, drafts=7).tick()
    nameless.poll(snap(drafts=0))
    stranger.close()
    first = PluginEnd(nameless, 2, started=nameless.at).serve(drafts=26).tick()
    nameless.poll(first.counted())
    first.close()
    second = PluginEnd(nameless, 3, started=nameless.at)
    for _ in range(60):
        second.serve(drafts=10).tick()
        nameless.poll(snap(drafts=26 + second.total.drafts))
    rest(nameless, second, 26)
    assert (shown(nameless), engine(nameless).coverage) == (626, 1.0)


def test_of_two_that_left_and_told_alike_none_is_in_the_sum_if_one_s_counts_are_missing(nameless):
    """Nothing tells which of them it was, so coverage says that they are missing."""
    for connection, temperature in (1, 0), (2, 80):
        one = PluginEnd(nameless, connection).serve(temperature, drafts=26).tick()
        nameless.poll(snap(drafts=26))
        one.close()
    own = PluginEnd(nameless, 3, started=nameless.at)
    for _ in range(60):
        own.serve(drafts=10).tick()
        nameless.poll(snap(drafts=26 + own.total.drafts))
    rest(nameless, own, 26)
    assert (shown(nameless), engine(nameless).coverage) == (600, pytest.approx(600 / 626))


def test_a_life_of_the_vllm_before_is_not_taken_for_one_of_the_next_by_a_clock_set_back():
    """Its start was later than the last poll, and its counts were in the sum once."""
    server = Server(thresholds={"min_requests": 1}, server=None)
    old = PluginEnd(server, 1, started=server.at + 3600).serve(80, drafts=26).tick()
    server.poll(old.counted(), start=None)
    old.close()
    new = PluginEnd(server, 2)
    for _ in range(3):
        server.poll(snap(drafts=0), start=None)
    for _ in range(30):
        new.serve(drafts=10).tick()
        server.poll(new.counted(), start=None)
    for _ in range(5):
        server.poll(snap(drafts=new.total.drafts + 26), start=None)
    assert shown(server) == 300


@pytest.mark.parametrize("server_id", [OWN, slow(None)], ids=["by id", "by growth"])
def test_a_plug_in_that_misses_drafts_is_withheld_and_comes_back_when_it_has_them(
    server_id,
):
    """One of eleven is too few within two minutes. The last five minutes decide."""
    server = new_server(server_id)
    own = PluginEnd(server)
    missed, seen = 0, []
    for number in range(900):
        own.serve(drafts=10).tick()
        missed += 200 <= number < 400
        server.poll(snap(drafts=own.total.drafts + missed))
        seen.append(shown(server))

    withheld = [number for number, one in enumerate(seen) if one is None and number > 50]
    assert 280 < withheld[0] <= 330
    assert 550 < withheld[-1] <= 770
    assert withheld == list(range(withheld[0], withheld[-1] + 1)), "once"
    assert seen[-1] == 9000
    assert engine(server).coverage == pytest.approx(9000 / 9200, abs=0.002)


@IDS
def test_a_plug_in_that_falls_silent_is_withheld_and_back_with_its_next_report(server_id):
    server = new_server(server_id)
    own = PluginEnd(server)
    served(server, own, polls=30)
    for number in range(100):
        own.serve(drafts=10)
        server.poll(own.counted())
        if number < 30:
            assert shown(server) == 300
    assert server.model().no_split == NoSplit(NoSplitReason.SILENT, "0")
    served(server, own, polls=1)
    assert shown(server) == 1310


@pytest.mark.parametrize("server_id", [OWN, slow(None)], ids=["by id", "by growth"])
def test_a_single_late_report_and_a_burst_withhold_nothing(server_id):
    """The API server, the page and the report are never of one moment."""
    server = new_server(server_id)
    own = PluginEnd(server)
    served(server, own, polls=30)
    for number in range(200):
        own.serve(drafts=500 if number % 50 == 7 else 10)
        if number % 10 < 6:
            own.tick()
        server.poll(own.counted())
        assert server.model().no_split is None, number


def test_a_finished_request_waits_until_its_life_counts(nameless):
    own = PluginEnd(nameless)
    for number in range(20):
        own.finish()
        nameless.poll(own.counted())
        if number < 5:
            assert nameless.report().plugin.dropped["unconfirmed"] == 0
    assert nameless.temperature("0").acceptances.count == 20


"""Whose numbers are an engine's, where several processes use the socket or follow one another.

A life is confirmed by what vLLM itself counted, and no other says or changes anything.
"""


def test_a_hello_never_resets_what_vllm_s_own_counters_say():
    """Another configuration in a hello is no reason to begin a new window."""
    pod = Pod()
    pod.serve((0, 10, 6), polls=20)
    neighbour = PluginEnd(pod, 7, of="another", speculation=OTHER_WAY)
    for number in range(10):
        neighbour.hello(speculation=replace(OTHER_WAY, num_speculative_tokens=2 + number))
        pod.plugin.hello(speculation=replace(EAGLE, num_speculative_tokens=2 + number))
        pod.serve((0, 10, 6))

    assert pod.model().judgement.evidence.window.drafts == 300
    assert pod.temperature("0").window.drafts == 300
    assert pod.temperature("0").tally.drafts == 300


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


@pytest.mark.parametrize(
    ("hello", "renamed"),
    [
        ({"model": "served-name"}, (("served-name", "m"),)),
        ({"model": "served-name", "engine": 7}, ()),
        ({"model": "served-name", "of": "another"}, ()),
    ],
)
def test_a_plugin_whose_model_the_page_calls_otherwise_is_told_from_another_vllm_s(hello, renamed):
    """vLLM's Rust frontend exported the model's path before pull request 45465."""
    server = Server()
    plugin = PluginEnd(server, **hello)
    for drafts in range(1, 5):
        plugin.serve(drafts=10).tick()
        server.poll(snap(drafts=10 * drafts))

    report = server.report().plugin
    assert (report.state, report.renamed) == (PluginState.ELSEWHERE, renamed)
    assert server.model().temperatures == ()  # which of the two is right is not known


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


@pytest.mark.parametrize("server_id", [None, "an id"])
def test_the_id_on_vllms_page_tells_that_the_plug_in_is_loaded(server_id):
    server = new_server(server_id)
    server.poll(snap(drafts=0))

    assert server.report().plugin.is_loaded == (server_id is not None)
    server.poll(snap(drafts=0), start=None)  # of several processes: it may be an earlier start's
    assert not server.report().plugin.is_loaded


@IDS
def test_in_an_idle_engine_coverage_is_of_all_that_was_told_within_three_polls(server_id):
    """A page and a report had crossed: coverage lacked ten drafts for half a minute."""
    server = new_server(server_id)
    own = PluginEnd(server)
    served(server, own, polls=20)
    own.serve(drafts=10).tick()
    server.poll(snap(drafts=220))
    own.tick()
    own.serve(drafts=10).tick()
    for _ in range(3):
        server.poll(snap(drafts=220, is_idle=True))
    assert (shown(server), engine(server).coverage) == (220, 1.0)


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
    for _ in range(70):
        server.poll(snap(drafts=90))
    assert server.model().no_split == NoSplit(NoSplitReason.SILENT, "0")
    old.serve(drafts=40).tick()
    ends_and_another_begins(server, old, counted=90)

    assert (server.model().no_split, drafts(server)) == (None, 690)
    assert engine(server).coverage == 1.0


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
