"""Plain step times by load, measured on a vLLM that does not speculate."""

from sidecar.analysis.curve_fit import fit
from sidecar.analysis.engines import Engines
from sidecar.analysis.plain_curve import PlainCurve
from sidecar.analysis.steps import Steps
from sidecar.engine.names import Counter
from sidecar.engine.snapshot import PageSnapshot
from sidecar.settings import Settings


class PlainDecoding:
    """Collects what every engine decodes from poll to poll; several engines of a model share one curve."""

    def __init__(self) -> None:
        self._engines = Engines(Settings())
        self.periods: dict[str, list[Steps]] = {}  # from poll to poll, by model
        self.drafted: set[str] = set()  # the models that speculated

    def scraped(self, at: float, page: PageSnapshot) -> None:
        """Takes in one poll, in chronological order."""
        self._engines.observe(at, page)
        for key, state in self._engines.states.items():
            if state.seen_at != at or state.grown is None:
                continue
            if state.grown.get(Counter.DRAFTS):
                self.drafted.add(key.model_name)
            if state.steps is not None:
                self.periods.setdefault(key.model_name, []).append(state.steps)

    def curves(self) -> dict[str, PlainCurve]:
        """The curves by model, without models that speculated or decoded too little."""
        plain = {model: fit(periods) for model, periods in self.periods.items() if model not in self.drafted}
        return {model: curve for model, curve in plain.items() if curve is not None}
