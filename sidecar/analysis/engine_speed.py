"""How fast one engine decodes: by load since the start, and over the sliding window against plain decoding."""

from collections.abc import Mapping
from math import inf
from typing import Final

from sidecar.analysis.plain_curve import PlainStep, are_prompts_alike, covers
from sidecar.analysis.report import LoadReport
from sidecar.analysis.speedup import EngineSpeed, SlidingTimes, Withheld
from sidecar.analysis.steps import LOAD_LABELS, Steps, joined, load_label
from sidecar.engine.window import GrowthWindow, subtract
from sidecar.settings.baselines import PlainStepTimes

_COVERED: Final = 0.8  # share of the tokens whose plain time must be known


class LoadTotals:
    """What was decoded at each load since the start."""

    def __init__(self) -> None:
        self._totals = {label: [0.0, 0.0, 0.0] for label in LOAD_LABELS}

    def add(self, steps: Steps) -> None:
        """Adds a period at its mean load."""
        totals = self._totals[load_label(steps.running)]
        for index, value in enumerate((steps.seconds, steps.decode_steps, steps.tokens)):
            totals[index] += value

    def report(self, plain: Mapping[str, float]) -> tuple[LoadReport, ...]:
        """Every load; ``plain`` is S0 by load."""
        return tuple(
            LoadReport(label, seconds, steps, tokens, plain.get(label))
            for label, (seconds, steps, tokens) in self._totals.items()
        )


class EngineSpeedWindow:
    """The steps of an engine or a model over a sliding window, with their plain times."""

    def __init__(self, seconds: float) -> None:
        self._total = Steps(*(0.0,) * len(Steps._fields))
        self._steps = GrowthWindow(seconds, subtract)
        self._times = SlidingTimes(seconds)
        self.mark(-inf)

    def add(self, steps: Steps, plain: PlainStep | None) -> None:
        """Adds what was decoded since the last poll, with its plain time per step if known."""
        self._total = joined(self._total, steps)
        if plain is not None:
            self._times.add(tokens=steps.tokens, plain=plain, actual=steps.seconds)

    def mark(self, at: float) -> None:
        """Timestamps everything added so far with ``at``, a poll's time."""
        self._steps.append(at, self._total)
        self._times.mark(at)

    def read(self, curve: PlainStepTimes | None, missing: Withheld) -> EngineSpeed | None:
        """The window that ends at the last poll; None without steps. ``missing`` says why there is no curve."""
        grown = self._steps.growth or ()
        if not grown or min(grown[:4]) <= 0:  # also if a total is so large that, as a double, it no longer grows
            return None
        steps = Steps(*grown)
        if curve is None:
            return EngineSpeed(steps=steps, withheld=missing)
        speedup = self._times.read()
        if speedup is None or speedup.tokens < _COVERED * steps.tokens:
            is_covered = covers(curve, steps.running)
            return EngineSpeed(steps=steps, withheld=Withheld.TOO_LITTLE if is_covered else Withheld.LOAD)
        if not are_prompts_alike(curve, steps):
            return EngineSpeed(steps=steps, withheld=Withheld.PROMPTS)
        length = steps.length / speedup.ratio
        drafted = steps.draft_tokens / steps.decode_steps
        return EngineSpeed(
            steps=steps,
            speedup=speedup,
            break_even_length=length,
            break_even_acceptance=max(length - 1, 0.0) / drafted if drafted else None,
        )
