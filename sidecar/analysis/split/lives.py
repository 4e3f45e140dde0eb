"""All lives of the plug-in that this sidecar has heard of, and which of them count.

This is the one place that decides it.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from sidecar.analysis.split.life import Life
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason, PluginReport, PluginState
from sidecar.analysis.split.trust import Standing
from sidecar.engine.identity import EngineKey
from sidecar.engine.names import SPECULATION
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.requests.messages import (
    Configuration,
    Dropped,
    FinishedRequest,
    Hello,
    HelloState,
    Message,
    ReportPart,
    Speculation,
    Unreadable,
)
from sidecar.requests.receiver import DROP_REASONS
from sidecar.requests.tally import NOTHING, Tally

OTHER_ENGINE: Final = "other_engine"  # the engine is not on this sidecar's page
UNCONFIRMED: Final = "unconfirmed"  # vLLM's counters contradict its sender
LOST: Final = "lost"  # the plug-in could not send it, because the sidecar was down or too slow
# more than is kept until the next poll or in a table, or of a model past limits.models
OVERFLOW: Final = "overflow"
_MOST_LIVES: Final = 64
_MOST_WAITING: Final = 8192  # finished requests, of all lives, that wait for the next poll


class Lives:
    """Keeps what every plug-in reports; bounded whatever is sent. Nothing is judged before a poll.

    A life is told apart by the plug-in's random ``start``, not by its connection. It counts once
    vLLM's own counters of its engine confirm a cut of it. If it left, or was replaced while its
    process of vLLM went on, it still counts.
    """

    def __init__(self, listening_since: float, lowest_coverage: float) -> None:
        """An engine that started after ``listening_since`` has been heard from its start.

        ``listening_since`` is in Unix seconds. A life whose coverage is below ``lowest_coverage``,
        or as far above 1, does not count.
        """
        self.lowest_coverage = lowest_coverage  # may be replaced between two polls
        self._since = listening_since
        self._lives: dict[str, Life] = {}  # by start
        self._connected: dict[int, Life] = {}
        # message formats that the sidecar cannot read, by connection
        self._unreadable: dict[int, int] = {}
        # engines that several have claimed, until vLLM restarts
        self._disputed: set[EngineKey] = set()
        # what vLLM counted of each engine on the last page
        self._counted: dict[EngineKey, Tally | None] = {}
        self._dropped = Counter(
            dict.fromkeys((*DROP_REASONS, OTHER_ENGINE, UNCONFIRMED, LOST, OVERFLOW), 0)
        )
        self._has_heard = False
        self._finished = 0

    # What plug-ins send

    def receive(self, connection: int, message: Message) -> None:
        """See ``PluginSink``."""
        life = self._connected.get(connection)
        match message:
            case Hello():
                self._hello(connection, message)
            case ReportPart() if life is not None:
                self._report(life, message)
            case Unreadable():
                self._has_heard = True
                self._unreadable[connection] = message.version
            case Dropped():
                self._dropped[message.reason] += 1
            case None:
                self._end(connection)

    def _hello(self, connection: int, hello: Hello) -> None:
        self._has_heard = True
        life = self._lives.get(hello.start)
        if life is None:
            self._make_room()
            life = self._lives[hello.start] = Life(hello, from_start=hello.started >= self._since)
        life.hello = hello
        life.is_over = life.is_over and life.confirmed is not None
        self._end(connection)
        life.connections.add(connection)
        self._connected[connection] = life

    def _report(self, life: Life, part: ReportPart) -> None:
        self._finished += len(part.finished)
        if not life.observes:  # it has said itself that it has nothing to report
            self._dropped[UNCONFIRMED] += max(len(part.finished), 1)
            return
        if life.is_over or self._is_elsewhere(life):
            self._dropped[OTHER_ENGINE] += max(len(part.finished), 1)
            # its tables are kept: it may still appear on the page
            part = replace(part, finished=())

        lost, is_first = life.lost, life.latest is None
        room = _MOST_WAITING - sum(one.waiting for one in self._lives.values())
        share = _MOST_WAITING // len(self._connected) - life.waiting  # no sender takes another's
        self._dropped[OVERFLOW] += life.receive(part, min(room, share))

        if life.from_start or not is_first:  # not what was lost before this sidecar was listening
            self._dropped[LOST] += life.lost - lost

    def _end(self, connection: int) -> None:
        self._unreadable.pop(connection, None)
        life = self._connected.pop(connection, None)
        if life is not None:
            life.connections.discard(connection)

    def _make_room(self) -> None:
        """Forgets a life if there are too many.

        One that counts goes last, and one that is connected never.
        """
        gone = [life for life in self._lives.values() if not life.connections]
        if len(self._lives) >= _MOST_LIVES and gone:
            # ``min`` returns the oldest of those that matter least.
            least = min(
                gone,
                key=lambda life: (
                    not life.is_over,
                    _has_drafted(life),
                    not self._is_elsewhere(life),
                ),
            )
            del self._lives[least.hello.start]

    # What vLLM says

    def polled(
        self, at: float, page: PageSnapshot, *, has_restarted: bool, reset: Collection[EngineKey]
    ) -> None:
        """Takes in a good poll's page: which engines there are, and what vLLM itself counted.

        ``has_restarted``: the page is from a different process than the last one. ``reset`` are the
        engines whose own counters have started again at 0 in the same process.
        """
        self._counted = {engine.key: _counted(engine) for engine in page.engines}
        if has_restarted:
            self._disputed.clear()

        for life in self._lives.values():
            # What was confirmed before is of the last process; its engine may outlive that, and
            # stay connected. But a page of that process that arrives late confirms a life of the
            # next one that has not drafted yet.
            is_new = not _has_drafted(life) and life.hello.started >= (page.process_start or inf)
            life.is_over |= has_restarted and (
                not life.connections or (life.confirmed is not None and not is_new)
            )
            life.is_before_reset |= life.key in reset and not life.connections

        for key, counted in self._counted.items():
            for life in self._current(key):
                self._judge(life, at, counted, self._of(key))
            # nobody knows which it is, even if one of them leaves
            if sum(map(_has_drafted, self._current(key))) > 1:
                self._disputed.add(key)

        if len(self._disputed) > _MOST_LIVES:  # a page that names other engines each time
            self._disputed &= self._counted.keys()

    def _judge(self, life: Life, at: float, counted: Tally | None, lives: Sequence[Life]) -> None:
        """Confirms the latest cut of one of an engine's ``lives`` if nothing contradicts it."""
        if life.latest is None or not life.observes:
            return
        if counted is not None:  # what the lives before it counted is in vLLM's counters, too
            left = [
                one
                for one in lives
                if one is not life and not one.connections and not one.is_before_reset
            ]
            counted -= sum(
                [one.confirmed.total for one in left if one.confirmed is not None], NOTHING
            )
        life.trust.compare(at, life.reports, life.latest.total, counted, 1 - self.lowest_coverage)
        if not life.is_consistent:
            life.trust.standing = Standing.DIFFERS
        if life.trust.standing is Standing.AGREES:
            life.confirmed = life.latest

    # What follows from both

    def counting(self, model_name: str) -> list[Life]:
        """The lives of a model that count, in the current process of vLLM.

        Those that have left are among them.
        """
        return [
            life
            for life in self._lives.values()
            if life.key.model_name == model_name and not life.is_over and life.confirmed is not None
            if life.key not in self._disputed
        ]

    def take_finished(self) -> list[tuple[EngineKey, list[FinishedRequest], list[FinishedRequest]]]:
        """The requests that finished since the last call, of lives that count.

        For each life: those of the first cut, and those after it.
        """
        taken = []
        for life in self._lives.values() if self._counted else ():
            if self._is_elsewhere(life):
                self._dropped[OTHER_ENGINE] += len(life.finished)
            elif life.trust.standing is Standing.DIFFERS or life.key in self._disputed:
                self._dropped[UNCONFIRMED] += len(life.finished)
            elif life.latest is life.confirmed:
                taken.append((life.key, life.finished[: life.early], life.finished[life.early :]))
            else:
                continue
            life.finished, life.early = [], 0

        current = [life for key in self._counted for life in self._current(key)]
        for life in self._lives.values() if self._counted else ():
            # its report will not be completed
            if life not in current and not self._is_elsewhere(life):
                self._dropped[UNCONFIRMED if life.confirmed is None else LOST] += life.abandon()
        return taken

    def leave_out(self, requests: int) -> None:
        """Counts ``requests`` finished requests as dropped, because their model has no state."""
        self._dropped[OVERFLOW] += requests

    def withheld(self, model_name: str) -> NoSplit | None:
        """Why the model must not be split with the plug-in's data; None if it may be."""
        engines = [key for key in self._counted if key.model_name == model_name]
        return next(
            (reason for key in engines if (reason := self._engine_withheld(key)) is not None), None
        )

    def _engine_withheld(self, key: EngineKey) -> NoSplit | None:
        current = self._current(key)
        holding = [
            life
            for life in current
            if life.confirmed and life.trust.standing is not Standing.DIFFERS
        ]
        if key in self._disputed:
            return NoSplit(NoSplitReason.SEVERAL_CLAIM, key.engine)
        for life in holding or current:
            if life.hello.state is HelloState.DISABLED:  # from then on its totals stand still
                return NoSplit(NoSplitReason.DISABLED, key.engine, life.hello.reason)
        return None if holding else self._why_none_holds(key, current)

    def _why_none_holds(self, key: EngineKey, current: Sequence[Life]) -> NoSplit | None:
        """The same for an engine none of whose ``current`` lives agrees with vLLM's counters."""
        counted = self._counted[key]
        if not current:
            if any(life.is_over and life.key == key for life in self._lives.values()):
                return NoSplit(NoSplitReason.RESTARTED_WITHOUT, key.engine)
            has_drafted = counted is not None and counted.drafts > 0
            is_missing = has_drafted and self.counting(key.model_name)
            return NoSplit(NoSplitReason.NOT_REPORTED, key.engine) if is_missing else None

        hello = current[-1].hello
        if not any(life.observes for life in current):
            return NoSplit(NoSplitReason(hello.state), key.engine, hello.reason, hello.vllm or "")

        differ = (life for life in current if life.trust.standing is Standing.DIFFERS)
        differing = next(differ, None)
        if differing is None:
            return NoSplit(NoSplitReason.NOT_COMPARED, key.engine)
        if not differing.is_consistent:
            return NoSplit(NoSplitReason.CONTRADICTS_ITSELF, key.engine)
        return NoSplit(NoSplitReason.COUNTS_OTHERWISE, key.engine, ratio=differing.trust.ratio)

    def coverage(self, key: EngineKey) -> float | None:
        """The engine's coverage; None if it is unknown.

        It is that of the life that counts, else of any that is compared. 0 if nothing of it can be
        used although vLLM's counters do not contradict it.
        """
        current = sorted(
            self._current(key), key=lambda life: life.trust.standing is Standing.DIFFERS
        )
        life = next((life for life in current if life.observes), None)
        if life is None or (life.is_consistent and key not in self._disputed):
            return None if life is None else life.trust.ratio
        return 0.0

    def hello(self, key: EngineKey) -> Hello | None:
        """How the engine is configured, as its plug-in says; None if none is connected."""
        connected = [life for life in self._current(key) if life.connections]
        known = [life for life in connected if life.confirmed is not None] or connected
        return known[-1].hello if known else None

    def speculation(self, key: EngineKey) -> Speculation | None:
        """How the engine drafts; None if it does not, or if no plug-in is connected."""
        hello = self.hello(key)
        return hello.speculation if hello is not None else None

    def configuration(self, key: EngineKey) -> Configuration:
        """The rest of the engine's configuration; all is unknown if no plug-in is connected."""
        hello = self.hello(key)
        return hello.configuration if hello is not None else Configuration()

    def _of(self, key: EngineKey) -> list[Life]:
        """The engine's lives in the current process of vLLM, the latest last."""
        return [life for life in self._lives.values() if life.key == key and not life.is_over]

    def _current(self, key: EngineKey) -> list[Life]:
        """Which of the lives in ``_of`` may be the engine's now.

        These are the connected ones, and the last confirmed one if none of the connected ones is.
        """
        lives = self._of(key)
        connected = [life for life in lives if life.connections]
        confirmed = [life for life in lives if life.confirmed is not None]
        if any(life in connected for life in confirmed):
            return connected
        return [*confirmed[-1:], *connected] or lives[-1:]

    def _is_elsewhere(self, life: Life) -> bool:
        """Whether this engine is not on the last page; False before the first one."""
        return bool(self._counted) and life.key not in self._counted

    def report(self, problem: str) -> PluginReport:
        """The current states.

        ``problem`` says why the socket cannot be opened; it is empty if the socket is open.
        """
        connected = [life for life in self._lives.values() if life.connections and not life.is_over]
        engines = tuple(life.report for life in connected)

        states = [engine.state for engine in engines] or [PluginState.NOT_CONNECTED]
        state = min(states, key=list(PluginState).index)
        unreadable = next(iter(self._unreadable.values()), None)
        if unreadable is not None:
            state = PluginState.OTHER_FORMAT

        return PluginReport(
            state=state,
            unreadable_format=unreadable,
            problem=problem,
            observed=len({life.key for life in connected if life.observes} & self._counted.keys()),
            expected=len(self._counted),
            heard=self._has_heard,
            engines=engines,
            events=self._finished,
            dropped=dict(self._dropped),
        )


def _has_drafted(life: Life) -> bool:
    """Whether vLLM's counters have confirmed drafts of it, even if they contradict it by now."""
    return life.confirmed is not None and life.confirmed.total.drafts > 0


def _counted(engine: EngineSnapshot) -> Tally | None:
    """What vLLM counted of an engine since it started; None if it does not export that."""
    if not engine.counters.keys() >= set(SPECULATION):
        return None
    drafts, draft_tokens, accepted_tokens = (
        int(engine.counters[counter]) for counter in SPECULATION
    )
    return Tally(drafts=drafts, draft_tokens=draft_tokens, accepted_tokens=accepted_tokens)
