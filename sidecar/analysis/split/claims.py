"""Whose numbers are an engine's, where any process at the socket may claim to be the engine."""

from collections.abc import Sequence

from sidecar.analysis.split.life import Life
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason
from sidecar.analysis.split.trust import Standing
from sidecar.analysis.split.view import EngineView
from sidecar.engine.identity import EngineKey
from sidecar.requests.messages import Hello, HelloState


class Claims:
    """One engine's lives in the current process of vLLM, at one poll.

    A life claims the engine once vLLM's counters confirm it. One that was part of the split claims
    it also when they contradict it later, until vLLM restarts or another life that began after it
    takes its place: what was exported cannot be taken back.
    """

    def __init__(
        self, key: EngineKey, lives: Sequence[Life], *, is_disputed: bool, has_drafted: bool
    ) -> None:
        """``lives`` are in the order in which they first said hello.

        ``is_disputed``: several have claimed the engine. ``has_drafted``: so says vLLM.
        """
        self._key = key
        self._is_disputed = is_disputed
        self._has_drafted = has_drafted
        self._lives = lives
        self.connected = [life for life in lives if life.connections]
        self.owner = None if is_disputed else _owner(lives)

    @property
    def candidates(self) -> list[Life]:
        """Those that may be the engine's.

        Its owner, else those that were part of the split, else whoever is connected or was last.
        One that does not observe is none beside one that does.
        """
        if self.owner is not None:
            return [self.owner]
        if claiming := [life for life in self._lives if _claims(life)]:
            return claiming
        present = self.connected or [life for life in self._lives[-1:] if not life.is_past]
        return [life for life in present if life.observes] or present

    def view(
        self, at: float, *, is_split: bool, was_observed: bool, is_out_of_reach: bool
    ) -> EngineView:
        """What is known at ``at``, a poll's time.

        ``is_split``: other engines of the model have a split. ``was_observed``: an earlier process
        of vLLM had a plug-in in this engine. ``is_out_of_reach``: the split is without it.
        """
        blank = self._blank(at)
        no_split = None
        if blank is None and not is_out_of_reach:
            no_split = self._no_split(is_split=is_split, was_observed=was_observed)

        tables = None
        if self.owner is not None:
            tables = self.owner.tables
        elif blank is not None:
            tables = blank.tables

        return EngineView(
            confirmed=self.owner.hello if self.owner is not None else None,
            said=self._said(),
            senders=len(self.connected),
            no_split=no_split,
            tables=tables,
            coverage=self._coverage(),
            report_age=self._report_age(at),
            heartbeat=self._heartbeat(),
        )

    def _blank(self, at: float) -> Life | None:
        """A life that is known to have counted nothing, where none counts."""
        if self.owner is not None or self._is_disputed or any(_claims(one) for one in self._lives):
            return None
        blank = (one for one in self.candidates if one.observes and one.trust.holds_nothing(at))
        return next(blank, None)

    def _said(self) -> Hello | None:
        if self.owner is not None:
            return self.owner.hello
        hellos = [life.hello for life in self.candidates if life.connections]
        are_alike = len({(hello.speculation, hello.configuration) for hello in hellos}) == 1
        return hellos[-1] if are_alike else None

    def _coverage(self) -> float | None:
        """Of the owner, else of any that is compared, rather of one that does not differ."""
        observing = [life for life in self.candidates if life.observes]
        if not observing:
            return None
        if self._is_disputed:
            return 0.0

        likeliest = min(observing, key=lambda life: life.trust.standing is Standing.DIFFERS)
        return likeliest.trust.ratio if likeliest.is_consistent else 0.0

    def _report_age(self, at: float) -> float | None:
        """Of the owner's newest report, or of the only candidate's."""
        known = [life for life in self.candidates if life.reports]
        if len(known) != 1 or known[0].latest is None:
            return None

        cut_at = known[0].latest.at
        if cut_at is None:
            cut_at = known[0].latest_at
        return max(at - cut_at, 0.0)

    def _heartbeat(self) -> int | None:
        """Of the owner's newest report. A stranger's would hide a stall."""
        if self.owner is None or self.owner.latest is None:
            return None
        return self.owner.latest.heartbeat

    def _no_split(self, *, is_split: bool, was_observed: bool) -> NoSplit | None:
        if self._is_disputed:
            return NoSplit(NoSplitReason.SEVERAL_CLAIM, self._key.engine)
        if self.owner is not None:
            return _if_not_observing(self.owner)
        if not self.candidates:
            return self._if_missing(is_split=is_split, was_observed=was_observed)
        return self._why_none_is_confirmed()

    def _if_missing(self, *, is_split: bool, was_observed: bool) -> NoSplit | None:
        """Why there is no split although no plug-in is connected; None if none is needed."""
        if was_observed:
            return NoSplit(NoSplitReason.RESTARTED_WITHOUT, self._key.engine)
        if self._has_drafted and is_split:
            return NoSplit(NoSplitReason.NOT_REPORTED, self._key.engine)
        return None

    def _why_none_is_confirmed(self) -> NoSplit | None:
        engine = self._key.engine
        observing = [life for life in self.candidates if life.observes]
        if not observing:
            return _if_not_observing(self.candidates[-1])
        if any(life.trust.standing is not Standing.DIFFERS for life in observing):
            return NoSplit(self._why_none_is_compared(observing), engine)
        if not observing[0].is_consistent:
            return NoSplit(NoSplitReason.CONTRADICTS_ITSELF, engine)
        return NoSplit(NoSplitReason.COUNTS_OTHERWISE, engine, ratio=observing[0].trust.ratio)

    def _why_none_is_compared(self, observing: Sequence[Life]) -> NoSplitReason:
        """Generated tokens are compared where nothing is drafted; an old plug-in has none.

        Finished requests are no proof in their place: vLLM counts none of those whose client left,
        which the plug-in counts as aborted.
        """
        cuts = [life.latest for life in observing if life.latest is not None and life.reports]
        has_drafts = self._has_drafted or any(cut.total.drafts for cut in cuts)
        if has_drafts or not cuts or any(cut.generation_tokens is not None for cut in cuts):
            return NoSplitReason.NOT_COMPARED
        return NoSplitReason.NOTHING_COMPARABLE


def claimants(lives: Sequence[Life]) -> list[Life]:
    """Those of an engine's lives that claim to be the engine now."""
    return [life for life in lives if _claims(life)]


def end_replaced(lives: Sequence[Life]) -> None:
    """A life that has left is of the past once one that began after it is confirmed.

    ``lives`` are an engine's, in the order in which they first said hello.
    """
    for place, life in enumerate(lives):
        takes_over = life.trust.is_proven and life.trust.follows_another
        if not takes_over:
            continue
        for earlier in lives[:place]:
            if not earlier.connections:
                earlier.is_past = True


def _claims(life: Life) -> bool:
    return not life.is_past and (life.trust.is_proven or life.has_counted)


def _owner(lives: Sequence[Life]) -> Life | None:
    """The one whose numbers vLLM's counters confirm; None if there is none."""
    owners = [life for life in lives if _claims(life) and life.trust.is_proven]
    return owners[-1] if owners else None


def _if_not_observing(life: Life) -> NoSplit | None:
    """Why there is no split if the plug-in says itself that it does not observe."""
    hello = life.hello
    if life.observes:
        return None
    if hello.state is HelloState.DISABLED:  # from then on its totals stand still
        return NoSplit(NoSplitReason.DISABLED, life.key.engine, hello.reason)
    return NoSplit(NoSplitReason(hello.state), life.key.engine, hello.reason, hello.vllm or "")
