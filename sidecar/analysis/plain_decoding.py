"""Plain step times by load, measured on a vLLM that does not speculate."""

from sidecar.analysis.plain_curve import PlainCurve, fit
from sidecar.analysis.steps import Periods, Steps, steps_between
from sidecar.engine.continuation import Continuation
from sidecar.engine.plan import EngineKey
from sidecar.engine.snapshot import PageSnapshot
from sidecar.engine.timeline import Timeline

_HISTORY = 3600.0  # seconds


class PlainDecoding:
    """Collects what every engine decodes from poll to poll; several engines of a model share one curve."""

    def __init__(self) -> None:
        self._engines: dict[EngineKey, tuple[Continuation, Timeline, Periods]] = {}
        self.periods: dict[str, list[Steps]] = {}  # by model

    def scraped(self, at: float, page: PageSnapshot) -> None:
        """Takes in one poll, in chronological order. Ignores pages of several API servers, which each count steps."""
        if page.process_start is None:
            return
        for engine in page.engines:
            continuation, timeline, periods = self._engines.setdefault(
                engine.key, (Continuation(), Timeline(_HISTORY), Periods())
            )
            before = timeline.times[-1:]
            timeline.append(at, continuation.advance(engine))
            if before and (found := steps_between(timeline, before[0], at)) is not None:
                self.periods.setdefault(engine.key.model_name, []).extend(periods.add(before[0], at, found))

    @property
    def drafted(self) -> set[str]:
        """The models that speculated."""
        return {model for model, periods in self.periods.items() if any(one.drafts for one in periods)}

    def curves(self) -> dict[str, PlainCurve]:
        """The curves by model, without models that speculated or decoded too little."""
        plain = {model: fit(periods) for model, periods in self.periods.items() if model not in self.drafted}
        return {model: curve for model, curve in plain.items() if curve is not None}
