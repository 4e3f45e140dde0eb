"""All lives of the plug-in that this sidecar has heard of, and which of them count.

``standing.py`` has the states of a life; a poll's ``LivesView`` has the result.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sidecar.analysis.overlong import longest_length
from sidecar.analysis.split.comparison import Compared, Comparison, Totals, sum_of
from sidecar.analysis.split.engine_lives import EngineLives
from sidecar.analysis.split.growth import ENOUGH
from sidecar.analysis.split.life import Life
from sidecar.analysis.split.plugin_state import (
    NoSplit,
    NoSplitReason,
    PluginEngineReport,
    PluginReport,
    PluginState,
    plugin_state,
)
from sidecar.analysis.split.standing import UNTRUE, Event, Standing
from sidecar.analysis.split.view import CountedLife, EngineView, FinishedRequests, LivesView
from sidecar.engine import names
from sidecar.engine.engine_key import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.requests.messages import Dropped, Hello, Message, ReportPart, Unreadable
from sidecar.requests.receiver import DROP_REASONS

OTHER_ENGINE: Final = "other_engine"  # the server or the engine is not on this sidecar's page
UNCONFIRMED: Final = "unconfirmed"  # its sender does not count
LOST: Final = "lost"  # the plug-in could not send it, because the sidecar was down or too slow
# more than is kept until the next poll or in a table, or of a model past limits.models
OVERFLOW: Final = "overflow"
_UNREACHED_AFTER: Final = 30.0  # seconds in which an engine drafts and does not connect
_MOST_LIVES: Final = 64
# Bytes of the cells of all lives. Half is for those that count, half for all others, so that no
# sender takes the room of an engine's own plug-in.
MOST_CELL_BYTES: Final = 48 * 2**20
# What the cells of one packet may take, in bytes: about 600 cells with tokens by position.
_MOST_PART_BYTES: Final = 2 * 2**20
# Bytes of the finished requests of all lives that wait for the next poll: some 8,000.
MOST_WAITING_BYTES: Final = 8 * 2**20
# seconds of traffic after which a plug-in that vLLM has loaded would have connected
_CONNECTS_WITHIN: Final = 5.0
_COUNTERS: Final = {
    names.Counter.DRAFTS: Compared.DRAFTS,
    names.Counter.DRAFT_TOKENS: Compared.DRAFT_TOKENS,
    names.Counter.ACCEPTED_TOKENS: Compared.ACCEPTED_TOKENS,
    names.Counter.GENERATION_TOKENS: Compared.GENERATION_TOKENS,
}


@dataclass(frozen=True, slots=True)
class _Younger:
    """All that was told of an engine when vLLM's counters began, and each life's part of it."""

    whole: Comparison
    told: Mapping[str, Totals]  # by the life's ``start``


class Lives:
    """Keeps what every plug-in reports; bounded whatever is sent. Nothing is judged before a poll.

    A life is told apart by the plug-in's random ``start``, not by its connection. Whose it is, the
    id of its server says, which is on vLLM's page, too; where one of them has none, its growth
    does. If it left, or was replaced while its vLLM went on, it still counts.
    """

    def __init__(self, listening_since: float, lowest_coverage: float) -> None:
        """An engine that started after ``listening_since`` has been heard from its start.

        ``listening_since`` is in Unix seconds. A life whose growth is below ``lowest_coverage`` of
        vLLM's, or as far above 1, does not count.
        """
        self.lowest_coverage = lowest_coverage  # may be replaced between two polls
        self.view = LivesView()  # as of the last good poll
        self._since = listening_since

        self._lives: dict[str, Life] = {}  # by start
        self._connected: dict[int, Life] = {}
        # message formats that the sidecar cannot read, by connection
        self._unreadable: dict[int, int] = {}

        self._page: PageSnapshot | None = None  # the last one
        # what vLLM counted of each engine on it
        self._counted: dict[EngineKey, Totals] = {}
        self._idle: set[EngineKey] = set()  # those on it that run nothing, and nothing waits
        # Engines of which vLLM's counters are younger than what was told: both, as of then.
        self._younger: dict[EngineKey, _Younger] = {}
        # engines that draft without a plug-in beside others with one: the first poll that saw it
        self._unheard: dict[EngineKey, float] = {}
        self._out_of_reach: set[EngineKey] = set()  # as on another node: no part of the split

        self._dropped = dict.fromkeys(
            (*sorted(DROP_REASONS), OTHER_ENGINE, UNCONFIRMED, LOST, OVERFLOW), 0
        )
        self._has_heard = False
        self._unheard_since: float | None = None  # when vLLM first served a request unheard
        self._polls = 0  # that have ended
        self._polled_at = 0.0
        self._latest_poll = 0.0  # by the clock, which may have been set back since
        self._finished = 0
        self._seen = self._look()

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
            life = self._begin(hello)
            self._lives[hello.start] = life

        life.hello = hello
        life.heard_after = self._polls
        if self._connected.get(connection) is not life:
            self._end(connection)
        life.forget_arriving()
        life.connections.add(connection)
        self._connected[connection] = life
        life.follow(Event.RETURNED)

        alike = [one for one in self._connected.values() if one.key == life.key]
        if len(alike) > 1:
            for one in alike:
                one.was_one_of_several = True

    def _begin(self, hello: Hello) -> Life:
        """A life that is new to this sidecar."""
        life = Life(hello, from_start=hello.started >= self._since)
        if self._page is not None:
            life.key = self._page.key_of(*life.named)
        return life

    def _report(self, life: Life, part: ReportPart) -> None:
        self._finished += len(part.finished)
        if not life.observes:  # it has said itself that it has nothing to report
            self._dropped[UNCONFIRMED] += max(len(part.finished), 1)
            return

        if self._is_elsewhere(life):
            self._dropped[OTHER_ENGINE] += max(len(part.finished), 1)
            # its cells are kept: it may still appear on the page
            part = replace(part, finished=())

        lost = life.lost
        is_first = life.latest is None
        self._dropped[OVERFLOW] += life.receive(
            part, room=self._room(life), request_room=self._request_room(life)
        )
        if life.from_start or not is_first:  # not what was lost before this sidecar was listening
            self._dropped[LOST] += life.lost - lost

    def _room(self, life: Life) -> int:
        """How many bytes more a life's cells may take: its share, as no sender takes another's.

        Where little is left, lives that have left and do not count are forgotten.
        """
        counts = life.standing is Standing.COUNTS
        alike = [one for one in self._lives.values() if (one.standing is Standing.COUNTS) is counts]
        connected = sum(bool(one.connections) for one in alike)
        share = MOST_CELL_BYTES // 2 // max(connected, 1) - life.size
        left = MOST_CELL_BYTES // 2 - sum(one.size for one in alike)
        for one in alike:
            if left >= min(share, _MOST_PART_BYTES):
                break
            if one.confirmed is None and not one.connections:
                left += one.size
                one.forget_cells()

        return min(left, share)

    def _request_room(self, life: Life) -> int:
        """The same of its finished requests."""
        left = MOST_WAITING_BYTES - sum(one.waiting_size for one in self._lives.values())
        share = MOST_WAITING_BYTES // max(len(self._connected), 1) - life.waiting_size
        return min(left, share)

    def _end(self, connection: int) -> None:
        self._unreadable.pop(connection, None)
        life = self._connected.pop(connection, None)
        if life is None:
            return
        life.connections.discard(connection)
        if not life.connections:
            life.forget_unsettled()
            if life.standing is Standing.ELSEWHERE:
                life.rest()

    def _make_room(self) -> None:
        """Forgets a life if there are too many.

        One that counts goes last, and one that is connected never.
        """
        gone = [life for life in self._lives.values() if not life.connections]
        if len(self._lives) < _MOST_LIVES or not gone:
            return

        # ``min`` returns the oldest of those that matter least.
        least = min(
            gone,
            key=lambda life: (
                life.confirmed is not None and not life.is_blank,
                not self._is_elsewhere(life),
            ),
        )
        del self._lives[least.hello.start]

    # What vLLM says

    def polled(
        self, at: float, page: PageSnapshot, *, has_restarted: bool, reset: Collection[EngineKey]
    ) -> LivesView:
        """Takes in a good poll's page: which engines there are, and what vLLM itself counted.

        ``has_restarted``: the page is from a different process than the last one. ``reset`` are the
        engines whose own counters have started again at 0 in the same process.
        """
        before = self._counted
        self._page = page
        self._counted = {engine.key: _counted(engine) for engine in page.engines}
        self._idle = {engine.key for engine in page.engines if _is_idle(engine)}
        self._note_traffic(at, before)
        if has_restarted:
            self._younger.clear()
            self._unheard.clear()
            self._out_of_reach.clear()

        self._find_engines(page)
        self._identify(has_restarted=has_restarted)
        self._note_out_of_reach(at, before)

        engines = {key: self._engine(key) for key in self._counted}
        for key, engine in engines.items():
            self._compare(engine, at, is_anew=key in reset)
            self._let_count(engine)

        self._younger = {key: self._younger[key] for key in self._younger if key in engines}
        lives = self._count_lives()
        self.view = LivesView(
            engines=self._view_engines(at), lives=lives, finished=tuple(self._take_finished())
        )
        for life in self._lives.values():
            life.was_polled = True
        self._polls += 1
        self._polled_at = at
        self._latest_poll = max(self._latest_poll, at)
        self._seen = self._look()
        return self.view

    def missed(self) -> None:
        """A poll has failed: only which plug-ins are connected may be another."""
        self._polls += 1
        self._seen = self._look()

    def _find_engines(self, page: PageSnapshot) -> None:
        """Finds the engine of each life on the page; one that counts stays what it was.

        A page that shows replicas names more of an engine than its number, which is all that a
        plug-in knows.
        """
        for life in self._lives.values():
            if not life.has_counted:
                life.key = page.key_of(*life.named)

    def _identify(self, *, has_restarted: bool) -> None:
        """Tells this vLLM's lives from others: by their ids, and by its restart."""
        identified = {life.key for life in self._lives.values() if self._is_ours(life)}
        for life in self._lives.values():
            is_ours = self._is_ours(life)
            is_anothers = is_ours is False or (life.hello.server is None and life.key in identified)
            # A page that was asked for before the hello may be of the vLLM before.
            is_late = life.heard_after >= self._polls and not has_restarted
            if is_anothers and (life.key in identified or not is_late):
                life.follow(Event.IS_ANOTHERS)
            elif has_restarted and not is_anothers:
                self._restart(life)
            if is_ours and life.connections:
                life.follow(Event.RETURNED)

        for key in identified:
            engine = self._engine(key)
            alone = None if engine.has_several else next(iter(engine.connected), None)
            for life in engine.lives:
                # Of several that have left, nothing tells which one had copied the id.
                is_own = life is alone or not life.was_one_of_several
                if is_own and self._is_ours(life):
                    life.follow(Event.IS_OURS)

    def _is_ours(self, life: Life) -> bool | None:
        """Whether the page is of the life's server; None if the page or its hello has no id."""
        servers = self._page.servers if self._page is not None else frozenset()
        if not servers or life.hello.server is None:
            return None
        return life.hello.server in servers

    def _restart(self, life: Life) -> None:
        """Another process of vLLM has taken the place of the last one, or made all counters anew.

        What is connected may be of either.
        """
        # While the counters were in doubt, one of the new process may have come and gone. Its start
        # alone does not tell, as a clock may have been set back since an older one began.
        is_new = life.hello.started >= self._latest_poll and not life.was_polled
        if not (life.connections or is_new):
            life.follow(Event.ENDED)
            return

        life.follow(Event.RESTARTED)
        life.begin_growth()

    def _note_traffic(self, at: float, before: dict[EngineKey, Totals]) -> None:
        """Notes when vLLM has served requests for the first time since this sidecar listens."""
        if self._unheard_since is not None or self._has_heard:
            return
        for key, counted in self._counted.items():
            known = before.get(key, counted)
            if any(number > known.get(name, number) for name, number in counted.items()):
                self._unheard_since = at
                return

    def _note_out_of_reach(self, at: float, before: dict[EngineKey, Totals]) -> None:
        """Notes engines whose plug-in would have connected by now if it could.

        From then on the others have a split without them. If one connects later all the same, what
        it had counted would look like growth, so it stays out until vLLM restarts.
        """
        over = self._ended()
        split = self._split_models()
        unheard: dict[EngineKey, float] = {}
        for key, counted in self._counted.items():
            if self._of(key) or key in over or key.model_name not in split:
                continue
            drafts = counted.get(Compared.DRAFTS, 0)
            has_grown = key in before and drafts > before[key].get(Compared.DRAFTS, drafts)
            if key in self._unheard or has_grown:
                unheard[key] = self._unheard.get(key, at)
                if at - unheard[key] >= _UNREACHED_AFTER and has_grown:
                    self._out_of_reach.add(key)

        self._unheard = unheard
        self._out_of_reach &= self._counted.keys()

    def _split_models(self) -> set[str]:
        """The models of which any engine is part of the split."""
        return {
            life.key.model_name
            for life in self._lives.values()
            if life.has_counted and life.standing is not Standing.ELSEWHERE
        }

    def _ended(self) -> set[EngineKey]:
        """The engines that counted in an earlier vLLM."""
        return {
            life.key
            for life in self._lives.values()
            if life.has_counted and life.standing is Standing.ELSEWHERE
        }

    def _compare(self, engine: EngineLives, at: float, *, is_anew: bool) -> None:
        """Compares what the engine's lives tell with what vLLM has counted of it.

        Only the current one's growth: of one that has left, what vLLM counts may be another one's.
        ``is_anew``: vLLM has made its counters anew in the same process.
        """
        counted = self._counted[engine.key]
        tolerance = 1 - self.lowest_coverage
        for life in engine.lives:
            if life.hello.started > at and life.from_start and life.growth.so_far is None:
                life.forget_start()  # the clock was set back: when it began is not known
                life.begin_growth()
            if is_anew:
                life.growth.restart_counters()
            if not life.is_consistent:
                life.follow(Event.CONTRADICTED)

            is_compared = life is engine.current or life in engine.connected
            if not is_compared or life.latest is None or not life.observes:
                continue

            event = life.growth.poll(
                at,
                counted,
                tolerance,
                is_connected=bool(life.connections),
                is_idle=engine.key in self._idle,
                standing=life.standing,
            )
            if engine.has_several and life.standing is Standing.WAITS:
                life.growth.begin_again()
                continue

            if event is not None:
                life.follow(event)

        self._find_exact(engine, tolerance)
        self._drop_replaced(engine, tolerance)
        self._note_younger(engine, is_anew=is_anew)

    def _find_exact(self, engine: EngineLives, tolerance: float) -> None:
        """Confirms lives without an id that told just what vLLM has beyond the engine's others.

        Their growth alone says too little, as of one that has left after a few requests. Of the
        others, either all told what vLLM has, or those that are known to: one that was a stranger
        hides no other.
        """
        current = engine.current
        if current is None or not current.connections:
            return
        now = current.growth.now
        if now is None:
            return

        known = [
            life for life in engine.lives if life.has_counted or life.standing is Standing.COUNTS
        ]
        exact = self._exact(engine, engine.lives, now, tolerance)
        if not exact:
            exact = self._exact(engine, known, now, tolerance)
            if len(exact) > 1:  # nothing tells which of them it was
                return
        for life in exact:
            life.follow(Event.AGREED)
            life.growth.begin_again()

    def _exact(
        self, engine: EngineLives, others: Iterable[Life], now: Comparison, tolerance: float
    ) -> list[Life]:
        """Those that told just what vLLM has beyond the ``others`` and the current one."""
        current = engine.current
        exact = []
        for life in engine.lives:
            is_open = life.standing is Standing.WAITS and self._is_ours(life) is None
            if not is_open or life.latest is None or not life.observes:
                continue
            rest = now.less(
                sum_of(
                    one.latest.totals
                    for one in others
                    if one.latest is not None and one is not life and one is not current
                )
            )
            if life is not current:
                rest = rest.beside(life.latest.totals)
            # A neighbour may happen to have drafted just as few times.
            is_enough = life is not current or rest.traffic >= ENOUGH
            is_exact = rest.is_known_within(tolerance) and not rest.is_outside(tolerance)
            if is_enough and is_exact and rest.traffic:
                exact.append(life)
        return exact

    def _drop_replaced(self, engine: EngineLives, tolerance: float) -> None:
        """Drops lives that may be wrong and have left, once another one is connected.

        Nothing can tell about them any more. One of several may have copied the engine's id, and
        counted while it was alone; one did if together they told more than vLLM has counted.
        """
        current = engine.current
        left = [life for life in engine.lives if not life.connections]
        if current is None or not current.connections or not left:
            return

        whole = self._since_younger(engine)
        is_too_much = whole is not None and whole.is_above(tolerance)
        for life in left:
            is_in_doubt = is_too_much and life.was_one_of_several
            if is_in_doubt or life.standing in UNTRUE:
                life.follow(Event.REPLACED)
                self._leave_out_of_younger(engine.key, life)

    def _leave_out_of_younger(self, key: EngineKey, life: Life) -> None:
        """What a dropped life had told by then is no longer part of the whole, either."""
        younger = self._younger.get(key)
        told = younger.told.get(life.hello.start) if younger is not None else None
        if younger is None or told is None:
            return

        left = {start: totals for start, totals in younger.told.items() if totals is not told}
        less = {name: -number for name, number in told.items()}
        self._younger[key] = _Younger(younger.whole.plus(less), left)

    def _let_count(self, engine: EngineLives) -> None:
        """The latest cut of each life that counts is part of the split, unless several claim it."""
        if engine.has_several:
            return
        for life in engine.lives:
            counts = life.standing is Standing.COUNTS
            has_left = life.standing is Standing.SILENT and not life.connections
            if (counts or has_left) and life.observes and life.latest is not None:
                life.confirmed = life.latest

    def _note_younger(self, engine: EngineLives, *, is_anew: bool) -> None:
        """Notes where vLLM's counters are younger than the lives: coverage is told from then on.

        They were made anew, or a life from before this sidecar listened has told more than they
        have.
        """
        new = [
            life
            for life in engine.lives
            if life.standing is Standing.COUNTS and not (life.has_counted or life.from_start)
        ]
        since = self._since_younger(engine)
        whole = self._whole(engine)
        if since is None or whole is None:
            return
        if is_anew or (new and since.is_above(1 - self.lowest_coverage)):
            told = {
                life.hello.start: life.latest.totals
                for life in engine.lives
                if life.latest is not None and (life.has_counted or life is engine.current)
            }
            self._younger[engine.key] = _Younger(whole, told)

    def _since_younger(self, engine: EngineLives) -> Comparison | None:
        """``_whole`` or, where vLLM's counters are younger, its growth since then."""
        whole = self._whole(engine)
        younger = self._younger.get(engine.key)
        return whole if whole is None or younger is None else whole.since(younger.whole)

    def _whole(self, engine: EngineLives) -> Comparison | None:
        """All that the engine's lives have told beside all that vLLM has counted of it."""
        current = engine.current
        if current is None or not current.observes:
            return None
        now = current.growth.now or current.growth.so_far
        if now is None:
            return None

        others = [
            life.latest.totals
            for life in engine.lives
            if life.has_counted and life is not current and life.latest is not None
        ]
        return now.plus(sum_of(others)) if others else now

    def _coverage(self, engine: EngineLives) -> float | None:
        """What the engine's lives have told ÷ vLLM's counters; 0 if none of it is in the split.

        None if they have told nothing.
        """
        is_left_out = bool(engine.lives) and engine.key in self._out_of_reach
        if engine.has_several or is_left_out:
            return 0.0

        whole = self._since_younger(engine)
        if whole is None:
            return None
        is_broken = engine.current is not None and engine.current.standing is Standing.BROKEN
        return 0.0 if is_broken else whole.ratio

    # What follows from both

    def _count_lives(self) -> tuple[CountedLife, ...]:
        """Those that are part of the split, as of now."""
        counted = []
        for life in self._lives.values():
            if life.confirmed is None or life.first is None or life.key in self._out_of_reach:
                continue
            life.has_counted = True
            counted.append(
                CountedLife(
                    start=life.hello.start,
                    key=life.key,
                    began=life.hello.started if life.from_start else None,
                    first=life.first,
                    cut=life.confirmed,
                    steps=life.take_steps(),
                )
            )

        return tuple(counted)

    def _take_finished(self) -> Iterator[FinishedRequests]:
        """The requests that finished since the last poll, of lives that count."""
        for life in self._lives.values():
            if self._is_elsewhere(life) or life.key in self._out_of_reach:
                self._dropped[OTHER_ENGINE] += life.abandon_requests()
            elif life.standing in UNTRUE or self._engine(life.key).has_several:
                self._dropped[UNCONFIRMED] += life.abandon_requests()
            elif life.confirmed is not None and life.latest is life.confirmed:
                early, recent = life.take_finished()
                if early or recent:
                    yield FinishedRequests(
                        key=life.key,
                        is_plain=life.hello.speculation is None,
                        longest=longest_length(life.hello),
                        early=tuple(early),
                        recent=tuple(recent),
                    )
            if not life.connections:  # its report will not be completed
                reason = UNCONFIRMED if life.confirmed is None else LOST
                self._dropped[reason] += life.abandon_requests()

    def leave_out(self, requests: FinishedRequests) -> None:
        """Counts finished requests as dropped, because their model has no state."""
        self._dropped[OVERFLOW] += len(requests.early) + len(requests.recent)

    def _view_engines(self, at: float) -> dict[EngineKey, EngineView]:
        split = self._split_models()
        ended = self._ended()

        views = {}
        for key, counted in self._counted.items():
            engine = self._engine(key)
            if_missing = None
            if key in ended:
                if_missing = NoSplit(NoSplitReason.RESTARTED_WITHOUT, key.engine)
            elif counted.get(Compared.DRAFTS, 0) > 0 and key.model_name in split:
                if_missing = NoSplit(NoSplitReason.NOT_REPORTED, key.engine)

            views[key] = engine.view(
                at,
                coverage=self._coverage(engine),
                is_blank=bool(counted) and not any(counted.values()),
                if_missing=if_missing,
                is_out_of_reach=key in self._out_of_reach,
            )
        return views

    def _engine(self, key: EngineKey) -> EngineLives:
        return EngineLives(key, self._of(key))

    def _of(self, key: EngineKey) -> list[Life]:
        """The engine's lives that are not another vLLM's, the latest last."""
        return [
            life
            for life in self._lives.values()
            if life.key == key and life.standing is not Standing.ELSEWHERE
        ]

    def _is_elsewhere(self, life: Life) -> bool:
        """Whether it is of another server, or of an engine that is not on the last page."""
        is_on_page = not self._counted or life.key in self._counted
        return life.standing is Standing.ELSEWHERE or not is_on_page

    # What is shown of the plug-ins

    def report(self, problem: str, *, as_of_poll: bool = False) -> PluginReport:
        """The plug-ins' states as of now, or ``as_of_poll``, the last one.

        ``problem`` says why the socket cannot be opened; it is empty if the socket is open.
        """
        return replace(
            self._seen if as_of_poll and self._counted else self._look(),
            problem=problem,
            has_served=self._has_served_unheard,
            events=self._finished,
            dropped=dict(self._dropped),
        )

    def _look(self) -> PluginReport:
        """The plug-ins' states as of now, without what is counted."""
        connected = [life for life in self._lives.values() if life.connections]
        elsewhere = [life for life in connected if self._is_elsewhere(life)]
        shown = [life for life in connected if not self._is_elsewhere(life)]
        shared = {key for key in self._counted if self._engine(key).has_several}
        engines = tuple(dict.fromkeys(_report(life, shared) for life in shown))

        unreadable = next(iter(self._unreadable.values()), None)
        return PluginReport(
            state=plugin_state(engines, unreadable, elsewhere=len(elsewhere)),
            unreadable_format=unreadable,
            problem="",
            observed=len({life.key for life in shown if life.observes} & self._counted.keys()),
            expected=len(self._counted),
            heard=self._has_heard,
            engines=engines,
            events=0,
            dropped={},
            shared=tuple(key for key in self._counted if key in shared),
            elsewhere=len(elsewhere),
            replicas=self._replicas(elsewhere),
            renamed=tuple(dict.fromkeys(self._renamed(elsewhere))),
            is_loaded=self._is_loaded,
        )

    def _replicas(self, lives: Iterable[Life]) -> tuple[EngineKey, ...]:
        """The engines on the last page that ``lives`` could be in, but which of them is unknown."""
        if self._page is None:
            return ()
        named = dict.fromkeys(life.named for life in lives)
        return tuple(key for name in named for key in self._page.keys_of(*name))

    def _renamed(self, lives: Iterable[Life]) -> Iterator[tuple[str, str]]:
        """The names that ``lives`` and the last page have for what may be one model."""
        for life in lives:
            called = [key.model_name for key in self._counted if key.number == life.key.number]
            is_known = life.key.model_name in called or life.standing is Standing.ELSEWHERE
            if len(called) == 1 and not is_known:
                yield life.key.model_name, called[0]

    @property
    def _is_loaded(self) -> bool:
        """Whether the page has an id that is no earlier start's: a page of one process has none."""
        page = self._page
        return page is not None and page.process_start is not None and bool(page.servers)

    @property
    def _has_served_unheard(self) -> bool:
        """Whether vLLM has served requests for a while, and no plug-in has ever connected."""
        if self._has_heard or self._unheard_since is None:
            return False
        return self._polled_at - self._unheard_since >= _CONNECTS_WITHIN


def _report(life: Life, shared: Collection[EngineKey]) -> PluginEngineReport:
    """What is shown of a plug-in; of several as one engine, only that they are."""
    if life.key not in shared:
        return life.report
    return PluginEngineReport(
        model_name=life.key.model_name,
        engine=life.key.engine,
        version="",
        vllm_version="",
        state=PluginState.SEVERAL_SENDERS,
        reason="",
    )


def _counted(engine: EngineSnapshot) -> Totals:
    """What vLLM has counted of an engine since it started, as far as it exports that."""
    return {
        compared: int(engine.counters[counter])
        for counter, compared in _COUNTERS.items()
        if counter in engine.counters
    }


def _is_idle(engine: EngineSnapshot) -> bool:
    """Whether vLLM says that the engine runs nothing, and nothing waits."""
    gauges = names.Gauge.REQUESTS_RUNNING, names.Gauge.REQUESTS_WAITING
    return all(engine.gauges.get(gauge) == 0 for gauge in gauges)
