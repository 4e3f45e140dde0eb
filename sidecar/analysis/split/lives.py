"""All lives of the plug-in that this sidecar has heard of, and which of them count.

``claims.py`` says whose numbers an engine's are; a poll's ``LivesView`` has the result.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from sidecar.analysis.split.claims import Claims, claimants, end_replaced
from sidecar.analysis.split.comparison import Compared, Totals
from sidecar.analysis.split.life import Cut, Life, sum_totals
from sidecar.analysis.split.plugin_state import PluginReport, plugin_state
from sidecar.analysis.split.trust import PolledLife, Standing, Trust
from sidecar.analysis.split.view import CountedLife, EngineView, FinishedRequests, LivesView
from sidecar.engine import names
from sidecar.engine.identity import EngineKey
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.requests.messages import Dropped, Hello, Message, ReportPart, Unreadable
from sidecar.requests.receiver import DROP_REASONS

OTHER_ENGINE: Final = "other_engine"  # the engine is not on this sidecar's page
UNCONFIRMED: Final = "unconfirmed"  # vLLM's counters contradict its sender
LOST: Final = "lost"  # the plug-in could not send it, because the sidecar was down or too slow
# more than is kept until the next poll or in a table, or of a model past limits.models
OVERFLOW: Final = "overflow"
_UNREACHED_AFTER: Final = 30.0  # seconds in which an engine drafts and does not connect
_MOST_LIVES: Final = 64
# Bytes of the rows of all lives. Half is for those that vLLM's counters confirm, half for all
# others, so that no sender takes the room of an engine's own plug-in.
MOST_ROW_BYTES: Final = 48 * 2**20
# What the rows of one packet may take, in bytes: about 600 rows with tokens by position.
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
        self.view = LivesView()  # as of the last good poll
        self._since = listening_since

        self._lives: dict[str, Life] = {}  # by start
        self._connected: dict[int, Life] = {}
        # message formats that the sidecar cannot read, by connection
        self._unreadable: dict[int, int] = {}

        # the starts of those that have claimed an engine together
        self._disputed: dict[EngineKey, set[str]] = {}
        self._page: PageSnapshot | None = None  # the last one
        # what vLLM counted of each engine on it
        self._counted: dict[EngineKey, Totals] = {}
        # engines whose counters vLLM has made anew in the same process: the last poll before that
        self._reset_after: dict[EngineKey, float] = {}
        # engines that draft without a plug-in beside others with one: the first poll that saw it
        self._unheard: dict[EngineKey, float] = {}
        self._out_of_reach: set[EngineKey] = set()  # as on another node: no part of the split

        self._dropped = dict.fromkeys(
            (*sorted(DROP_REASONS), OTHER_ENGINE, UNCONFIRMED, LOST, OVERFLOW), 0
        )
        self._has_heard = False
        self._unheard_since: float | None = None  # when vLLM first served a request unheard
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
        if life.is_over and life.confirmed is None:
            life.is_over = False
            life.trust = Trust()

        life.is_past = False
        life.is_before_reset = False
        self._end(connection)
        life.connections.add(connection)
        self._connected[connection] = life

    def _begin(self, hello: Hello) -> Life:
        """A life that is new to this sidecar."""
        from_start = hello.started >= self._since
        trust = Trust(is_new=from_start, may_be_older=not from_start)
        life = Life(hello, trust, from_start=from_start)
        if self._page is not None:
            life.key = self._page.key_of(*life.named)

        # What vLLM had counted by then is not its own; unknown if the clock was set back since.
        if from_start and hello.started > self._latest_poll:
            life.trust = Trust(self._counted.get(life.key), is_new=True)

        reset_after = self._reset_after.get(life.key)
        if reset_after is not None and hello.started <= reset_after:
            life.trust.compare_growth_only()
        return life

    def _report(self, life: Life, part: ReportPart) -> None:
        self._finished += len(part.finished)
        if not life.observes:  # it has said itself that it has nothing to report
            self._dropped[UNCONFIRMED] += max(len(part.finished), 1)
            return

        if life.is_over:
            self._dropped[OTHER_ENGINE] += max(len(part.finished), 1)
            return

        if self._is_elsewhere(life):
            self._dropped[OTHER_ENGINE] += max(len(part.finished), 1)
            # its tables are kept: it may still appear on the page
            part = replace(part, finished=())

        lost = life.lost
        is_first = life.latest is None
        self._dropped[OVERFLOW] += life.receive(
            part, room=self._room(life), request_room=self._request_room(life)
        )
        if life.from_start or not is_first:  # not what was lost before this sidecar was listening
            self._dropped[LOST] += life.lost - lost

    def _room(self, life: Life) -> int:
        """How many bytes more a life's rows may take: its share, as no sender takes another's.

        Where little is left, lives that have left and are not confirmed yet are forgotten.
        """
        alike = [one for one in self._lives.values() if one.trust.is_proven is life.trust.is_proven]
        connected = sum(bool(one.connections) for one in alike)
        share = MOST_ROW_BYTES // 2 // max(connected, 1) - life.size
        left = MOST_ROW_BYTES // 2 - sum(one.size for one in alike)
        for one in alike:
            if left >= min(share, _MOST_PART_BYTES):
                break
            if one.confirmed is None and not one.connections:
                left += one.size
                one.forget_rows()

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
            life.forget_arriving()

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
                not life.is_over,
                life.confirmed is not None,
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
        self._note_traffic(at, before)
        if has_restarted:
            self._end_process()

        self._find_engines(page)
        self._note_out_of_reach(at, before)
        for key in reset:
            self._restart_counters(key)
        self._reset_after |= dict.fromkeys(reset, self._polled_at)

        for key, counted in self._counted.items():
            self._compare(key, at, counted)
            self._settle(key)

        self._forget_engines()

        lives = self._count_lives()
        self.view = LivesView(
            engines=self._view_engines(at), lives=lives, finished=tuple(self._take_finished())
        )
        self._polled_at = at
        self._latest_poll = max(self._latest_poll, at)
        self._seen = self._look()
        return self.view

    def _forget_engines(self) -> None:
        """Bounds what is kept by engine on a page that names other engines each time."""
        on_page = self._counted.keys()
        if len(self._disputed) > _MOST_LIVES:
            self._disputed = {key: self._disputed[key] for key in self._disputed if key in on_page}
        if len(self._reset_after) > _MOST_LIVES:
            known = self._reset_after
            self._reset_after = {key: known[key] for key in known if key in on_page}

    def missed(self, *, have_counters_fallen: bool = False) -> None:
        """A poll has failed: only which plug-ins are connected may be another.

        Where ``have_counters_fallen``, the next page may have more than before: then nobody will
        know whether vLLM has made them anew.
        """
        self._seen = self._look()
        if have_counters_fallen:
            for life in self._lives.values():
                life.trust.doubt_counters()

    def _find_engines(self, page: PageSnapshot) -> None:
        """Finds the engine of each life on the page; one that was confirmed stays what it was.

        A page that shows replicas names more of an engine than its number, which is all that a
        plug-in knows.
        """
        for life in self._lives.values():
            if not (life.is_over or life.trust.is_proven or life.has_counted):
                life.key = page.key_of(*life.named)

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
        over = {life.key for life in self._lives.values() if life.is_over}
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
        return {life.key.model_name for life in self._lives.values() if life.has_counted}

    def _end_process(self) -> None:
        """Another process of vLLM has taken the place of the last one.

        An engine core may outlive its process, and stay connected.
        """
        self._disputed.clear()
        self._reset_after.clear()
        self._unheard.clear()
        self._out_of_reach.clear()

        for life in self._lives.values():
            # while the counters were in doubt, one of the new process may have come and gone
            is_new = life.hello.started > self._latest_poll
            is_known = life.trust.is_proven or life.has_counted
            if (life.connections or is_new) and not is_known:
                life.trust = Trust(is_new=life.from_start, may_be_older=True)
            else:
                life.end()

    def _restart_counters(self, key: EngineKey) -> None:
        counted = self._counted.get(key, {})
        for life in self._of(key):
            life.spans_reset = True
            life.trust.restart_counters(counted, (life.latest or Cut()).totals)
            if not life.connections:  # it may come back, and had counted more than it reported
                life.trust.compare_growth_only()
                life.is_past = True
                life.is_before_reset = True

    def _compare(self, key: EngineKey, at: float, counted: Totals) -> None:
        """Confirms the latest cut of each of an engine's lives if nothing contradicts it."""
        lives = self._of(key)
        for place, life in enumerate(lives):
            if life.hello.started > at:  # the clock was set back
                self._forget_start(life)
            if life.latest is None or not life.observes or life.is_past:
                continue
            if not life.is_consistent:
                life.trust.contradict()
                continue
            if life.reports != life.trust.reports:
                life.latest_at = at

            left = [one for one in lives[:place] if one.has_left]
            earlier = [one for one in left if not one.spans_reset]
            others = [one for one in lives if one.connections and one is not life]
            is_shared = any(one.observes for one in others)

            if left:
                life.trust.began_midway = True
            if len(earlier) < len(left):
                life.trust.compare_growth_only()

            polled = PolledLife(
                at=at,
                reports=life.reports,
                total=life.latest.totals,
                counted=counted,
                earlier=sum_totals(one.latest for one in earlier),
                known=sum_totals(one.latest for one in earlier if one.has_counted),
                counting=sum_totals(one.confirmed for one in earlier if one.has_counted),
                is_only=not is_shared and self._may_be_of_page(life),
                is_succeeded=is_shared and not life.connections,
            )
            life.trust.compare(polled, tolerance=1 - self.lowest_coverage)

            if life.trust.standing is Standing.AGREES and key not in self._disputed:
                self._confirm(life, earlier)

    def _confirm(self, life: Life, earlier: Iterable[Life]) -> None:
        """The latest cut of a life counts, and those of the ``earlier`` ones that it explains."""
        life.confirmed = life.latest
        if life.trust.explains_all:
            for one in earlier:
                one.trust.is_proven = True
                one.confirmed = one.latest

    def _may_be_of_page(self, life: Life) -> bool:
        """Whether the life did not begin before vLLM's process, as far as the page says."""
        started = self._page.process_start if self._page is not None else None
        return started is None or life.hello.started >= started

    def _forget_start(self, life: Life) -> None:
        """Whether the life began while this sidecar was listening is not known.

        It is of one that had been compared before the clock was set back.
        """
        life.trust.forget_origin()
        if life.from_start and not life.trust.has_begun:
            life.trust = Trust(is_new=True, may_be_older=True)
            life.forget_start()

    def _settle(self, key: EngineKey) -> None:
        """Notes which lives claim an engine.

        Where several do, nobody knows whose it is, even if one of them leaves. One that was no part
        of the split gives its claim up once a report of its own contradicts vLLM.
        """
        lives = self._of(key)
        end_replaced(lives)

        claiming = claimants(lives)
        if len(claiming) > 1:
            disputed = self._disputed.setdefault(key, set())
            disputed.update(life.hello.start for life in claiming)

        if key not in self._disputed:
            return

        for life in lives:
            if life.trust.is_contradicted and not life.has_counted:
                self._disputed[key].discard(life.hello.start)

        if len(self._disputed[key]) < 2:
            del self._disputed[key]

    # What follows from both

    def _count_lives(self) -> tuple[CountedLife, ...]:
        """Those that are part of the split, as of now."""
        counted = []
        for life in self._lives.values():
            if life.is_over or life.confirmed is None or life.first is None:
                continue
            if life.key in self._out_of_reach:
                continue
            is_confirmed = life.trust.is_proven and life.key not in self._disputed
            if not is_confirmed and not life.has_counted:
                continue
            life.has_counted = True
            counted.append(
                CountedLife(
                    start=life.hello.start,
                    key=life.key,
                    tables=life.tables,
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
            elif life.trust.standing is Standing.DIFFERS or life.key in self._disputed:
                self._dropped[UNCONFIRMED] += life.abandon_requests()
            elif life.confirmed is not None and life.latest is life.confirmed:
                early, recent = life.take_finished()
                if early or recent:
                    yield FinishedRequests(
                        key=life.key,
                        is_plain=life.hello.speculation is None,
                        early=tuple(early),
                        recent=tuple(recent),
                    )
            elif not life.connections:  # its report will not be completed
                reason = UNCONFIRMED if life.confirmed is None else LOST
                self._dropped[reason] += life.abandon_requests()

    def leave_out(self, requests: FinishedRequests) -> None:
        """Counts finished requests as dropped, because their model has no state."""
        self._dropped[OVERFLOW] += len(requests.early) + len(requests.recent)

    def _view_engines(self, at: float) -> dict[EngineKey, EngineView]:
        split = self._split_models()
        over = {life.key for life in self._lives.values() if life.is_over}

        return {
            key: self._claims(key).view(
                at,
                is_split=key.model_name in split,
                was_observed=key in over,
                is_out_of_reach=key in self._out_of_reach,
            )
            for key in self._counted
        }

    def _claims(self, key: EngineKey) -> Claims:
        has_drafted = self._counted.get(key, {}).get(Compared.DRAFTS, 0) > 0
        return Claims(
            key, self._of(key), is_disputed=key in self._disputed, has_drafted=has_drafted
        )

    def _of(self, key: EngineKey) -> list[Life]:
        """The engine's lives in the current process of vLLM, the latest last."""
        return [life for life in self._lives.values() if life.key == key and not life.is_over]

    def _is_elsewhere(self, life: Life) -> bool:
        """Whether this engine is not on the last page; False before the first one."""
        return bool(self._counted) and life.key not in self._counted

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
        connected = [life for life in self._lives.values() if life.connections and not life.is_over]
        claims = {key: self._claims(key) for key in self._counted}
        shown = connected
        if claims:
            candidates = [life for one in claims.values() for life in one.candidates]
            shown = [life for life in candidates if life.connections]

        engines = tuple(life.report for life in shown)

        shared = tuple(key for key, one in claims.items() if len(one.connected) > 1)
        elsewhere = [life for life in connected if self._is_elsewhere(life)]
        unreadable = next(iter(self._unreadable.values()), None)
        return PluginReport(
            state=plugin_state(
                engines, unreadable, is_shared=bool(shared), elsewhere=len(elsewhere)
            ),
            unreadable_format=unreadable,
            problem="",
            observed=len({life.key for life in shown if life.observes} & claims.keys()),
            expected=len(claims),
            heard=self._has_heard,
            engines=engines,
            events=0,
            dropped={},
            shared=shared,
            elsewhere=len(elsewhere),
            replicas=self._replicas(elsewhere),
        )

    def _replicas(self, lives: Iterable[Life]) -> tuple[EngineKey, ...]:
        """The engines on the last page that ``lives`` could be in, but which of them is unknown."""
        if self._page is None:
            return ()
        named = dict.fromkeys(life.named for life in lives)
        return tuple(key for name in named for key in self._page.keys_of(*name))

    @property
    def _has_served_unheard(self) -> bool:
        """Whether vLLM has served requests for a while, and no plug-in has ever connected."""
        if self._has_heard or self._unheard_since is None:
            return False
        return self._polled_at - self._unheard_since >= _CONNECTS_WITHIN


def _counted(engine: EngineSnapshot) -> Totals:
    """What vLLM has counted of an engine since it started, as far as it exports that."""
    return {
        compared: int(engine.counters[counter])
        for counter, compared in _COUNTERS.items()
        if counter in engine.counters
    }
