"""One engine's lives at one poll: which of them it is now, and what is said of it."""

from collections.abc import Sequence
from typing import Final

from sidecar.analysis.split.life import Life
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason
from sidecar.analysis.split.standing import UNTRUE, Standing
from sidecar.analysis.split.view import EngineView
from sidecar.engine.engine_key import EngineKey
from sidecar.requests.messages import Hello, HelloState

_NONE_COUNTS: Final = {
    Standing.WAITS: NoSplitReason.NOT_COMPARED,
    Standing.SILENT: NoSplitReason.SILENT,
    Standing.DIFFERS: NoSplitReason.COUNTS_OTHERWISE,
    Standing.BROKEN: NoSplitReason.CONTRADICTS_ITSELF,
}


class EngineLives:
    """The lives of one engine that are not another vLLM's, as far as anything tells.

    The one that is connected is the engine now. If several are, nobody knows which of them is, and
    nothing is shown meanwhile.
    """

    def __init__(self, key: EngineKey, lives: Sequence[Life]) -> None:
        """``lives`` are in the order in which they first said hello."""
        self.key = key
        self.lives = lives
        self.connected = [life for life in lives if life.connections]

    @property
    def has_several(self) -> bool:
        """Whether several are connected."""
        return len(self.connected) > 1

    @property
    def current(self) -> Life | None:
        """The one that is connected, else the last that counted, else the last.

        None if there is none, or several are connected.
        """
        if self.connected:
            return None if self.has_several else self.connected[0]
        left = [life for life in self.lives if life.has_counted] or self.lives
        return left[-1] if left else None

    @property
    def owner(self) -> Life | None:
        """The current one, if it counts."""
        current = self.current
        return current if current is not None and current.standing is Standing.COUNTS else None

    def view(
        self,
        at: float,
        *,
        coverage: float | None,
        is_blank: bool,
        if_missing: NoSplit | None,
        is_out_of_reach: bool,
    ) -> EngineView:
        """What is known at ``at``, a poll's time.

        ``is_blank``: vLLM has counted nothing of it yet. ``if_missing`` says why there is no split
        without a plug-in; None if there is one all the same. ``is_out_of_reach``: the split is
        without this engine.
        """
        blank = self._blank if is_blank else None
        no_split = None
        if blank is None and not is_out_of_reach:
            no_split = self._no_split(if_missing)

        shown = self.owner or blank
        return EngineView(
            confirmed=self.owner.hello if self.owner is not None else None,
            said=self._said(),
            is_untrue=self.current is not None and self.current.standing in UNTRUE,
            senders=len(self.connected),
            no_split=no_split,
            has_part=shown is not None,
            coverage=coverage,
            report_age=self._report_age(at),
            heartbeat=self._heartbeat(),
        )

    @property
    def _blank(self) -> Life | None:
        """The current life, if it has counted nothing either: 0 is right for all of it."""
        current = self.current
        if current is None or not current.observes or not current.is_blank:
            return None
        return current if current.standing in (Standing.WAITS, Standing.COUNTS) else None

    def _said(self) -> Hello | None:
        current = self.current
        if current is not None:
            return current.hello
        hellos = [life.hello for life in self.connected]
        are_alike = len({(hello.speculation, hello.configuration) for hello in hellos}) == 1
        return hellos[-1] if are_alike else None

    def _report_age(self, at: float) -> float | None:
        """Of the current life's newest report."""
        current = self.current
        if current is None or current.latest is None or current.latest.at is None:
            return None
        return max(at - current.latest.at, 0.0)

    def _heartbeat(self) -> int | None:
        """Of the owner's newest report. A stranger's would hide a stall."""
        if self.owner is None or self.owner.latest is None:
            return None
        return self.owner.latest.heartbeat

    def _no_split(self, if_missing: NoSplit | None) -> NoSplit | None:
        if self.has_several:
            return NoSplit(NoSplitReason.SEVERAL_SENDERS, self.key.engine)
        current = self.current
        if current is None:
            return if_missing
        if not current.observes:
            return _if_not_observing(current)
        if current.standing in _NONE_COUNTS:
            reason = _NONE_COUNTS[current.standing]
            ratio = current.growth.ratio if current.standing is Standing.DIFFERS else None
            return NoSplit(reason, self.key.engine, ratio=ratio, own=current.hello.own)
        if not current.reports and self._is_first(current):
            return NoSplit(NoSplitReason.FIRST_REPORT, self.key.engine)
        return None

    def _is_first(self, life: Life) -> bool:
        """Whether no other life has been part of the engine's split."""
        return not any(one.has_counted for one in self.lives if one is not life)


def _if_not_observing(life: Life) -> NoSplit:
    """Why there is no split if the plug-in says itself that it does not observe."""
    hello = life.hello
    if hello.state is HelloState.DISABLED:  # from then on its totals stand still
        return NoSplit(NoSplitReason.DISABLED, life.key.engine, hello.reason)
    return NoSplit(NoSplitReason.REFUSED, life.key.engine, hello.reason, hello.vllm or "")
