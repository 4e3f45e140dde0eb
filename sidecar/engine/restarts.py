"""Which engines have started again, and whether the same vLLM still answers.

Only this module decides it. Who answers follows from a page's ``Identity``: the ids of its servers
and the start time of its process, as far as the page has them. Another identity means another
vLLM, at once. An identity that comes back means that several servers share the address.

Whether an engine's counters have started over follows from the time at which they were created
(``*_created``) where that is exported, otherwise from a fall in their values. vLLM creates them
again within one process when elastic expert parallelism changes its number of engines.

A page without an identity has only its counters. A fall alone can be a restart, or two servers that
answer in turn, so the next two pages decide.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from sidecar.engine.engine_key import EngineKey
from sidecar.engine.merge import hold_counters
from sidecar.engine.names import Counter
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.errors import AnotherServer, CountersFell

WAITED: Final = 2  # pages that confirm fallen counters before they are taken for a restart
REFUSALS: Final = 30  # pages in a row from one of several servers before it is accepted
_FORGOTTEN: Final = 300  # pages in a row from it before the other servers are taken to be gone
_MOST_SEEN: Final = 1024  # engines remembered; a page has at most a quarter of that
_MOST_GONE: Final = 64  # replaced identities remembered
_FEW: Final = 10  # a counter up to this may exceed its old value again soon after a restart


@dataclass(frozen=True, slots=True)
class Restarts:
    """What started again before a page: vLLM, or single engines in the same process.

    ``is_foreign``: the page comes from another server, which was already running at the last page.
    So its counters do not continue those of the last page, and the difference is not growth.
    """

    vllm: bool = False
    engines: frozenset[EngineKey] = frozenset()
    is_foreign: bool = False


class Address(Enum):
    """Who answers at the address.

    ======= =============================================================== ======== =======
    state   a page that                                                     is       next
    ======= =============================================================== ======== =======
    ONE     continues, or has an identity that was never there before       accepted ONE
    ONE     has an identity that another one had replaced                   refused  SHARED
    ONE     has no identity, and is back above a fall taken for a restart   refused  SHARED
    ONE     has fallen counters, and nothing says why                       refused  DOUBTED
    DOUBTED is the third in a row with fallen counters                      accepted ONE
    DOUBTED is back at the old values, all pages with one identity          accepted ONE
    DOUBTED is back at the old values, and nothing says whose they are      refused  SHARED
    SHARED  is one of the first ``REFUSALS`` in a row that continue         refused  SHARED
    SHARED  follows these in the same row                                   accepted SHARED
    SHARED  follows the ``_FORGOTTEN``-th in the same row                   accepted ONE
    ======= =============================================================== ======== =======
    """

    ONE = auto()  # one vLLM
    DOUBTED = auto()  # one that may have started again, or another one
    SHARED = auto()  # several in turn


class _Sign(Enum):
    """What a page says of an engine that was on an earlier page."""

    CONTINUES = auto()
    STARTED_AGAIN = auto()
    FELL = auto()  # its counters did, and nothing says why


@dataclass(frozen=True, slots=True)
class Identity:
    """Who serves a page, as far as it says so."""

    servers: frozenset[str] = frozenset()
    process_start: float | None = None

    @classmethod
    def of(cls, page: PageSnapshot) -> "Identity":
        """The identity of a page."""
        return cls(page.servers, page.process_start)

    def is_same(self, other: "Identity") -> bool | None:
        """Whether both belong to the same vLLM; None if that is unknown.

        One common id is enough: a multiprocess directory that nobody wiped keeps the ids of earlier
        servers, and their counts continue. A vLLM that its launcher starts again keeps the
        launcher's id, but has another start time.
        """
        have_ids = bool(self.servers and other.servers)
        if have_ids and self.servers.isdisjoint(other.servers):
            return False
        if self.process_start is None or other.process_start is None:
            return True if have_ids else None
        return self.process_start == other.process_start


@dataclass(frozen=True, slots=True)
class _Seen:
    """An engine as it was last accepted, and whose it was."""

    engine: EngineSnapshot
    identity: Identity


_Engines = Mapping[EngineKey, EngineSnapshot]


class RestartDetector:
    """Compares each page of one address with those before it."""

    def __init__(self) -> None:
        self._address = Address.ONE
        self._seen: dict[EngineKey, _Seen] = {}
        self._accepted = Identity()  # of the last accepted page
        self._gone: deque[Identity] = deque(maxlen=_MOST_GONE)  # those that others have replaced

        # The last page, accepted or not, and how many pages in a row have continued up to it.
        self._latest: _Engines = {}
        self._latest_identity = Identity()
        self._in_a_row = 0
        self._is_doubt_in_one = False  # whether the page that fell had the accepted identity
        # Before a restart that only the counters showed: the last page of the old process.
        self._above: _Engines = {}

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last page was refused because its counters fell, and nothing says why.

        Not once it is known that another server answers here, too: that explains it.
        """
        return self._address is Address.DOUBTED

    def detect(self, page: PageSnapshot) -> Restarts:
        """What has started again since the last accepted page.

        Raises:
            AnotherServer: several servers answer in turn.
            CountersFell: only the next pages show why.
        """
        identity = Identity.of(page)
        is_same = identity.is_same(self._accepted)
        self._follow(page, identity)

        signs = {
            engine.key: self._sign(engine, identity)
            for engine in page.engines
            if engine.key in self._seen
        }
        is_decided = is_same is False or _Sign.STARTED_AGAIN in signs.values()
        has_fallen = _Sign.FELL in signs.values() and not is_decided
        self._step(page, identity, is_same=is_same, has_fallen=has_fallen)

        started = {key for key, sign in signs.items() if sign is not _Sign.CONTINUES}
        is_another = is_same is False or (is_same is None and self._have_all_started(page, started))
        restarts = Restarts(
            vllm=is_another,
            engines=frozenset() if is_another else frozenset(started),
            is_foreign=self._is_foreign(page, is_same=is_same),
        )
        self._accept(page, identity, restarts)
        return restarts

    # Who answers

    def _follow(self, page: PageSnapshot, identity: Identity) -> None:
        """Counts the pages in a row that may be of one server and whose counters continue."""
        is_other = identity.is_same(self._latest_identity) is False
        continues = not is_other and not _is_below(page, self._latest)
        self._in_a_row = self._in_a_row + 1 if continues else 1
        self._latest = _by_key(page)
        self._latest_identity = identity

    def _step(
        self, page: PageSnapshot, identity: Identity, *, is_same: bool | None, has_fallen: bool
    ) -> None:
        """The next state of the address. Raises as ``detect`` for a page that is refused."""
        if self._is_back(page, identity, is_same=is_same, has_fallen=has_fallen):
            self._address = Address.SHARED

        if self._address is Address.SHARED:
            self._refuse_others()
        elif has_fallen:
            self._doubt(is_same=is_same)
        else:
            self._address = Address.ONE

    def _is_back(
        self, page: PageSnapshot, identity: Identity, *, is_same: bool | None, has_fallen: bool
    ) -> bool:
        """Whether a server answers again after another one did."""
        if any(gone.is_same(identity) for gone in self._gone):
            return True
        if self._address is Address.DOUBTED:
            return not has_fallen and is_same is not False and not self._is_doubt_in_one
        return is_same is None and self._has_returned_above(page)

    def _refuse_others(self) -> None:
        """Refuses pages until one server has answered alone for a while."""
        if self._in_a_row <= REFUSALS:
            raise AnotherServer(
                "several vLLM servers answer at this address; each needs a sidecar of its own"
            )
        if self._in_a_row > _FORGOTTEN:
            self._address = Address.ONE

    def _doubt(self, *, is_same: bool | None) -> None:
        """Refuses a page whose counters fell, until enough pages in a row have continued it."""
        if self._address is Address.ONE:
            self._is_doubt_in_one = is_same is True
            self._in_a_row = 1
        self._address = Address.DOUBTED
        if self._in_a_row <= WAITED:
            raise CountersFell(
                "vLLM's counters fell: the next polls show whether it has restarted, or whether"
                " another server answered"
            )

        self._address = Address.ONE
        if not self._is_doubt_in_one:
            self._above = {key: seen.engine for key, seen in self._seen.items()}

    # What the counters did

    def _sign(self, engine: EngineSnapshot, identity: Identity) -> _Sign:
        seen = self._seen[engine.key]
        is_same = identity.is_same(seen.identity)
        if is_same is False:
            return _Sign.STARTED_AGAIN

        if seen.engine.created is not None and engine.created is not None:
            has_started = seen.engine.created != engine.created
            return _Sign.STARTED_AGAIN if has_started else _Sign.CONTINUES

        # Within one vLLM, a counter that falls alone is a fault of the page.
        has_fallen = fell_together if is_same else fell
        return _Sign.FELL if has_fallen(seen.engine, engine) else _Sign.CONTINUES

    def _have_all_started(self, page: PageSnapshot, started: set[EngineKey]) -> bool:
        """Whether engines have ``started`` again, and none that had counted continues."""
        continues = any(
            _has_counted(self._seen[engine.key].engine)
            for engine in page.engines
            if engine.key in self._seen and engine.key not in started
        )
        return bool(started) and not continues

    def _is_foreign(self, page: PageSnapshot, *, is_same: bool | None) -> bool:
        """Whether what an accepted page has counted is not growth."""
        if is_same or not self._seen:
            return False
        if self._address is Address.SHARED:  # it has taken over; later pages continue
            return self._in_a_row == REFUSALS + 1
        return is_same is False and not self._have_started_over(page)

    def _have_started_over(self, page: PageSnapshot) -> bool:
        """Whether the counters of another vLLM have started since the last page.

        If so, its process started later than the last one's, or a counter fell.
        """
        before = self._accepted.process_start
        if before is not None and page.process_start is not None and page.process_start > before:
            return True
        return _is_below(page, {key: seen.engine for key, seen in self._seen.items()})

    def _has_returned_above(self, page: PageSnapshot) -> bool:
        """Whether all counters are suddenly back where they were before they fell.

        If so, what looked like a restart was another server.
        """
        common = [
            (self._above[engine.key], self._seen[engine.key].engine, engine)
            for engine in page.engines
            if engine.key in self._above and engine.key in self._seen
            if _has_counted(self._above[engine.key])
        ]
        if not all(fell_together(above, now) for above, now, _ in common):
            self._above = {}
            return False

        return bool(common) and not any(fell(above, engine) for above, _, engine in common)

    # What follows

    def _accept(self, page: PageSnapshot, identity: Identity, restarts: Restarts) -> None:
        """Makes this page the one with which the next pages are compared."""
        is_another = identity.is_same(self._accepted) is False
        if is_another:
            self._gone.append(self._accepted)
        if any(gone.is_same(identity) for gone in self._gone):
            kept = (one for one in self._gone if not one.is_same(identity))
            self._gone = deque(kept, maxlen=_MOST_GONE)
        self._accepted = identity

        for engine in page.engines:
            seen = self._seen.get(engine.key)
            has_started = restarts.vllm or engine.key in restarts.engines
            continues = not has_started and not restarts.is_foreign
            now = hold_counters(seen.engine, engine) if seen is not None and continues else engine
            self._seen[engine.key] = _Seen(now, identity)

        if len(self._seen) > _MOST_SEEN:
            self._seen = {engine.key: self._seen[engine.key] for engine in page.engines}


def fell(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether any count is lower than before."""
    return any(new < old for old, new in _counts(before, now))


def fell_together(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether every count, except small ones, is lower than before."""
    counted = [(old, new) for old, new in _counts(before, now) if old > _FEW]
    return bool(counted) and all(new < old for old, new in counted)


def _counts(before: EngineSnapshot, now: EngineSnapshot) -> Iterable[tuple[float, float]]:
    """Each count before and now.

    The sum of times to first token is left out: vLLM's clock for them may be set back.
    """
    for counter, value in now.counters.items():
        if counter is not Counter.TTFT_SECONDS and counter in before.counters:
            yield before.counters[counter], value
    for phase, reading in now.histograms.items():
        if phase in before.histograms:
            yield before.histograms[phase].count, reading.count


def _has_counted(engine: EngineSnapshot) -> bool:
    return any(engine.counters.values())


def _by_key(page: PageSnapshot) -> _Engines:
    return {engine.key: engine for engine in page.engines}


def _is_below(page: PageSnapshot, earlier: _Engines) -> bool:
    return any(
        engine.key in earlier and fell(earlier[engine.key], engine) for engine in page.engines
    )
