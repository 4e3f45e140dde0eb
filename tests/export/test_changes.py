"""Log lines about vLLM and its plug-in."""

from sidecar.errors import TimedOut, Unreachable
from sidecar.export.changes import LoggedState
from sidecar.log import StateLog
from sidecar.requests.messages import HelloState
from sidecar.settings.baselines import Measured
from tests.analysis.analysis_tools import PluginEnd, Server, snap


class Logged(Server):
    """A vLLM whose log lines are kept: (level, event, fields)."""

    def __init__(self, **measured):
        super().__init__()
        self.lines = []
        self.sink = LoggedState(self.state, self, StateLog(self), Measured(**measured))

    def info(self, event, **fields):
        self.lines.append(("info", event, fields))

    def warning(self, event, **fields):
        self.lines.append(("warning", event, fields))

    def polls(self, count, *engines, **options):
        """The lines of so many polls."""
        self.lines.clear()
        for _ in range(count):
            self.poll(*engines, **options)
        return [(level, event) for level, event, _ in self.lines]

    def fails(self, count, error):
        self.lines.clear()
        for _ in range(count):
            self.fail(error)
        return [fields.get("reason") for _, _, fields in self.lines]


def test_only_changes_are_logged():
    log = Logged()
    assert log.polls(10, snap(drafts=5)) == [("info", "engine found")]
    assert log.fails(10, TimedOut("x")) == ["timeout"]
    assert log.fails(10, Unreachable("x")) == ["unreachable"]
    assert log.polls(10, snap(drafts=6)) == [("info", "vLLM responds again")]
    assert len(log.polls(10, snap(drafts=1), start=2.0)) == 1  # it restarted
    assert log.polls(10, snap(drafts=2), snap("1"), start=2.0) == [("info", "engine found")]


def test_a_baseline_of_other_models_is_logged_once():
    found, other = ("info", "engine found"), ("warning", "the baseline is of other models")
    log = Logged(baseline={"n": {}})
    assert log.polls(5, snap(drafts=5), snap("1")) == [found, other, found]
    assert log.lines[1][2] == {"model": "m", "measured": ["n"]}
    assert Logged(baseline={"m": {}}).polls(5, snap(drafts=5)) == [found]


def test_what_the_plugin_does_is_logged_when_it_changes():
    log = Logged()
    log.polls(20, snap())
    plugin = PluginEnd(log)
    plugin.serve().tick()
    assert log.polls(5, snap(drafts=10)) == [("info", "plug-in")]
    assert log.lines[0][2]["state"] == "observing"
    plugin.hello(state=HelloState.DISABLED, reason="KeyError")
    assert log.polls(5, snap(drafts=10)) == [("warning", "plug-in")]
    plugin.close()
    assert log.polls(5, snap(drafts=10)) == [("info", "plug-in")]
