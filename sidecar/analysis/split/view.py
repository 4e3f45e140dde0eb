"""What the plug-ins say as of one poll, and how much of it counts: immutable."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.analysis.split.life import Cut, LifeSteps
from sidecar.analysis.split.plugin_state import NoSplit, NoSplitReason
from sidecar.engine.engine_key import EngineKey
from sidecar.requests.messages import Configuration, FinishedRequest, Hello, Speculation


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedLife:
    """A life that is part of the split.

    ``start`` identifies it. ``cut`` is all that it had counted when it last counted here; ``first``
    is what it had counted before this sidecar listened, and ``began`` when it began (Unix seconds),
    None if that was before. ``steps`` are its steps since the last poll.
    """

    start: str
    key: EngineKey
    began: float | None
    first: Cut
    cut: Cut
    steps: LifeSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequests:
    """The requests of one engine that finished since the last poll.

    Those that are ``early`` finished before this sidecar listened, at any time. ``is_plain``: the
    engine does not speculate, as its plug-in says. ``longest`` is of ``longest_length``.
    """

    key: EngineKey
    is_plain: bool
    longest: int | None = None
    early: tuple[FinishedRequest, ...]
    recent: tuple[FinishedRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine, as plug-ins see it.

    ``confirmed`` is the hello of the life that counts: only what this one says is judged by.
    ``said`` is what is shown of it: that, or what all say who may be it. None where nobody says it.
    """

    confirmed: Hello | None = None
    said: Hello | None = None
    senders: int = 0  # plug-ins that are connected as this engine; more than one is a fault
    # why there is no split; None also where no plug-in is needed for one
    no_split: NoSplit | None = None
    has_part: bool = False  # in the split, also if all of it is 0
    is_untrue: bool = False  # what ``said`` counts is known to be wrong, as another vLLM's is
    # draft tokens, or generated tokens where there are none: the plug-in's ÷ vLLM's; 0 if unusable
    coverage: float | None = None
    report_age: float | None = None  # of the newest whole report, in seconds
    heartbeat: int | None = None  # engine steps as of that report

    @property
    def speculation(self) -> Speculation | None:
        """How the engine drafts, to judge by."""
        return self.confirmed.speculation if self.confirmed is not None else None

    @property
    def configuration(self) -> Configuration:
        """The rest of its configuration, to judge by; all unknown while nothing counts."""
        return self.confirmed.configuration if self.confirmed is not None else Configuration()

    @property
    def vllm(self) -> str | None:
        """The version of its vLLM; None while nothing counts."""
        return self.confirmed.vllm if self.confirmed is not None else None


_NOTHING_KNOWN = EngineView()


@dataclass(frozen=True, slots=True, kw_only=True)
class LivesView:
    """All engines on vLLM's last page, and the lives that count."""

    engines: Mapping[EngineKey, EngineView] = field(default_factory=dict)
    lives: tuple[CountedLife, ...] = ()
    finished: tuple[FinishedRequests, ...] = ()

    def engine(self, key: EngineKey) -> EngineView:
        """One engine; nothing is known of one that is not on the page."""
        return self.engines.get(key, _NOTHING_KNOWN)

    @property
    def speculating(self) -> frozenset[EngineKey]:
        """The engines of which a plug-in says that they speculate."""
        return frozenset(
            key
            for key, view in self.engines.items()
            if view.said and view.said.speculation and not view.is_untrue
        )

    def lives_of(self, model_name: str) -> tuple[CountedLife, ...]:
        """The lives of a model that count, also those that have left."""
        return tuple(life for life in self.lives if life.key.model_name == model_name)

    def no_split(self, model_name: str) -> NoSplit | None:
        """Why the model must not be split with the plug-ins' data; None if it may be."""
        engines = [view for key, view in self.engines.items() if key.model_name == model_name]
        for view in engines:
            if view.no_split is not None:
                return view.no_split
        if self.lives_of(model_name) or any(view.has_part for view in engines):
            return None
        return NoSplit(NoSplitReason.NOT_CONNECTED)
