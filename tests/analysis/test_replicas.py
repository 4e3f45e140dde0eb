"""Which engine of the page a plug-in is in, where the page names engines by their replica.

A plug-in says the number that vLLM itself gives its engine. Taken for the engine's name, it was on
no page of a Ray node: the split was missing, and the plug-in was said to be another vLLM's.
"""

import pytest

from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginState
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.snapshot import SnapshotReader
from tests.analysis.analysis_tools import PluginEnd, Server
from tests.engine.engine_tools import page_reader


class RayNode:
    """A Ray node's page of ``replicas``, each of which has drafted so often."""

    def __init__(self):
        self.server = Server(thresholds={"min_requests": 1})
        self._pages = page_reader()
        self._snapshots = SnapshotReader()

    def page(self, **replicas):
        lines = []
        for replica, drafts in replicas.items():
            labels = (
                f'{{Component="core_worker",NodeAddress="10.0.0.1",ReplicaId="{replica}",'
                f'WorkerId="w-{replica}",engine="0",model_name="m"}}'
            )
            counted = {"drafts": drafts, "draft_tokens": 3 * drafts, "accepted_tokens": 2 * drafts}
            lines += [
                f"ray_vllm_spec_decode_num_{name}_total{labels} {number}"
                for name, number in counted.items()
            ]
            lines.append(f"ray_vllm_num_requests_running{labels} 1")
        body = "".join(f"{line}\n" for line in lines).encode()
        return self._snapshots.read(self._pages.read(body))

    def poll(self, **replicas):
        self.server.at += 1.0
        self.server.sink.scraped(self.server.at, 0.005, 1.0, self.page(**replicas))
        return self.server.report()


@pytest.fixture
def node():
    return RayNode()


def drafts(node):
    return node.server.temperature("0").tally.drafts


def serve(node, plugin, polls=12, others=()):
    """The plug-in in the replica "aaa" reports before each poll; ``others`` draft, too."""
    for number in range(polls):
        plugin.serve(drafts=50).tick()
        node.poll(aaa=plugin.total.drafts, **dict.fromkeys(others, 7000 + number))


@pytest.mark.parametrize("says_hello_first", [True, False])
def test_a_plug_in_is_in_the_only_replica_that_has_its_number(node, says_hello_first):
    """The plug-in does not know its replica's name, which only the page has."""
    if says_hello_first:
        plugin = PluginEnd(node.server)
        node.poll(aaa=0)
    else:
        node.poll(aaa=0)
        plugin = PluginEnd(node.server)
    serve(node, plugin)

    assert (drafts(node), node.server.model().no_split) == (600, None)
    shown = node.server.report().plugin
    assert (shown.state, shown.observed) == (PluginState.OBSERVING, 1)
    assert [engine.engine for engine in shown.engines] == ["0@aaa"], "as on vLLM's page"
    assert node.server.engines()[EngineKey("m", "0@aaa")].coverage == 1.0


def test_a_plug_in_that_is_known_stays_in_its_replica_when_others_come_and_it_leaves(node):
    """It does not move to another replica of the same number."""
    plugin = PluginEnd(node.server)
    serve(node, plugin)
    serve(node, plugin, polls=40, others=["bbb"])
    assert (drafts(node), node.server.model().no_split) == (2600, None)

    node.poll(bbb=7100)
    plugin_in_bbb = node.server.state.plugin.view.engine(EngineKey("m", "0@bbb"))
    assert (plugin_in_bbb.senders, plugin_in_bbb.confirmed) == (0, None)


def test_a_plug_in_that_may_be_in_either_of_two_replicas_is_in_none_and_the_report_says_so(node):
    plugin = PluginEnd(node.server)
    serve(node, plugin, others=["bbb"])

    shown = node.server.report().plugin
    assert (shown.state, shown.elsewhere) == (PluginState.ELSEWHERE, 1)
    assert shown.replicas == (EngineKey("m", "0@aaa"), EngineKey("m", "0@bbb"))
    assert node.server.model().no_split == NoSplit(NoSplitReason.NOT_CONNECTED)

    serve(node, plugin)
    assert drafts(node) == 1200, "once only one is left"
