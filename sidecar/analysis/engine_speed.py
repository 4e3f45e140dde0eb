"""How fast one engine decodes: by load since the start, and over the sliding window against plain decoding."""

from collections.abc import Iterable, Mapping
from typing import Final

from sidecar.analysis.plain_curve import PlainCurve, PlainStep
from sidecar.analysis.report import LoadReport
from sidecar.analysis.sliding import SlidingParts
from sidecar.analysis.speedup import EngineSpeed, SlidingTimes, Withheld
from sidecar.analysis.steps import LOAD_LABELS, Steps, joined, load_label

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


def over_engines(engines: Iterable[tuple[LoadReport, ...]], plain: Mapping[str, float]) -> tuple[LoadReport, ...]:
    """The loads of several engines together, without those at which nothing is known."""
    columns = list(zip(*engines, strict=True)) or [(LoadReport(label),) for label in LOAD_LABELS]
    added = (
        LoadReport(
            column[0].running,
            sum(one.seconds for one in column),
            sum(one.steps for one in column),
            sum(one.tokens for one in column),
            plain.get(column[0].running),
        )
        for column in columns
    )
    return tuple(one for one in added if one.tokens or one.plain_seconds is not None)


class EngineSpeedWindow:
    """An engine's steps, or a model's, over a sliding window, beside their plain times."""

    def __init__(self, seconds: float, stretch: float) -> None:
        """The window is kept in parts of ``stretch`` seconds, whose differences give the standard error."""
        self._steps: SlidingParts[list[Steps]] = SlidingParts(seconds, stretch, list)
        self._times = SlidingTimes(seconds, stretch)
        self._last: tuple[float, PlainCurve | None, EngineSpeed] | None = None  # read; a poll reads several times

    def add(self, at: float, steps: Steps, plain: PlainStep | None) -> None:
        """Adds what was decoded between the last poll and ``at``, with its plain time per step if known."""
        self._last = None
        stretch = self._steps.current(at)
        stretch[:] = [joined(stretch[0], steps) if stretch else steps]
        if plain is not None:
            self._times.add(at, tokens=steps.tokens, plain=plain, actual=steps.seconds)

    def read(self, now: float, curve: PlainCurve | None, idle: Withheld, missing: Withheld) -> EngineSpeed:
        """The window that ends now; ``idle`` says why there may be no steps, ``missing`` why there is no curve."""
        if self._last is None or self._last[:2] != (now, curve):
            self._last = (now, curve, self._read(now, curve, missing))
        found = self._last[2]
        return found if found.steps is not None else EngineSpeed(withheld=idle)

    def _read(self, now: float, curve: PlainCurve | None, missing: Withheld) -> EngineSpeed:
        stretches = self._steps.read(now)
        if not stretches:
            return EngineSpeed()
        steps = joined(*(one for (one,) in stretches))
        if curve is None:
            return EngineSpeed(steps=steps, withheld=missing)
        excess = curve.prompt_excess(steps.prompt_share)
        speedup = self._times.read(now, excess or 0.0)
        if speedup is None or speedup.tokens < _COVERED * steps.tokens or not speedup.ratio:
            if not curve.covers(steps.running):
                return EngineSpeed(steps=steps, withheld=Withheld.LOAD)
            return EngineSpeed(steps=steps, withheld=Withheld.TOO_LITTLE, prompt_excess=excess)
        if excess is None:
            return EngineSpeed(steps=steps, withheld=Withheld.PROMPTS)
        length = steps.length / speedup.ratio
        drafted = steps.draft_tokens / steps.drafts if steps.drafts else 0.0
        return EngineSpeed(
            steps=steps,
            speedup=speedup,
            break_even_length=length,
            break_even_acceptance=max(length - 1, 0.0) / drafted if drafted else None,
            prompt_excess=excess,
        )
