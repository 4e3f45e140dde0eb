"""What the plug-ins in vLLM's engines report, and whether it agrees with vLLM's metrics."""

from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sidecar.analysis.coverage import Coverage
from sidecar.analysis.plugin_engine import PluginEngine
from sidecar.analysis.plugin_text import restarted_without, sentence, took_itself_out, worst
from sidecar.analysis.report import PluginEngineReport, PluginReport, PluginState
from sidecar.engine.names import Counter
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.requests.messages import Dropped, FinishedRequest, Hello, Message, Speculation, Tick, Unreadable
from sidecar.requests.receiver import DROP_REASONS

OTHER_ENGINE: Final = "other_engine"  # the engine is not on this sidecar's page
LOST: Final = "lost"  # the plug-in could not send it, because the sidecar was down or too slow
OVERFLOW: Final = "overflow"  # more than is kept until the next poll or in a table, or of a model past limits.models
_MOST_GONE: Final = 16  # engines that are remembered after their connection has ended
_MOST_WAITING: Final = 8192  # finished requests, of all engines, that wait for the next poll


class PluginStates:
    """Keeps what every engine says; bounded whatever is sent. Nothing is judged before a poll."""

    def __init__(self, listening_since: float, lowest_coverage: float) -> None:
        """``listening_since`` is in Unix seconds: an engine that started later has been heard from its start.

        If an engine's coverage is below ``lowest_coverage``, or as far above 1, its model is not split.
        """
        self.lowest_coverage = lowest_coverage  # may be replaced between two polls
        self._since = listening_since
        self._engines: dict[str, PluginEngine] = {}  # by start
        self._connected: dict[int, PluginEngine] = {}
        self._finished: list[tuple[PluginEngine, FinishedRequest]] = []
        self._unreadable: dict[int, int] = {}  # message formats that the sidecar cannot read, by connection
        self._coverage: dict[EngineKey, Coverage] = {}  # of the engines on the last page
        self._dropped: Tally[str] = Tally(dict.fromkeys((*DROP_REASONS, OTHER_ENGINE, LOST, OVERFLOW), 0))
        self._heard = False
        self._events = 0

    def heard(self, connection: int, message: Message) -> None:
        """See ``PluginSink``."""
        engine = self._connected.get(connection)
        match message:
            case Hello():
                self._hello(connection, message)
            case Tick() if engine is not None:
                self._tick(engine, message)
            case FinishedRequest() if engine is not None:
                self._request(engine, message)
            case Unreadable():
                self._heard = True
                self._unreadable[connection] = message.version
            case Dropped():
                self._dropped[message.reason] += 1
            case None:
                self._end(connection)

    def _hello(self, connection: int, hello: Hello) -> None:
        self._heard = True
        engine = self._engines.get(hello.start)
        if engine is None:
            self._make_room()
            engine = self._engines[hello.start] = PluginEngine(hello, whole=hello.started >= self._since)
        engine.hello, engine.is_over = hello, False
        self._end(connection)
        engine.connections.add(connection)
        self._connected[connection] = engine

    def _tick(self, engine: PluginEngine, tick: Tick) -> None:
        if self._is_elsewhere(engine):
            self._dropped[OTHER_ENGINE] += 1  # its totals are kept: it may still appear on the page
        lost, is_first = engine.lost, engine.total is None
        self._dropped[OVERFLOW] += engine.tick(tick)
        if engine.whole or not is_first:  # not what was lost before this sidecar was listening
            self._dropped[LOST] += engine.lost - lost

    def _request(self, engine: PluginEngine, request: FinishedRequest) -> None:
        self._events += 1
        if self._is_elsewhere(engine):
            self._dropped[OTHER_ENGINE] += 1
        elif len(self._finished) >= _MOST_WAITING:
            self._dropped[OVERFLOW] += 1
        else:
            self._finished.append((engine, request))

    def _end(self, connection: int) -> None:
        self._unreadable.pop(connection, None)
        engine = self._connected.pop(connection, None)
        if engine is not None:
            engine.connections.discard(connection)

    def polled(self, at: float, page: PageSnapshot, *, restarted: bool) -> None:
        """Takes in a good poll's page: which engines there are, and what vLLM itself counted.

        ``restarted``: the page is from a different process than the last one.
        """
        self._coverage = {engine.key: self._coverage.get(engine.key, Coverage()) for engine in page.engines}
        for engine in page.engines:
            counted = engine.counters.get(Counter.DRAFT_TOKENS)
            if restarted:
                self._coverage[engine.key] = Coverage()
                for one in self._lives(engine.key):
                    one.is_over = not one.connections
            counting = [one for one in self._lives(engine.key) if one.drafted is not None]
            # If two connected plug-ins claim to be the same engine, their sum is more than vLLM counted.
            live = [one for one in counting if one.connections] or counting[-1:]
            if live and counted is not None:
                drafted, in_flight = sum(one.drafted or 0 for one in live), sum(one.tick_growth for one in live)
                self._coverage[engine.key].compare(at, counted, drafted, in_flight)
            else:
                self._coverage[engine.key].ratio = None

    def _lives(self, key: EngineKey) -> list[PluginEngine]:
        """The engine's lives in the current process of vLLM, the latest last."""
        return [engine for shown, engine in self.on_page() if shown == key and not engine.is_over]

    def take_finished(self) -> dict[str, list[FinishedRequest]]:
        """The requests that finished since the last call, by model."""
        if not self._coverage:
            return {}
        waiting, self._finished = self._finished, []
        found: dict[str, list[FinishedRequest]] = {}
        for engine, request in waiting:
            if self._is_elsewhere(engine):
                self._dropped[OTHER_ENGINE] += 1
            else:
                found.setdefault(self.key(engine).model_name, []).append(request)
        return found

    def left_out(self, requests: int) -> None:
        """Counts ``requests`` finished requests as dropped, because their model has no state."""
        self._dropped[OVERFLOW] += requests

    def on_page(self) -> Iterator[tuple[EngineKey, PluginEngine]]:
        """The engines of the last page, with the key under which vLLM shows each."""
        for engine in list(self._engines.values()):
            if (key := self.key(engine)) in self._coverage:
                yield key, engine

    def key(self, engine: PluginEngine) -> EngineKey:
        """The engine as vLLM's page names it."""
        return EngineKey(engine.hello.model or "", str(engine.hello.engine))

    def coverage(self, key: EngineKey) -> float | None:
        """The engine's coverage; None if it is unknown."""
        return self._coverage[key].ratio if key in self._coverage else None

    def speculation(self, key: EngineKey) -> Speculation | None:
        """How the engine drafts; None if it does not, or if no plug-in is connected."""
        found = [engine.hello.speculation for engine in self._lives(key) if engine.connections]
        return found[-1] if found else None

    def withheld(self, model_name: str) -> str:
        """Why the model must not be split with the plug-in's data, as text; empty if it may be."""
        for key, coverage in self._coverage.items():
            if key.model_name != model_name:
                continue
            lives = self._lives(key)
            if lives and lives[-1].disabled is not None:  # from then on its totals stand still
                return took_itself_out(key.engine, lives[-1].disabled)
            had_another = any(shown == key and one.is_over for shown, one in self.on_page())
            if had_another and not any(one.counts for one in lives):
                return restarted_without(key.engine)
            if not coverage.holds(self.lowest_coverage):
                return (
                    f"There is no split by temperature: on engine {key.engine} the plug-in counted "
                    f"{coverage.ratio or 0:.1%} of vLLM's draft tokens. "
                    "To find out why, run `python -m specdec_plugin` in vLLM's container."
                )
        return ""

    def report(self, problem: str) -> PluginReport:
        """The current states; ``problem`` says why the socket cannot be opened, empty if it is open."""
        engines = [(self.key(one), one) for one in self._engines.values() if one.connections]
        reports = tuple(_engine_report(key, one) for key, one in engines)
        observed = {key for key, one in engines if one.observes and key in self._coverage}
        found = PluginReport(
            state=worst([one.state for one in reports], has_unreadable=bool(self._unreadable)),
            text="",
            observed=len(observed),
            expected=len(self._coverage),
            heard=self._heard,
            engines=reports,
            events=self._events,
            dropped=dict(self._dropped),
        )
        return replace(found, text=sentence(found, list(self._unreadable.values()), problem))

    def _is_elsewhere(self, engine: PluginEngine) -> bool:
        """Whether this engine is not on the last page; False before the first one."""
        return bool(self._coverage) and self.key(engine) not in self._coverage

    def _make_room(self) -> None:
        gone = [start for start, one in self._engines.items() if not one.connections]
        for start in gone[: max(len(gone) - _MOST_GONE, 0)]:
            del self._engines[start]


def _engine_report(key: EngineKey, engine: PluginEngine) -> PluginEngineReport:
    state = PluginState(engine.hello.state)
    idle = state is PluginState.OBSERVING and not (engine.total and engine.total.drafts)
    return PluginEngineReport(
        model_name=key.model_name,
        engine=key.engine,
        version=engine.hello.plugin,
        vllm_version=engine.hello.vllm or "",
        state=PluginState.IDLE if idle else state,
        reason=engine.hello.reason,
    )
