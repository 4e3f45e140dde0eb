"""Log lines about one server."""

from sidecar.analysis.engine_state import Lookback
from sidecar.analysis.target_log import LoggedTarget
from sidecar.analysis.target_state import TargetState
from sidecar.engine.names import Trait
from sidecar.errors import TimedOut, Unreachable
from sidecar.log import StateLog
from tests.analysis.analysis_tools import page, snap


class Lines:
    """A log that keeps (level, event, fields)."""

    def __init__(self):
        self.lines = []

    def info(self, event, **fields):
        self.lines.append(("info", event, fields))

    def warning(self, event, **fields):
        self.lines.append(("warning", event, fields))


def test_only_changes_are_logged():
    log = Lines()
    sink = LoggedTarget(TargetState("t", Lookback(), interval=1.0, max_engines=1), log, StateLog(log))
    at = 0.0

    def polls(count, *engines, **options):
        nonlocal at
        log.lines.clear()
        for _ in range(count):
            at += 1
            sink.scraped(at, 0.005, 1.0, page(*engines, **options))
        return [(level, event) for level, event, _ in log.lines]

    def fails(count, error):
        nonlocal at
        log.lines.clear()
        for _ in range(count):
            at += 1
            sink.failed(at, error)
        return [fields.get("reason") for _, _, fields in log.lines]

    assert len(polls(10, snap(drafts=5))) == 1  # the engine was found
    assert fails(10, TimedOut("x")) == ["timeout"]
    assert fails(10, Unreachable("x")) == ["unreachable"]
    assert len(polls(10, snap(drafts=6))) == 1  # it answers again
    assert len(polls(10, snap(drafts=1), start=2.0)) == 1  # it restarted
    assert len(polls(10, snap(drafts=2), start=2.0, malformed=3)) == 1
    assert len(polls(10, snap(drafts=2), snap("1"), start=2.0)) >= 1
    assert polls(10, snap(drafts=2), snap("1"), start=2.0) == []


def test_v0_is_warned_of_once():
    log = Lines()
    sink = LoggedTarget(TargetState("t", Lookback(), interval=1.0, max_engines=1), log, StateLog(log))
    for at in range(5):
        sink.scraped(float(at), 0.005, 1.0, page(snap(counters={}, traits=[Trait.OVERCOUNTED])))
    warned = [fields for level, _, fields in log.lines if level == "warning"]
    assert [fields["limitation"] for fields in warned] == ["v0_counters"]
