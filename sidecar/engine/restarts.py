"""Which engines have started again, and whether the same vLLM still answers.

This is the one place that decides it, from every sign that a page has:

- the start time of its process, where the page is of one process;
- the time at which an engine's counters were made (``*_created``), where it is exported. vLLM makes
  them anew in the same process when elastic expert parallelism changes its number of engines;
- counters of an engine that fall together.

Counters that fall once do not tell a restart from two servers that answer in turn, so the next two
pages decide: if the counters return to their old values, another server answered; else vLLM, or the
engine, has started again at 0. Until then the pages are refused.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from sidecar.engine.identity import EngineKey
from sidecar.engine.merge import hold_counters
from sidecar.engine.names import Counter
from sidecar.engine.snapshot import EngineSnapshot, PageSnapshot
from sidecar.errors import AnotherServer, CountersFell

WAITED: Final = 2  # pages that confirm fallen counters before they are taken for a restart
REFUSALS: Final = 5  # pages in a row of a server known to be another, after which it is accepted
_FORGOTTEN: Final = 300  # accepted pages in a row, after which no other server answers any more
_MOST_SEEN: Final = 1024  # engines remembered; a page has at most a quarter of that
_FEW: Final = 10  # counters up to here may exceed their old value soon after a restart


@dataclass(frozen=True, slots=True)
class Restarts:
    """What started again before a page: vLLM, or single engines in the same process.

    With ``is_foreign``, the page is of a server whose counters do not continue those of the last
    page, without having started since: what it has counted is not growth.
    """

    vllm: bool = False
    engines: frozenset[EngineKey] = frozenset()
    is_foreign: bool = False


class _Sign(Enum):
    """What a page says of an engine that was on an earlier page."""

    GOES_ON = auto()
    STARTED_AGAIN = auto()
    FELL = auto()  # its counters did, and nothing tells why


@dataclass(frozen=True, slots=True)
class _Seen:
    """An engine as it was last accepted, and the start of the process that it was in."""

    engine: EngineSnapshot
    process_start: float | None


_Line = Mapping[EngineKey, EngineSnapshot]


class RestartDetector:
    """Compares each page of one address with those before it."""

    def __init__(self) -> None:
        self._seen: dict[EngineKey, _Seen] = {}
        self._process_start: float | None = None  # of the last accepted page
        self._newest: float | None = None  # start of the newest process that answered
        # Pages whose counters are below the accepted ones: the last of them, and how many in a row.
        self._below: _Line = {}
        self._pages_below = 0
        # Before a restart that only the counters showed: the last page of the old process.
        self._above: _Line = {}
        self._refused = 0  # pages in a row that were refused as another server's
        self._is_shared = False  # whether another server has answered at this address
        self._accepted = 0  # pages in a row, while the address counts as shared

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last page was refused because its counters fell, and nothing told why.

        Once it is known that another server answers here, too, that is why.
        """
        return self._pages_below > 0 and not self._is_shared

    def detect(self, page: PageSnapshot) -> Restarts:
        """What has started again since the last accepted page.

        Raises:
            AnotherServer: the page is of another server than the last one.
            CountersFell: the next pages tell.
        """
        is_taken_over = self._refuse_older_process(page.process_start)
        if self._has_returned_above(page):
            self._above = _line(page)
            is_taken_over = self._refuse()

        signs = {
            engine.key: self._sign(engine, page.process_start)
            for engine in page.engines
            if engine.key in self._seen
        }
        is_decided = _Sign.STARTED_AGAIN in signs.values()
        is_in_doubt = _Sign.FELL in signs.values() and not is_decided
        if is_in_doubt and self._wait(page):
            is_taken_over = True

        is_unmasked = _Sign.FELL not in signs.values() and self._unmask(page)

        started = {key for key, sign in signs.items() if sign is not _Sign.GOES_ON}
        restarts = self._restarts(page, started, is_foreign=is_taken_over or is_unmasked)
        self._accept(page, restarts)
        return restarts

    def _sign(self, engine: EngineSnapshot, process_start: float | None) -> _Sign:
        seen = self._seen[engine.key]
        is_another = differ(seen.process_start, process_start)
        if is_another:
            return _Sign.STARTED_AGAIN

        is_made_anew = differ(seen.engine.created, engine.created)
        if is_made_anew is not None:
            return _Sign.STARTED_AGAIN if is_made_anew else _Sign.GOES_ON

        # Within one process, a counter that falls alone is a fault of the page.
        has_fallen = fell if is_another is None else fell_together
        return _Sign.FELL if has_fallen(seen.engine, engine) else _Sign.GOES_ON

    def _refuse_older_process(self, process_start: float | None) -> bool:
        """Refuses the page of an older process; returns whether it is accepted all the same.

        Two servers behind a load balancer would look like restarts. An older process that keeps
        responding is accepted: the clock was set back, or the newer process is gone.
        """
        is_older = (
            process_start is not None and self._newest is not None and process_start < self._newest
        )
        if is_older:
            self._refuse()
        self._newest = process_start
        return is_older

    def _refuse(self) -> bool:
        """Refuses a page of another server, unless no other server answers any more."""
        self._is_shared = True
        self._refused += 1
        if self._refused <= REFUSALS:
            raise AnotherServer(
                "several vLLM servers answer at this address; the sidecar needs one of its own"
            )
        return True

    def _wait(self, page: PageSnapshot) -> bool:
        """Refuses a page whose counters fell, until enough pages in a row have gone on from it.

        Returns whether it is another server's that is accepted all the same.
        """
        goes_on = bool(self._below) and not _is_below(page, self._below)
        self._pages_below = self._pages_below + 1 if goes_on else 1
        self._below = _line(page)
        if self._is_shared:
            return self._refuse()
        if self._pages_below <= WAITED:
            raise CountersFell(
                "vLLM's counters fell: the next polls tell whether it has restarted, or whether"
                " another server answered"
            )

        if page.process_start is None:
            self._above = {key: seen.engine for key, seen in self._seen.items()}

        return False

    def _unmask(self, page: PageSnapshot) -> bool:
        """Whether it shows only now that another server has answered.

        The counters have returned to the values from before they fell.
        """
        was_waiting = self._pages_below > 0
        self._pages_below = 0
        if not was_waiting or self._is_shared or page.process_start is not None:
            return False
        self._is_shared = True
        return True

    def _has_returned_above(self, page: PageSnapshot) -> bool:
        """Whether all counters are at once where they were before they fell.

        What looked like a restart was another server then.
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

    def _restarts(
        self, page: PageSnapshot, started: set[EngineKey], *, is_foreign: bool
    ) -> Restarts:
        is_another = differ(self._process_start, page.process_start)
        if is_another is None:
            goes_on = any(
                _has_counted(self._seen[engine.key].engine)
                for engine in page.engines
                if engine.key in self._seen and engine.key not in started
            )
            is_another = bool(started) and not goes_on

        engines = frozenset() if is_another else frozenset(started)
        return Restarts(is_another, engines, is_foreign)

    def _accept(self, page: PageSnapshot, restarts: Restarts) -> None:
        """The page is what the next ones are compared with."""
        self._refused = 0
        self._accepted = self._accepted + 1 if self._is_shared else 0
        if self._accepted > _FORGOTTEN:
            self._is_shared = False

        if restarts.vllm or restarts.engines:
            self._below = {}
            self._pages_below = 0

        self._process_start = page.process_start
        for engine in page.engines:
            seen = self._seen.get(engine.key)
            has_started = restarts.vllm or engine.key in restarts.engines
            goes_on = seen is not None and not has_started and not restarts.is_foreign
            now = hold_counters(seen.engine, engine) if seen is not None and goes_on else engine
            self._seen[engine.key] = _Seen(now, page.process_start)

        if len(self._seen) > _MOST_SEEN:
            self._seen = {engine.key: self._seen[engine.key] for engine in page.engines}


def differ(before: float | None, now: float | None) -> bool | None:
    """Whether two start times belong to different processes; None if one is unknown."""
    return None if before is None or now is None else before != now


def fell(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether any count is lower than before."""
    return any(new < old for old, new in _counts(before, now))


def fell_together(before: EngineSnapshot, now: EngineSnapshot) -> bool:
    """Whether every count is lower than before, but for small ones."""
    counted = [(old, new) for old, new in _counts(before, now) if old > _FEW]
    return bool(counted) and all(new < old for old, new in counted)


def _counts(before: EngineSnapshot, now: EngineSnapshot) -> Iterable[tuple[float, float]]:
    """Each count before and now.

    The sum of times to first token is none: vLLM takes them from a clock that may be set back.
    """
    for counter, value in now.counters.items():
        if counter is not Counter.TTFT_SECONDS and counter in before.counters:
            yield before.counters[counter], value
    for phase, reading in now.histograms.items():
        if phase in before.histograms:
            yield before.histograms[phase].count, reading.count


def _has_counted(engine: EngineSnapshot) -> bool:
    return any(engine.counters.values())


def _line(page: PageSnapshot) -> _Line:
    return {engine.key: engine for engine in page.engines}


def _is_below(page: PageSnapshot, line: _Line) -> bool:
    return any(engine.key in line and fell(line[engine.key], engine) for engine in page.engines)
